"""Settings that a command takes over from a run folder: defaults under what the user said.

This is the one place where a run's settings become a command's: `--resume RUN`, `-p RUN`, `-m RUN` and a
run's config.toml as `--config` or `-m` all come through here, before anything is imported, opened or called.
`records.trust` decides whether they may be used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import UNSET
from cyclopts.config import Dict

from records.errors import UserError
from records.run_folder import MISSIONS, RecordedRun, check_is_run
from records.settings import PLACES, read_toml, resolved
from records.trust import CONFIG, usable_settings

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument, ArgumentCollection

RUN = "RUN"
"""The argument of `mutagym replay` and `mutagym rescore`."""
_PLACES = tuple(name.replace("_", "-") for name in PLACES)


@dataclass(frozen=True, kw_only=True)
class RunDefaults:
    """The settings of a run for the flags that the user left out: a config of cyclopts.

    It stands behind what the user said, and sees what that left open.

    Args:
        run: the folder.
        table: its settings, keyed as flags are.
        trusted: whether the user said --trust-run.
        links: whether the folder is written, too.
    """

    run: Path
    table: Mapping[str, Any]
    trusted: bool
    links: bool = False

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill in the settings.

        Raises:
            UserError: the run is not the user's own, and names what the user did not.
        """
        source = f"the run {self.run}"
        Dict(dict(self.table), source=source, use_commands_as_keys=False)(app, commands, arguments)
        filled = {
            _flag(argument): argument
            for argument in arguments
            if any(token.source == source for token in argument.tokens)
        }
        settings = {flag: _values(argument) for flag, argument in filled.items()}
        usable = usable_settings(self.run, settings, trusted=self.trusted, links=self.links)
        for flag, argument in filled.items():
            if flag not in usable:
                argument.tokens.clear()


@dataclass(frozen=True, kw_only=True)
class RunMissions:
    """Checks the run folders that `-m` names: a config of cyclopts, the last one.

    A mission's own settings come before the command's flags, so what such a run names is named by the user
    only where a flag of the command says the same.
    """

    trusted: bool

    def __call__(self, _app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Check them.

        Raises:
            UserError: one is not the user's own, and names what the user did not.
        """
        said = {_flag(argument): _values(argument) for argument in arguments}
        for text in said.get("mission", ()):
            for run, settings in _run_missions(text):
                named = {
                    flag: [value for value in values if not _is_said(value, said.get(flag, ()))]
                    for flag, values in settings.items()
                }
                usable_settings(run, named, trusted=self.trusted)


@dataclass(frozen=True, kw_only=True)
class RunArgument:
    """The settings of the run that `mutagym replay` or `rescore` is given: a config of cyclopts.

    Where nobody is called, hosts and limits are left out, and so is always what says where things are kept.
    """

    trusted: bool

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill in the settings.

        Raises:
            UserError: there is no run, or none that this command takes; or it is not the user's own, and
                names what the user did not.
        """
        named = next((argument for argument in arguments if argument.name == RUN and argument.tokens), None)
        if named is None:
            return  # cyclopts says so
        run = Path(named.tokens[0].value)
        check_is_run(run, RUN)
        said = {_flag(argument): _values(argument) for argument in arguments}
        table = read_toml(run / CONFIG)
        kept = _of_replayed(run, table) if commands == ("replay",) else _of_rescored(run, table, said)
        RunDefaults(run=run, table=kept, trusted=self.trusted)(app, commands, arguments)


def _of_replayed(run: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """What a replay takes over from a run: all that decides it but the hosts, for nobody is called."""
    from evaluation.config import MODELS
    from ollama_utils.connect import ServerConfig

    if "num-env-steps" not in table:
        raise UserError(
            f"{str(run)!r} is no run of `mutagym train`, and no other is replayed: its own command goes over "
            "it again with --resume, from the same log"
        )
    left_out = ({*resolved(ServerConfig())} - {*MODELS}) | {*_PLACES, "judge-accuracy"}
    return {key: value for key, value in table.items() if key not in left_out}


def _of_rescored(run: Path, table: Mapping[str, Any], said: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What scoring a run again takes over: how it scored, but for the reward; for a judge its server."""
    from ollama_utils.connect import ServerConfig

    own, of_server = {"intent-threshold", "step-cost"}, set[str]()
    if not said.get("reward") or said["reward"] == ["refusal"]:
        own |= {"encoder"}
    if said.get("reward") == ["judge"] or said.get("intent-judge"):
        own |= {"num-ctx", "judge-model"}
        of_server = {*resolved(ServerConfig())}
    of_missions = _of_missions(run, own - {flag for flag, values in said.items() if values})
    kept = {key: value for key, value in table.items() if key in own | of_server | {"seed"}} | of_missions
    return {key: value for key, value in kept.items() if value is not None}


def _of_missions(run: Path, keys: Collection[str]) -> dict[str, Any]:
    """What the missions of an evaluation say, which comes before its flags; nothing of any other run.

    Raises:
        UserError: they do not say the same, or missions.json is damaged.
    """
    if not (run / MISSIONS).exists():
        return {}
    missions = RecordedRun(run).read_json(MISSIONS)
    found: dict[str, Any] = {}
    for key in sorted(keys):
        told = [
            (name, each[key]) for name, each in missions.items() if isinstance(each, dict) and key in each
        ]
        for name, value in told:
            first, before = told[0]
            if value != before:
                raise UserError(
                    f"the missions of {str(run)!r} differ in --{key}: {before!r} in {first!r}, {value!r} in "
                    f"{name!r}; say which with --{key}"
                )
            found[key] = value
    return found


def _run_missions(text: str) -> Iterator[tuple[Path, dict[str, list[str]]]]:
    """The run folder that a value of `-m` names, with what it says of a mission; nothing for any other."""
    from evaluation.config import defaults_of_run, mission_run, mission_settings

    if run := mission_run(text):
        table = defaults_of_run(run, mission_settings())
        yield run, {flag: _as_list(value) for flag, value in table.items()}


def _as_list(value: Any) -> list[str]:  # noqa: ANN401 - a TOML value
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _is_said(value: str, said: list[str] | tuple[()]) -> bool:
    """Whether one of the user's values is this one, be it a path that is written otherwise."""
    return any(value in {item, str(Path(item).absolute())} for item in said)


def _flag(argument: Argument) -> str:
    return argument.name.removeprefix("--")


def _values(argument: Argument) -> list[str]:
    """The values of an argument, as they will be used: those of a list by comma one by one, less blanks."""
    values = [
        token.value if token.implicit_value is UNSET else str(token.implicit_value)
        for token in argument.tokens
        if token.implicit_value not in ([], (), None)  # an empty list of a file
    ]
    if _flag(argument) not in {"mutators", "baselines", "models"}:
        return values
    return [part.strip() for value in values for part in value.split(",")]
