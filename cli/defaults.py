"""Settings for the flags that the user left out: of `--config FILE`, then a run, then a preset.

A file of `--config` is the user's own word. A run folder is not: what `--resume RUN`, `-p RUN`,
`-m RUN`, `--run RUN` and `mutagym replay RUN` take over comes through here before anything is
imported, opened or called, and `records.trust` says what of it may be used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cyclopts import UNSET
from cyclopts.config import Dict

from records.errors import UserError
from records.run_folder import COMMAND_KEYS, CONFIG, COPIED, MISSIONS, QUERIES, check_is_run
from records.settings import COMMA_LISTS, PLACES, as_texts, read_toml, resolved
from records.terminal import one_line, write_stderr
from records.trust import check_named, kind_of, untrusted_flags

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument, ArgumentCollection

RUN = "RUN"
"""The argument of `mutagym replay`, `rescore` and `proxy`."""
HOST = "ollama-host"
Values = dict[str, list[str]]
"""The values of flags, as text; the flags are without their dashes."""
Fill = Callable[[str, Mapping[str, Any]], dict[str, "Argument"]]
"""Gives the arguments without a value that of a table, whose source is named; returns those."""


class RunSettings(NamedTuple):
    """What a command takes over from a run."""

    run: Path
    table: Mapping[str, Any]
    """Keyed as flags are."""
    copied: Collection[str] = ()
    """Flags of files that the command takes from the folder itself, whatever they name."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Fills in the flags that the user left out, as a config of cyclopts.

    Args:
        file: that of `--config`.
        trusted: whether the user said --trust-run.
    """

    file: Path | None = None
    trusted: bool = False

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill them in.

        Raises:
            UserError: the file or the run cannot be used, or the run names code, hosts or files
                that the user did not.
        """

        def fill(source: str, table: Mapping[str, Any]) -> dict[str, Argument]:
            fill_in = Dict(dict(table), source=source, use_commands_as_keys=False)
            fill_in(app, commands, arguments)
            filled = [
                argument
                for argument in arguments
                if any(token.source == source for token in argument.tokens)
            ]
            return {_flag(argument): argument for argument in filled}

        command = commands[0] if commands else "train"
        is_resumed = bool(_values(arguments).get("resume"))
        if self.file and is_resumed:
            raise UserError(
                "--config and --resume cannot stand together: a run has its own config.toml"
            )
        if self.file:
            _fill_from_file(self.file, fill)
        said = _values(arguments)
        taken = _of_resumed(command, said) if is_resumed else _of_run(command, said)
        if taken:
            self._check(taken, fill(f"the run {taken.run}", taken.table))
        missions = self._check_missions(taken if is_resumed else None, command, said)
        if self.trusted and not (taken or missions):
            raise UserError(
                "--trust-run is for a run that --resume, --run, -p, -m or RUN names, and none is "
                "named: leave it out"
            )
        if command == "evolve":
            from search.evolution_config import preset_defaults

            preset = next(iter(said.get("preset", ())), None)
            fill(f"--preset {preset}", preset_defaults(preset))

    def _check(self, taken: RunSettings, filled: Mapping[str, Argument]) -> None:
        """Check the settings of a run; its host is left out where OLLAMA_HOST names one."""
        found = {flag: _texts(argument) for flag, argument in filled.items()}
        found = _not_copied(taken.run, found, taken.copied)
        hosts = [host for host in found.get(HOST, ()) if kind_of(HOST, host)]
        own_host = os.environ.get("OLLAMA_HOST")
        is_left_out = bool(hosts and own_host) and not self.trusted
        if is_left_out:
            del found[HOST]
            filled[HOST].tokens.clear()
        check_named(taken.run, found, trusted=self.trusted)
        if is_left_out and hosts != [own_host]:
            run = str(taken.run)
            write_stderr(f"note: OLLAMA_HOST is called, not the hosts of the run {run!r}")

    def _check_missions(self, resumed: RunSettings | None, command: str, said: Values) -> bool:
        """Check what the missions of run folders name; returns whether `-m` names a run.

        A mission's settings come before the command's flags, so what it names is named by the user
        where a flag says the very same, or a mission in a file of the user's own.
        """
        if command != "eval":
            return False
        from evaluation import missions

        texts = said.get("mission", [])
        runs = [run for run in map(missions.mission_run, texts) if run]
        keys = missions.mission_settings()
        tables = {run: [missions.defaults_of_run(run, keys)] for run in runs}
        own: list[Mapping[str, Any]] = [said]
        if resumed:
            tables = {resumed.run: list(missions.recorded_tables(resumed.run).values())}
            own += [
                missions.mission_table(text) for text in texts if not missions.mission_run(text)
            ]
        for run, of_run in tables.items():
            left: Values = {}
            for table in of_run:
                for flag, value in _not_copied(run, table, COPIED if resumed else ()).items():
                    named = [text for each in own for text in as_texts(each.get(flag))]
                    named += [str(Path(text).absolute()) for text in named]
                    values = as_texts(value)
                    if any(kind_of(flag, text) and text not in named for text in values):
                        left[flag] = list(dict.fromkeys([*left.get(flag, ()), *values]))
            check_named(run, left, trusted=self.trusted)
        return bool(runs)


def _fill_from_file(file: Path, fill: Fill) -> None:
    """Take over the flags of `--config`, and say what code and hosts they bring."""
    if not file.exists() or file.is_dir():
        raise UserError(f"--config names {str(file)!r}; expected a TOML file")
    filled = fill(str(file.absolute()), read_toml(file))
    found = {flag: _texts(argument) for flag, argument in filled.items()}
    if named := untrusted_flags(found, ("code", "hosts")):
        write_stderr(f"config: {one_line(str(file))!r} brings {named}")


def _of_resumed(command: str, said: Values) -> RunSettings:
    """All settings of a run of the same command, which is to go on."""
    run = Path(said["resume"][0])
    check_is_run(run)
    table = read_toml(run / CONFIG)
    key = COMMAND_KEYS.get(command)
    others = [each for each, own in COMMAND_KEYS.items() if own in table]
    if key and key not in table and others:
        raise UserError(
            f"--resume names {str(run)!r}, a run of `mutagym {others[0]}`: go on with that command"
        )
    return RunSettings(run, table, COPIED)


def _of_run(command: str, said: Values) -> RunSettings | None:
    """What a command takes over from a run that one of its flags, or its argument, names."""
    if command in {"eval", "ask", "proxy"}:
        # Here, because Gymnasium takes longer to import than the help of another command may.
        from evaluation.missions import defaults_of_run, run_keys, run_path

        named = said.get("policy", ()) or said.get(RUN, ())
        run = next(filter(None, map(run_path, named)), None)
        return RunSettings(run, defaults_of_run(run, run_keys(command))) if run else None
    flag = {"evolve": "run", "replay": RUN, "rescore": RUN}.get(command, "")
    if not (paths := said.get(flag)):
        return None
    run = Path(paths[0])
    check_is_run(run, RUN if flag == RUN else f"--{flag}")
    if command == "evolve":
        from search.mutator_task import settings_of_run

        return RunSettings(run, settings_of_run(run))
    table = read_toml(run / CONFIG)
    kept = _of_replayed(run, table) if command == "replay" else _of_rescored(run, table, said)
    return RunSettings(run, kept, ("queries", "guard-queries"))


def _of_replayed(run: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """What a replay takes over: all that decides the run but the hosts, for nobody is called."""
    from evaluation.missions import MODELS
    from ollama_utils.connect import ServerConfig

    if COMMAND_KEYS["train"] not in table:
        raise UserError(
            f"{str(run)!r} is no run of `mutagym train`, and no other is replayed: its own command "
            "goes over it again with --resume, from the same log"
        )
    decides = {*MODELS, "mutator-think", "judge-think", "think-budget"}
    left_out = ({*resolved(ServerConfig())} - decides) | PLACES | {"judge-accuracy"}
    return {key: value for key, value in table.items() if key not in left_out}


def _of_rescored(run: Path, table: Mapping[str, Any], said: Values) -> dict[str, Any]:
    """What scoring a run again takes over: how it scored, less the reward; for a judge its server.

    What the missions of an evaluation say comes before its flags.
    """
    from evaluation.missions import recorded_tables
    from ollama_utils.connect import ServerConfig

    keys = {"intent-threshold", "step-cost", "seed"}
    of_server: Collection[str] = ()
    if said.get("reward") == ["judge"] or said.get("intent-judge"):
        keys |= {"num-ctx", "judge-model"}
        of_server = resolved(ServerConfig())
    kept = {key: value for key, value in table.items() if key in {*keys, *of_server}}
    missions = recorded_tables(run) if (run / MISSIONS).exists() else {}
    for key in sorted(key for key in keys if not said.get(key)):
        found = {name: table[key] for name, table in missions.items() if key in table}
        if len(set(found.values())) > 1:
            values = ", ".join(f"{value!r} in {name!r}" for name, value in found.items())
            raise UserError(
                f"the missions of {str(run)!r} differ in --{key}: {values}; say which with --{key}"
            )
        if found:
            kept[key] = next(iter(found.values()))
    return {key: value for key, value in kept.items() if value is not None}


def _not_copied(run: Path, table: Mapping[str, Any], copied: Collection[str]) -> dict[str, Any]:
    """The settings but for files that are taken from the folder itself."""
    is_own = as_texts(table.get("queries")) == [str((run / QUERIES).absolute())]
    own = {*copied, "queries"} if is_own else {*copied}
    return {flag: value for flag, value in table.items() if flag not in own}


def _flag(argument: Argument) -> str:
    return argument.name.removeprefix("--")


def _values(arguments: ArgumentCollection) -> Values:
    """The values so far."""
    return {_flag(argument): _texts(argument) for argument in arguments}


def _texts(argument: Argument) -> list[str]:
    """The values of an argument as they will be used: those of a list by comma one by one."""
    values = [
        token.value if token.implicit_value is UNSET else str(token.implicit_value)
        for token in argument.tokens
        if token.implicit_value not in ([], (), None)  # an empty list of a file
    ]
    if _flag(argument) not in COMMA_LISTS:
        return values
    return [part.strip() for value in values for part in value.split(",")]
