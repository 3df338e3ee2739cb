"""The `mutagym` command: finds the subcommand, reads config files, turns a user's error into one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from enum import IntEnum
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError
from cyclopts.config import Dict

from cli.run_defaults import COPIED, ConfigFile, RunArgument, RunDefaults, RunMissions
from ollama_utils.errors import EncodingError, OllamaError, OutageError
from ollama_utils.types import is_text
from records.errors import GateNotMetError, RunStoppedError, UserError
from records.interrupt import Interrupted
from records.run_folder import COMMAND_KEYS, CONFIG, check_is_run
from records.settings import read_toml, with_flags
from records.terminal import one_line, write_stderr

SUMMARY = "Train a policy to reword queries so that a language model you run with Ollama answers them well."
TRUST = "--trust-run"
"""The code, hosts and files that a run folder names are used."""
QUIET = "--quiet"
"""Nothing is printed but results and errors."""
EPILOGUE = (
    f"Every command takes {QUIET}, too: no progress and no notes, results and errors only. Flags can stand "
    f"in a TOML file, --config FILE; {TRUST} uses the code, hosts and files that a run folder names."
)


class ExitCode(IntEnum):
    """What the exit code of a command says.

    A signal ends a run with 128 + its number: 129 a closed terminal, 130 Ctrl-C, 143 SIGTERM.
    """

    DONE = 0
    STOPPED = 1
    """The run stopped itself, saved."""
    USER_ERROR = 2
    """Something that the user can mend."""
    OUTAGE = 3
    """No server was there for longer than --max-outage; the run is saved."""
    GATE_NOT_MET = 4
    """The report is written, and a bound that the user set is not kept (`eval --fail-under`, ...)."""
    PIPE_CLOSED = 141
    """Nobody reads the output any more: 128 + SIGPIPE."""


COMMANDS = {
    "train": (
        "cli.train:train",
        "Train a policy to choose how a query is reworded; --config FILE reads flags from TOML",
    ),
    "eval": (
        "cli.eval:evaluate",
        "Compare policies on held-out queries, several missions, episodes and agents at once",
    ),
    "ask": ("cli.ask:ask", "Reword a query as a trained policy does, ask the target, show what came of it"),
    "proxy": (
        "cli.proxy:proxy",
        "Serve your model with the last user message reworded by a trained policy; Ollama's and OpenAI's API",
    ),
    "judge": (
        "cli.judge:judge",
        "Label completions as answered or refused, and say how far that agrees with people's labels",
    ),
    "evolve": (
        "cli.evolve:evolve",
        "Evolve a system prompt for a task: a genetic search, many calls at once",
    ),
    "select": (
        "cli.select:select",
        "Select the best of all combinations of models, system prompts and mutators for a task",
    ),
    "optimize": (
        "cli.optimize:optimize",
        "Learn which system prompt suits which question: candidates, critics, an actor, prompts that evolve",
    ),
    "replay": (
        "cli.replay:replay",
        "Play a training run again from its log of replies, with no server, and compare bit for bit",
    ),
    "rescore": (
        "cli.rescore:rescore",
        "Score the stored steps of a run again, by another scorer or judge; the target is not asked again",
    ),
    "bench": ("cli.bench:bench", "Time the same rollout under each schedule, on one server"),
    "doctor": (
        "cli.doctor:doctor",
        "Tell what a server can do, how fast a run on it would be, and what would make it faster",
    ),
    "report": (
        "cli.report:report",
        "Make a page to look at of any run folders: one HTML file that needs no network",
    ),
    "serve": ("cli.serve:serve", "Serve the simulator: an Ollama-compatible server without a model"),
}


def execute(arguments: Sequence[str]) -> int:
    """Run `mutagym` with these arguments; returns the exit code, the error said on stderr."""
    app = App(name="mutagym", help=SUMMARY, help_epilogue=EPILOGUE, version=_version)
    for name, (target, summary) in COMMANDS.items():
        app.command(target, name=name, help=summary)
    app.register_install_completion_command(help="Install completion for your shell (bash, zsh or fish).")
    return run(app, list(arguments))


def execute_one(command: Callable[..., None], arguments: Sequence[str]) -> int:
    """Run one command as a script of its own; returns the exit code."""
    app = App(help=command.__doc__, help_epilogue=EPILOGUE)
    app.default(command)
    return run(app, list(arguments))


def run(app: App, tokens: list[str]) -> int:
    """Run `app`; what its users can mend, and what stopped it, becomes one line on stderr."""
    code: int
    try:
        _check_text(tokens)
        tokens, quiet = _switched(tokens, QUIET)
        with _stderr(silent=quiet):
            _call(app, _read_defaults(app, tokens))
        sys.stdout.flush()
    except (CycloptsError, UserError) as error:
        line, code = str(error), ExitCode.USER_ERROR
    except OutageError as error:
        line, code = str(error), ExitCode.OUTAGE
    except RunStoppedError as error:
        line, code = str(error), ExitCode.STOPPED
    except GateNotMetError as error:
        line, code = str(error), ExitCode.GATE_NOT_MET
    except Interrupted as error:
        line, code = str(error), error.exit_code
    except (BrokenPipeError, SystemExit):  # its reader has seen enough, as with `| head`; rich exits then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PIPE_CLOSED
    except OSError as error:  # a full disk, a folder that may not be written
        line, code = f"{type(error).__name__}: {error}", ExitCode.USER_ERROR
    except (OllamaError, EncodingError) as error:  # a server that went away
        line, code = f"{type(error).__name__}: {error}", ExitCode.STOPPED
    else:
        return ExitCode.DONE
    write_stderr(f"mutagym: {one_line(line)}")
    return code


def _needed(error: MissingArgumentError) -> str:
    """What is missing; a flag without its value is named by the error itself."""
    if error.argument is None or error.argument.tokens or error.keyword:
        return str(error)
    command = " ".join(error.command_chain or ())
    return f"{command} needs {error.argument.name}: mutagym {command} --help tells what that is"


@contextmanager
def _stderr(*, silent: bool) -> Iterator[None]:
    """Whoever writes to stderr within `with` (progress, notes, warnings) is heard, or not."""
    if not silent:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8", errors="replace") as nowhere, redirect_stderr(nowhere):  # noqa: PTH123 - a device
        yield


def _call(app: App, tokens: list[str]) -> None:
    """Parse the tokens and call what they name; a value that a config refuses is the user's error."""
    try:
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        raise UserError(_needed(error)) from error
    except CycloptsError:
        raise
    except ValueError as error:
        raise UserError(with_flags(error)) from error
    command(*bound.args, **bound.kwargs)


def _check_text(tokens: Sequence[str]) -> None:
    """Refuse what could not be written down again."""
    for token in tokens:
        if not is_text(token):
            raise UserError(f"the argument {token!r} is not valid UTF-8: write it in UTF-8")


def _read_defaults(app: App, tokens: list[str]) -> list[str]:
    """Make the keys of `--config FILE`, or those of the run that `--resume` names, defaults under the flags.

    Under these come those that `--policy` or `--preset` sets. `--config` and `--trust-run` are taken out of
    the tokens; neither can stand in a file.
    """
    tokens, trusted = _switched(tokens, TRUST)
    rest, named = _taken(tokens, "--config")
    _, resumed = _taken(tokens, "--resume")
    if named and resumed:
        raise UserError("--config and --resume cannot stand together: a run has its own config.toml")
    table: dict[str, Any] = {}
    layers: list[Callable[..., None]] = []
    run = Path(resumed[0]) if resumed else None
    if run:
        check_is_run(run)
        table = read_toml(run / CONFIG)
        _check_kind(tokens[0], run, table)
        layers.append(RunDefaults(run=run, table=table, trusted=trusted, copied=COPIED))
    elif named:
        if not (path := Path(named[0])).exists() or path.is_dir():
            raise UserError(f"--config names {str(path)!r}; expected a TOML file")
        table = read_toml(path)
        layers.append(ConfigFile(path=path, table=table))
    if not run and rest:
        layers += _command_defaults(rest, table, trusted=trusted)
    if rest[:1] == ["eval"]:
        layers.append(RunMissions(resumed=run, trusted=trusted))
    if rest[:1] in (["replay"], ["rescore"]):
        layers.append(RunArgument(trusted=trusted))
    if trusted and not any(isinstance(layer, RunDefaults | RunMissions | RunArgument) for layer in layers):
        raise UserError(
            f"{TRUST} is for a run that --resume, --run, -p, -m or RUN names, and none is named: leave it out"
        )
    app.config = tuple(layers)
    return rest


def _command_defaults(
    tokens: list[str], table: Mapping[str, Any], *, trusted: bool
) -> list[Callable[..., None]]:
    """The defaults that a flag of the command sets for others."""
    if tokens[0] == "evolve":
        from cli.evolve import preset_defaults, settings_of_run

        preset, run = (
            named[0] if (named := _taken(tokens, f"--{flag}")[1]) else table.get(flag)
            for flag in ("preset", "run")
        )
        defaults = preset_defaults(preset if isinstance(preset, str) else None)
        layers: list[Callable[..., None]] = []
        if isinstance(run, str):
            kept = settings_of_run(Path(run))
            layers.append(RunDefaults(run=Path(run), table=kept, trusted=trusted))
        return [*layers, Dict(defaults, source=f"--preset {preset}", use_commands_as_keys=False)]
    if tokens[0] in {"eval", "ask", "proxy"}:
        # Here, because Gymnasium takes longer to import than the help of another command may.
        from evaluation.missions import defaults_of_run, run_keys, run_named

        if run := run_named(tokens, table):
            return [RunDefaults(run=run, table=defaults_of_run(run, run_keys(tokens[0])), trusted=trusted)]
    return []


def _check_kind(command: str, run: Path, table: Mapping[str, Any]) -> None:
    """Check that a command goes on with a run of its own."""
    key = COMMAND_KEYS.get(command)
    others = [each for each, own in COMMAND_KEYS.items() if own in table]
    if key and key not in table and others:
        raise UserError(
            f"--resume names {str(run)!r}, a run of `mutagym {others[0]}`: go on with that command"
        )


def _switched(tokens: list[str], flag: str) -> tuple[list[str], bool]:
    """The tokens without a flag that has no value, and whether it is there."""
    end = tokens.index("--") if "--" in tokens else len(tokens)
    rest = [token for token in tokens[:end] if token != flag]
    return rest + tokens[end:], len(rest) < end


def _taken(tokens: list[str], flag: str) -> tuple[list[str], list[str]]:
    """The tokens without a flag that has a value, and its value, if it is there.

    Raises:
        UserError: it is there twice.
    """
    places = [k for k, token in enumerate(tokens) if token.partition("=")[0] == flag]
    if not places:
        return tokens, []
    if len(places) > 1:
        raise UserError(f"{flag} is given twice; expected it once")
    _, equals, value = tokens[places[0]].partition("=")
    end = places[0] + (1 if equals else 2)
    value = value if equals else "".join(tokens[places[0] + 1 : end])
    return tokens[: places[0]] + tokens[end:], [value]


def _version() -> str:
    from importlib.metadata import version

    return version("mutagym")
