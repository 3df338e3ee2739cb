"""Settings that a command takes from a file for the flags that the user left out.

A file of `--config` is the user's own word. A run folder is not: `--resume RUN`, `-p RUN`, `-m RUN`
and `mutagym replay RUN` all come through here, before anything is imported, opened or called, and
`records.trust` says what of their settings may be used.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import UNSET
from cyclopts.config import Dict

from records.errors import UserError
from records.run_folder import CONFIG, MISSIONS, QUERIES, check_is_run
from records.settings import COMMA_LISTS, PLACES, as_texts, read_toml, resolved
from records.terminal import one_line, write_stderr
from records.trust import check_named, kind_of, untrusted_flags

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument, ArgumentCollection

RUN = "RUN"
"""The argument of `mutagym replay` and `mutagym rescore`."""
COPIED = ("queries", "guard-queries", "mission")
"""Flags of files that a run folder has a copy of: on --resume nothing is read where they point."""
_HOST, _MISSION = "ollama-host", "mission"


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """The settings of `--config FILE`: a config of cyclopts.

    Args:
        path: the file.
        table: what it holds, keyed as flags are.
    """

    path: Path
    table: Mapping[str, Any]

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill in the settings, and say on stderr what code and hosts the file brings."""
        filled = _fill(str(self.path.absolute()), self.table, app, commands, arguments)
        settings = {flag: _values(argument) for flag, argument in filled.items()}
        if brought := untrusted_flags(settings, ("code", "hosts")):
            write_stderr(f"config: {one_line(str(self.path))!r} brings {brought}")


@dataclass(frozen=True, kw_only=True)
class RunDefaults:
    """The settings of a run for the flags that the user left out: a config of cyclopts.

    It stands behind what the user said, and sees what that left open.

    Args:
        run: the folder.
        table: its settings, keyed as flags are.
        trusted: whether the user said --trust-run.
        copied: flags of files that the command takes from the folder itself, whatever they name.
    """

    run: Path
    table: Mapping[str, Any]
    trusted: bool
    copied: Collection[str] = ()

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill in the settings.

        A host that the run names is left out where OLLAMA_HOST names one; of another one a note says so.

        Raises:
            UserError: the run names code, hosts or files that the user did not.
        """
        filled = _fill(_source(self.run), self.table, app, commands, arguments)
        settings = _not_copied(
            self.run, {flag: _values(argument) for flag, argument in filled.items()}, self.copied
        )
        hosts = [host for host in settings.get(_HOST, ()) if kind_of(_HOST, host)]
        own_host = os.environ.get("OLLAMA_HOST")
        is_left_out = bool(hosts and own_host) and not self.trusted
        if is_left_out:
            del settings[_HOST]
            filled[_HOST].tokens.clear()
        check_named(self.run, settings, trusted=self.trusted)
        if is_left_out and hosts != [own_host]:
            write_stderr(f"note: OLLAMA_HOST is called, not the hosts of the run {str(self.run)!r}")


@dataclass(frozen=True, kw_only=True)
class RunMissions:
    """Checks the missions of run folders, in `mutagym eval`: a config of cyclopts, the last one.

    A mission's settings come before the command's flags, so what it names is named by the user
    where a flag says the very same, or a mission in a file of the user's own.

    Args:
        resumed: the evaluation to go on with, which has a copy of its missions.
        trusted: whether the user said --trust-run.
    """

    resumed: Path | None
    trusted: bool

    def __call__(self, _app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Check them.

        Raises:
            UserError: one names what the user did not.
        """
        from evaluation.missions import (
            defaults_of_run,
            mission_run,
            mission_settings,
            mission_table,
            recorded_tables,
        )

        said = [{_flag(argument): _values(argument) for argument in arguments}]
        if self.resumed:
            mission = next(argument for argument in arguments if _flag(argument) == _MISSION)
            own = _values(mission, but=_source(self.resumed))
            said += [mission_table(text) for text in own if not mission_run(text)]
            tables = recorded_tables(self.resumed).values()
            self._check(self.resumed, tables, said, COPIED)
            return
        for text in said[0].get(_MISSION, ()):
            if run := mission_run(text):
                self._check(run, [defaults_of_run(run, mission_settings())], said)

    def _check(
        self,
        run: Path,
        missions: Iterable[Mapping[str, Any]],
        said: Sequence[Mapping[str, Any]],
        copied: Collection[str] = (),
    ) -> None:
        """Check what missions name, but for what is said."""
        left: dict[str, list[str]] = {}
        for mission in missions:
            for flag, value in _not_copied(run, mission, copied).items():
                texts = as_texts(value)
                if not all(_is_said(text, flag, said) for text in texts if kind_of(flag, text)):
                    left[flag] = list(dict.fromkeys([*left.get(flag, ()), *texts]))
        check_named(run, left, trusted=self.trusted)


@dataclass(frozen=True, kw_only=True)
class RunArgument:
    """The settings of the run that `mutagym replay` or `rescore` is given: a config of cyclopts.

    Where nobody is called, hosts and limits are left out, and so is always what says where things are kept.
    """

    trusted: bool

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill in the settings.

        Raises:
            UserError: there is no run, or none that this command takes; or it names code, hosts or files
                that the user did not.
        """
        named = next((argument for argument in arguments if argument.name == RUN and argument.tokens), None)
        if named is None:
            return  # cyclopts says so
        run = Path(named.tokens[0].value)
        check_is_run(run, RUN)
        said = {_flag(argument): _values(argument) for argument in arguments}
        table = read_toml(run / CONFIG)
        kept = _of_replayed(run, table) if commands == ("replay",) else _of_rescored(run, table, said)
        defaults = RunDefaults(run=run, table=kept, trusted=self.trusted, copied=("queries",))
        defaults(app, commands, arguments)


def _of_replayed(run: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """What a replay takes over from a run: all that decides it but the hosts, for nobody is called."""
    from evaluation.missions import MODELS
    from ollama_utils.connect import ServerConfig

    if "num-env-steps" not in table:
        raise UserError(
            f"{str(run)!r} is no run of `mutagym train`, and no other is replayed: its own command goes over "
            "it again with --resume, from the same log"
        )
    places = {name.replace("_", "-") for name in PLACES}
    left_out = ({*resolved(ServerConfig())} - {*MODELS}) | places | {"judge-accuracy"}
    return {key: value for key, value in table.items() if key not in left_out}


def _of_rescored(run: Path, table: Mapping[str, Any], said: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What scoring a run again takes over: how it scored, but for the reward; for a judge its server."""
    from ollama_utils.connect import ServerConfig

    own, of_server = {"intent-threshold", "step-cost"}, set[str]()
    if said.get("reward") == ["judge"] or said.get("intent-judge"):
        own |= {"num-ctx", "judge-model"}
        of_server = {*resolved(ServerConfig())}
    of_missions = _of_missions(run, own - {flag for flag, values in said.items() if values})
    kept = {key: value for key, value in table.items() if key in own | of_server | {"seed"}} | of_missions
    return {key: value for key, value in kept.items() if value is not None}


def _of_missions(run: Path, keys: set[str]) -> dict[str, Any]:
    """What the missions of an evaluation say, which comes before its flags; nothing of any other run.

    Raises:
        UserError: they do not say the same, or missions.json is damaged.
    """
    from evaluation.missions import recorded_tables

    found: dict[str, tuple[str, Any]] = {}
    missions = recorded_tables(run) if (run / MISSIONS).exists() else {}
    for name, mission in missions.items():
        for key in sorted(keys & mission.keys()):
            first, before = found.setdefault(key, (name, mission[key]))
            if mission[key] != before:
                raise UserError(
                    f"the missions of {str(run)!r} differ in --{key}: {before!r} in {first!r}, "
                    f"{mission[key]!r} in {name!r}; say which with --{key}"
                )
    return {key: value for key, (_, value) in found.items()}


def _fill(
    source: str,
    table: Mapping[str, Any],
    app: App,
    commands: tuple[str, ...],
    arguments: ArgumentCollection,
) -> dict[str, Argument]:
    """Give arguments without a value that of the table; returns those that got one, by their flags."""
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
    values = (value for each in said for value in as_texts(each.get(flag)))
    return any(text in {value, str(Path(value).absolute())} for value in values)


def _flag(argument: Argument) -> str:
    return argument.name.removeprefix("--")


def _values(argument: Argument, *, but: str = "") -> list[str]:
    """The values of an argument, as they will be used: those of a list by comma one by one, less blanks.

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
