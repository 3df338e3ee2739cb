"""The `mutagym` command: its commands, and what every one of them takes and returns."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr
from enum import IntEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from cli.defaults import Defaults
from ollama_utils.errors import EncodingError, OllamaError, OutageError
from ollama_utils.types import is_text
from records.errors import GateNotMetError, RunStoppedError, UserError, describe
from records.interrupt import Interrupted
from records.settings import with_flags
from records.terminal import one_line, write_stderr

SUMMARY = (
    "Train a policy to reword queries so that a language model you run with Ollama answers well."
)

SHARED = Group("Every command", sort_key=100)


class ExitCode(IntEnum):
    """What the exit code of a command says.

    A signal ends a run with 128 + its number: 129 a closed terminal, 130 Ctrl-C, 143 SIGTERM.
    """

    DONE = 0
    STOPPED = 1
    """The run stopped itself, saved; or a server went away."""
    USER_ERROR = 2
    """Something that the user can mend."""
    OUTAGE = 3
    """No server was there for longer than --max-outage; the run is saved."""
    GATE_NOT_MET = 4
    """The report is written, and a bound of the user's is not kept (`eval --fail-under`, ...)."""
    PIPE_CLOSED = 141
    """Nobody reads the output any more: 128 + SIGPIPE."""


CODES: Mapping[type[BaseException], ExitCode] = {
    CycloptsError: ExitCode.USER_ERROR,
    UserError: ExitCode.USER_ERROR,
    OutageError: ExitCode.OUTAGE,
    RunStoppedError: ExitCode.STOPPED,
    GateNotMetError: ExitCode.GATE_NOT_MET,
    OSError: ExitCode.USER_ERROR,  # a full disk, a folder that may not be written
    OllamaError: ExitCode.STOPPED,
    EncodingError: ExitCode.STOPPED,
}
"""What an error means; the first one that fits."""
NAMED = (OSError, OllamaError, EncodingError)
"""Errors whose message does not say what kind they are."""

COMMANDS = {
    "train": "Train a policy to choose how a query is reworded; --config FILE has its flags",
    "headroom": "Measure whether a policy is worth training, before it is trained",
    "eval": "Compare policies on held-out queries, several missions, episodes and agents at once",
    "ask": "Reword a query as a trained policy does, ask the target, show what came of it",
    "proxy": "Serve your model, the last user message reworded by a trained policy; both APIs",
    "judge": "Label completions as answered or refused, and compare that with people's labels",
    "evolve": "Evolve a system prompt for a task: a genetic search, many calls at once",
    "select": "Select the best of all combinations of models, prompts and mutators for a task",
    "optimize": "Learn which system prompt suits which question, while the prompts evolve",
    "replay": "Play a training run again from its log, with no server, and compare bit for bit",
    "rescore": "Score the stored steps of a run again, by another scorer; the target is not asked",
    "bench": "Time the same rollout under each schedule, on one server",
    "doctor": "Test whether a server does what it says, and what that means for a run",
    "report": "Make a page to look at of any run folders: one HTML file that needs no network",
    "serve": "Serve the simulator: an Ollama-compatible server without a model",
}


def execute(arguments: Sequence[str]) -> int:
    """Run `mutagym` with these arguments; returns the exit code, the error said on stderr."""
    return _run(make_app(), list(arguments))


def execute_one(command: Callable[..., None], arguments: Sequence[str]) -> int:
    """Run one command as a script of its own; returns the exit code."""
    app = App(help=command.__doc__)
    app.default(command)
    return _run(app, list(arguments))


def make_app() -> App:
    """The command line, its commands not imported yet."""
    app = App(name="mutagym", help=SUMMARY, version=lambda: version("mutagym"))
    for name, summary in COMMANDS.items():
        function = "evaluate" if name == "eval" else name  # `eval` is Python's own
        app.command(f"cli.{name}:{function}", name=name, help=summary)
    app.register_install_completion_command(
        help="Install completion for your shell (bash, zsh or fish)."
    )
    return app


def _run(app: App, tokens: list[str]) -> int:
    """Run `app`; what its users can mend, or what stopped it, becomes one line on stderr."""

    @app.meta.default
    def with_shared_flags(
        *tokens: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
        config: Annotated[Path | None, Parameter(group=SHARED)] = None,
        quiet: Annotated[bool, Parameter(group=SHARED, negative="")] = False,
        trust_run: Annotated[bool, Parameter(group=SHARED, negative="")] = False,
    ) -> None:
        """Take the flags that every command has, and call it.

        Args:
            tokens: the command, and its own.
            config: Read flags from this TOML file; flags on the command line override it.
            quiet: No progress and no notes: results and errors only.
            trust_run: Use the code, hosts and files that a run folder names.
        """
        app.config = (Defaults(file=config, trusted=trust_run),)
        with ExitStack() as stack:
            if quiet:
                nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                stack.enter_context(redirect_stderr(nowhere))
            _call(app, list(tokens))

    try:
        if unfit := next((token for token in tokens if not is_text(token)), None):
            raise UserError(f"the argument {unfit!r} is not valid UTF-8: write it in UTF-8")
        _call(app.meta, tokens)
        sys.stdout.flush()
    except Interrupted as error:
        line, code = str(error), error.exit_code
    except (BrokenPipeError, SystemExit) as error:
        unread = _unread()
        for stream in unread:  # what it still holds is not wanted either
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        by_rich = isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
        if unread or by_rich:  # rich has put stdout aside
            return ExitCode.PIPE_CLOSED
        line, code = describe(error), ExitCode.STOPPED  # of a user's own code
    except tuple(CODES) as error:
        code = next(code for kind, code in CODES.items() if isinstance(error, kind))
        line = describe(error) if isinstance(error, NAMED) else str(error)
    else:
        return ExitCode.DONE
    write_stderr(f"mutagym: {one_line(line)}")
    return code


def _unread() -> list[int]:
    """Which of stdout and stderr have a reader that has seen enough, as `head` has."""
    poll = select.poll()
    for stream in (1, 2):
        poll.register(stream, 0)  # errors are reported without being asked for
    return [stream for stream, _ in poll.poll(0)]


def _call(app: App, tokens: list[str]) -> None:
    """Parse the tokens and call what they name; what a config refuses is the user's error."""
    try:
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        raise UserError(
            f"unexpected {words!r}: a flag has one value, and --help shows all"
        ) from error
    except ValueError as error:
        raise UserError(with_flags(error)) from error
    command(*bound.args, **bound.kwargs)
