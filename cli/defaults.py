"""Settings for the flags that the user left out: of `--config FILE`, then a run, then a preset.

A file of `--config` is the user's own word. A run folder is not: what `--resume RUN`, `-p RUN`,
`-m RUN`, `--run RUN` and `mutagym replay RUN` take over comes through here before anything is
imported, opened or called, and `records.trust` says what of it may be used.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cyclopts import UNSET
from cyclopts.config import Dict

from records.errors import UserError
from records.run_folder import COMMAND_KEYS, CONFIG, MISSIONS, QUERIES, check_is_run
from records.settings import COMMA_LISTS, PLACES, as_texts, read_toml, resolved
from records.terminal import one_line, write_stderr
from records.trust import check_named, kind_of, untrusted_flags

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument, ArgumentCollection

RUN = "RUN"
"""The argument of `mutagym replay`, `rescore` and `proxy`."""
TRUST = "--trust-run"
COPIED = ("queries", "guard-queries", "mission")
"""Flags of files that a run folder has a copy of: on --resume nothing is read where they point."""
_HOST = "ollama-host"


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
        command = commands[0] if commands else "train"
        resumed = next(iter(_said(arguments).get("resume", ())), None)
        if self.file and resumed:
            raise UserError(
                "--config and --resume cannot stand together: a run has its own config.toml"
            )
        if self.file:
            if not self.file.exists() or self.file.is_dir():
                raise UserError(f"--config names {str(self.file)!r}; expected a TOML file")
            source = str(self.file.absolute())
            filled = _fill(source, read_toml(self.file), app, commands, arguments)
            settings = {flag: _values(argument) for flag, argument in filled.items()}
            if brought := untrusted_flags(settings, ("code", "hosts")):
                write_stderr(f"config: {one_line(str(self.file))!r} brings {brought}")
        said = _said(arguments)
        taken = _of_resumed(command, Path(resumed)) if resumed else _of_run(command, said)
        if taken:
            self._take(taken, app, commands, arguments)
        has_missions = command == "eval" and self._check_missions(taken, resumed, said, arguments)
        if self.trusted and not (taken or has_missions):
            raise UserError(
                f"{TRUST} is for a run that --resume, --run, -p, -m or RUN names, and none is "
                "named: leave it out"
            )
        if command == "evolve":
            from search.evolution_config import preset_defaults

            preset = next(iter(said.get("preset", ())), None)
            _fill(f"--preset {preset}", preset_defaults(preset), app, commands, arguments)

    def _take(
        self,
        taken: RunSettings,
        app: App,
        commands: tuple[str, ...],
        arguments: ArgumentCollection,
    ) -> None:
        """Fill in the settings of a run.

        A host that the run names is left out where OLLAMA_HOST names one; of another one a note
        says so.
        """
        run = taken.run
        filled = _fill(_source(run), taken.table, app, commands, arguments)
        values = {flag: _values(argument) for flag, argument in filled.items()}
        settings = _not_copied(run, values, taken.copied)
        hosts = [host for host in settings.get(_HOST, ()) if kind_of(_HOST, host)]
        own_host = os.environ.get("OLLAMA_HOST")
        is_left_out = bool(hosts and own_host) and not self.trusted
        if is_left_out:
            del settings[_HOST]
            filled[_HOST].tokens.clear()
        check_named(run, settings, trusted=self.trusted)
        if is_left_out and hosts != [own_host]:
            write_stderr(f"note: OLLAMA_HOST is called, not the hosts of the run {str(run)!r}")

    def _check_missions(
        self,
        taken: RunSettings | None,
        resumed: str | None,
        said: Mapping[str, Sequence[str]],
        arguments: ArgumentCollection,
    ) -> bool:
        """Check what the missions of run folders name; returns whether there are any.

        A mission's settings come before the command's flags, so what it names is named by the user
        where a flag says the very same, or a mission in a file of the user's own.
        """
        from evaluation.missions import (
            defaults_of_run,
            mission_run,
            mission_settings,
            mission_table,
            recorded_tables,
        )

        texts: list[Mapping[str, Any]] = [said]
        runs: dict[Path, tuple[list[dict[str, Any]], Collection[str]]]
        if taken and resumed:
            mission = next(each for each in arguments if _flag(each) == "mission")
            own = _values(mission, but=_source(taken.run))
            texts += [mission_table(text) for text in own if not mission_run(text)]
            runs = {taken.run: (list(recorded_tables(taken.run).values()), COPIED)}
        else:
            named = filter(None, map(mission_run, said.get("mission", ())))
            runs = {run: ([defaults_of_run(run, mission_settings())], ()) for run in named}
        for run, (missions, copied) in runs.items():
            left: dict[str, list[str]] = {}
            for table in missions:
                for flag, value in _not_copied(run, table, copied).items():
                    values = as_texts(value)
                    if not all(
                        _is_said(text, flag, texts) for text in values if kind_of(flag, text)
                    ):
                        left[flag] = list(dict.fromkeys([*left.get(flag, ()), *values]))
            check_named(run, left, trusted=self.trusted)
        return bool(runs)


def _of_resumed(command: str, run: Path) -> RunSettings:
    """All settings of a run of the same command, which is to go on.

    Raises:
        UserError: there is no such run.
    """
    check_is_run(run)
    table = read_toml(run / CONFIG)
    key = COMMAND_KEYS.get(command)
    others = [each for each, own in COMMAND_KEYS.items() if own in table]
    if key and key not in table and others:
        raise UserError(
            f"--resume names {str(run)!r}, a run of `mutagym {others[0]}`: go on with that command"
        )
    return RunSettings(run, table, COPIED)


def _of_run(command: str, said: Mapping[str, Sequence[str]]) -> RunSettings | None:
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
    table = read_toml(run / CONFIG)
    if command == "evolve":
        from search.mutator_task import settings_of_run

        return RunSettings(run, settings_of_run(run))
    of_it = _of_replayed(run, table) if command == "replay" else _of_rescored(run, table, said)
    return RunSettings(run, of_it, ("queries",))


def _of_replayed(run: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """What a replay takes over: all that decides the run but the hosts, for nobody is called."""
    from evaluation.missions import MODELS
    from ollama_utils.connect import ServerConfig

    if COMMAND_KEYS["train"] not in table:
        raise UserError(
            f"{str(run)!r} is no run of `mutagym train`, and no other is replayed: its own command "
            "goes over it again with --resume, from the same log"
        )
    places = {name.replace("_", "-") for name in PLACES}
    left_out = ({*resolved(ServerConfig())} - {*MODELS}) | places | {"judge-accuracy"}
    return {key: value for key, value in table.items() if key not in left_out}


def _of_rescored(
    run: Path, table: Mapping[str, Any], said: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """What scoring a run again takes over: how it scored, less the reward; for a judge its server.

    What the missions of an evaluation say comes before its flags.

    Raises:
        UserError: they do not say the same, or missions.json is damaged.
    """
    from evaluation.missions import recorded_tables
    from ollama_utils.connect import ServerConfig

    keys, of_server = {"intent-threshold", "step-cost", "seed"}, set[str]()
    if said.get("reward") == ["judge"] or said.get("intent-judge"):
        keys |= {"num-ctx", "judge-model"}
        of_server = {*resolved(ServerConfig())}
    kept = {key: value for key, value in table.items() if key in keys | of_server}
    missions = recorded_tables(run) if (run / MISSIONS).exists() else {}
    for key in sorted(keys - {flag for flag, values in said.items() if values}):
        found = {name: table[key] for name, table in missions.items() if key in table}
        if len(set(found.values())) > 1:
            values = ", ".join(f"{value!r} in {name!r}" for name, value in found.items())
            raise UserError(
                f"the missions of {str(run)!r} differ in --{key}: {values}; say which with --{key}"
            )
        kept |= dict.fromkeys([key] if found else [], next(iter(found.values()), None))
    return {key: value for key, value in kept.items() if value is not None}


def _fill(
    source: str,
    table: Mapping[str, Any],
    app: App,
    commands: tuple[str, ...],
    arguments: ArgumentCollection,
) -> dict[str, Argument]:
    """Give arguments without a value that of the table; returns those that got one, by flags."""
    Dict(dict(table), source=source, use_commands_as_keys=False)(app, commands, arguments)
    return {
        _flag(argument): argument
        for argument in arguments
        if any(token.source == source for token in argument.tokens)
    }


def _source(run: Path) -> str:
    """What cyclopts calls the origin of a run's settings."""
    return f"the run {run}"


def _not_copied(run: Path, table: Mapping[str, Any], copied: Collection[str]) -> dict[str, Any]:
    """The settings but for files that are taken from the folder itself."""
    is_own = as_texts(table.get("queries")) == [str((run / QUERIES).absolute())]
    own = {*copied, "queries"} if is_own else {*copied}
    return {flag: value for flag, value in table.items() if flag not in own}


def _is_said(text: str, flag: str, said: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the user's values is this one, be it a path that is written otherwise."""
    values: Iterator[str] = (value for each in said for value in as_texts(each.get(flag)))
    return any(text in {value, str(Path(value).absolute())} for value in values)


def _flag(argument: Argument) -> str:
    return argument.name.removeprefix("--")


def _said(arguments: ArgumentCollection) -> dict[str, list[str]]:
    """The values so far, by flags."""
    return {_flag(argument): _values(argument) for argument in arguments}


def _values(argument: Argument, *, but: str = "") -> list[str]:
    """The values of an argument as they will be used: those of a list by comma one by one.

    Args:
        argument: it.
        but: an origin, whose values are left out.
    """
    values = [
        token.value if token.implicit_value is UNSET else str(token.implicit_value)
        for token in argument.tokens
        if token.implicit_value not in ([], (), None)  # an empty list of a file
        and not (but and token.source == but)
    ]
    if _flag(argument) not in COMMA_LISTS:
        return values
    return [part.strip() for value in values for part in value.split(",")]
