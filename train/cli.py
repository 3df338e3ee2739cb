"""The `mutagym` command: finds the subcommand, reads `--config`, turns a user's error into one line.

Exit codes: 0 done · 1 the run stopped itself · 2 an error the user can mend · 130, 143 interrupted.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from cyclopts import App, CycloptsError
from cyclopts.config import Toml

from train.errors import RunStoppedError, UserError
from train.interrupt import Interrupted

SUMMARY = "Train a policy to reword queries so that a language model you run with Ollama answers them well."
COMMANDS = {
    "train": (
        "train.train_query_mutator:train",
        "Train a policy with PPO to choose how a query is reworded",
    ),
    "bench": ("train.bench:bench", "Time the same rollout under each schedule, on one simulator"),
    "serve": ("train.serve:serve", "Serve the simulator: an Ollama-compatible server without a model"),
}


def main() -> None:
    """Run `mutagym` with the process's arguments."""
    leave(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run `mutagym` with these arguments; returns the exit code, the error said on stderr."""
    app = App(name="mutagym", help=SUMMARY, version=_version)
    for name, (target, summary) in COMMANDS.items():
        app.command(target, name=name, help=summary)
    return run(app, list(arguments))


def execute_one(command: Callable[..., None], arguments: Sequence[str]) -> int:
    """Run one command as a script of its own; returns the exit code."""
    app = App(help=command.__doc__)
    app.default(command)
    return run(app, list(arguments))


def run(app: App, tokens: list[str]) -> int:
    """Run `app`; what its users can mend, and what stopped it, becomes one line on stderr."""
    try:
        tokens = _read_config_flag(app, tokens)
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        line, code = " ".join(str(error).split()), 2
    except UserError as error:
        line, code = str(error), 2
    except RunStoppedError as error:
        line, code = str(error), 1
    except Interrupted as error:
        line, code = str(error), error.exit_code
    except KeyboardInterrupt:
        line, code = "stopped by SIGINT", 130
    else:
        return 0
    print(f"mutagym: {line}", file=sys.stderr)
    return code


def leave(code: int) -> None:
    """End the process; after an error at once, for pool threads may still be waiting for a slow server."""
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read_config_flag(app: App, tokens: list[str]) -> list[str]:
    """Take `--config FILE` out of the tokens; its keys become defaults under the flags."""
    for k, token in enumerate(tokens):
        flag, _, value = token.partition("=")
        if flag == "--config":
            rest = k + 1 if value else k + 2
            path = Path(value or "".join(tokens[k + 1 : k + 2]))
            if not path.is_file():
                raise UserError(f"--config names {str(path)!r}; expected a TOML file")
            _check_toml(path)
            app.config = (Toml(path, use_commands_as_keys=False),)
            return tokens[:k] + tokens[rest:]
    return tokens


def _check_toml(path: Path) -> None:
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{str(path)!r} is no TOML file: {error}") from error


def _version() -> str:
    from importlib.metadata import version

    return version("mutagym")


if __name__ == "__main__":
    main()
