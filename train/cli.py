"""The `mutagym` command: finds the subcommand, reads `--config`, turns a user's error into one line.

Exit codes: 0 done · 1 the run stopped itself · 2 an error the user can mend · 130, 143 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cyclopts import App, CycloptsError
from cyclopts.config import Toml

from train.errors import RunStoppedError, UserError
from train.interrupt import Interrupted

COMMANDS = {
    "train": ("train.train_query_mutator:train", "Train a policy with PPO to choose how a query is reworded."),
    "bench": ("train.bench:bench", "Time the same rollout under each schedule, on one simulator."),
    "serve": ("train.serve:serve", "Serve the simulator: an Ollama-compatible server without a model."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `mutagym` with the given arguments, by default the process's; exits on errors."""
    app = App(name="mutagym", help=__package_help__, version=_version)
    for name, (target, summary) in COMMANDS.items():
        app.command(target, name=name, help=summary)
    run(app, sys.argv[1:] if arguments is None else list(arguments))


def run_command(command: Callable[..., None]) -> None:
    """Run one command as a script of its own, with the process's arguments."""
    app = App(help=command.__doc__)
    app.default(command)
    run(app, sys.argv[1:])


def run(app: App, tokens: list[str]) -> None:
    """Run `app`, with the errors of its users as one line on stderr."""
    try:
        tokens = _read_config_flag(app, tokens)
        app(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(" ".join(str(error).split()), 2)
    except UserError as error:
        _fail(str(error), 2)
    except RunStoppedError as error:
        _fail(str(error), 1)
    except Interrupted as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped by SIGINT", 130)


def _read_config_flag(app: App, tokens: list[str]) -> list[str]:
    """Take `--config FILE` out of the tokens; its keys become defaults under the flags."""
    for k, token in enumerate(tokens):
        flag, _, value = token.partition("=")
        if flag == "--config":
            rest = k + 1 if value else k + 2
            path = Path(value or "".join(tokens[k + 1 : k + 2]))
            if not path.is_file():
                raise UserError(f"--config names {str(path)!r}; expected a TOML file")
            app.config = (Toml(path, use_commands_as_keys=False),)
            return tokens[:k] + tokens[rest:]
    return tokens


def _fail(line: str, exit_code: int) -> NoReturn:
    """Say it and leave at once: pool threads may still be waiting for a slow server."""
    print(f"mutagym: {line}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _version() -> str:
    from importlib.metadata import version

    return version("mutagym")


__package_help__: Any = (
    "Train a policy to reword queries so that a language model you run with Ollama answers them well."
)

if __name__ == "__main__":
    main()
