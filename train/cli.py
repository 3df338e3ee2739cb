"""The `mutagym` command: finds the subcommand, reads `--config`, turns a user's error into one line.

Exit codes: 0 done · 1 the run stopped itself · 2 an error the user can mend · 129, 130, 143 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cyclopts import App, CycloptsError
from cyclopts.config import Toml

from ollama_utils.errors import OllamaError
from train.errors import RunStoppedError, UserError
from train.interrupt import SIGNALS, Interrupted, interruptible

SUMMARY = "Train a policy to reword queries so that a language model you run with Ollama answers them well."
COMMANDS = {
    "train": (
        "train.train_query_mutator:train",
        "Train a policy with PPO to choose how a query is reworded; --config FILE reads flags from TOML",
    ),
    "bench": ("train.bench:bench", "Time the same rollout under each schedule, on one simulator"),
    "serve": ("train.serve:serve", "Serve the simulator: an Ollama-compatible server without a model"),
}


def main() -> None:
    """Run `mutagym` with the process's arguments."""
    launch(partial(execute, sys.argv[1:]))


def launch(command: Callable[[], int]) -> None:
    """Run a command as this process, and end the process with its exit code or that of a signal.

    After an error at once: threads of the pool may still be waiting for a slow server.
    """
    try:
        with interruptible():
            code = command()
    except Interrupted as error:  # it came when the command was over
        code = error.exit_code
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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
    except (CycloptsError, UserError) as error:
        line, code = str(error), 2
    except RunStoppedError as error:
        line, code = str(error), 1
    except Interrupted as error:
        line, code = str(error), error.exit_code
    except (OSError, OllamaError) as error:  # a full disk, a server that went away
        line, code = f"{type(error).__name__}: {error}", 1
    else:
        return 0
    print(f"mutagym: {' '.join(line.split())}", file=sys.stderr)
    return code


def _read_config_flag(app: App, tokens: list[str]) -> list[str]:
    """Take `--config FILE` out of the tokens; its keys become defaults under the flags."""
    places = [k for k, token in enumerate(tokens) if token.partition("=")[0] == "--config"]
    if not places:
        return tokens
    if len(places) > 1:
        raise UserError("--config is given twice; expected one TOML file")
    flag, equals, value = tokens[places[0]].partition("=")
    end = places[0] + (1 if equals else 2)
    path = Path(value if equals else "".join(tokens[places[0] + 1 : end]))
    if not path.is_file():
        raise UserError(f"{flag} names {str(path)!r}; expected a TOML file")
    _check_toml(path)
    app.config = (Toml(path, use_commands_as_keys=False),)
    return tokens[: places[0]] + tokens[end:]


def _check_toml(path: Path) -> None:
    """What cyclopts would pass over in silence."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{str(path)!r} is no TOML file: {error}") from error
    for key, value in table.items():
        if isinstance(value, dict):
            raise UserError(
                f"{str(path)!r} has a table [{key}]; expected the flags' names as keys at the top"
            )
        if key.replace("_", "-").startswith("no-"):
            raise UserError(f"{str(path)!r} has the key {key!r}; write '{key[3:]} = false' instead")


def _version() -> str:
    from importlib.metadata import version

    return version("mutagym")


if __name__ == "__main__":
    main()
