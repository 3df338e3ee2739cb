"""Missions: what is played. Their settings, and their queries.

A mission is a target model, a query set and a reward, from a TOML file with the flags' names as
keys:

    name = "small model"
    target-model = "llama3.2:1b"
    queries = "mine.csv"
    reward = "judge"

or inline as `key=value,key=value`; the folder of a run is a mission, too. What it leaves out comes
from the command's own flags, and these default to the server, models, queries and mutators of the
run that `-p` names. The queries of a run are those that its folder holds.

Guard queries, which ought to be refused, make a second mission of each.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict
from pydantic import Field, TypeAdapter

from envs.episode import derive_seed
from envs.mission import MissionConfig, RewordingConfig
from envs.queries import Query
from envs.query_sets import QueryConfig, categories_of, check_no_guard, load_query_set
from mutators.registry import load_mutators
from ollama_utils.connect import ServerConfig
from records.errors import UserError
from records.json_lines import MOST_QUERIES_BYTES
from records.run_folder import COMMAND_KEYS, CONFIG, MISSIONS, QUERIES, RecordedRun, check_is_run
from records.settings import as_texts, read_toml, resolved
from records.trust import untrusted_flags

if TYPE_CHECKING:
    from evaluation.config import GuardConfig

MODELS = ("target-model", "mutator-model", "judge-model")
_TABLE = dict[str, str | float | bool | list[str] | None]
_TABLES = TypeAdapter(Annotated[dict[str, _TABLE], Field(min_length=1)])
_SETS = TypeAdapter(list[tuple[Query, ...]])
_SIDES = TypeAdapter(dict[str, dict[str, int]])


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MissionSpec:
    """A mission as it is asked for."""

    name: str = ""
    target_model: str | None = None
    mutator_model: str | None = None
    judge_model: str | None = None
    given: MissionConfig = field(default_factory=MissionConfig)
    guard_of: Annotated[str | None, Parameter(parse=False)] = None
    """The mission whose settings it has, where its queries ought to be refused."""
    train: Annotated[tuple[Query, ...], Parameter(parse=False)] = ()
    """The queries that policies may be fitted on."""
    played: Annotated[tuple[Query, ...], Parameter(parse=False)] = ()
    """Those that they are evaluated on, in this order."""
    guard: Annotated[tuple[Query, ...], Parameter(parse=False)] = ()
    """The guard queries of its own file, a run's, that nothing was learned from."""

    @property
    def mutators(self) -> tuple[str, ...]:
        """Their names; action k is the k-th."""
        return tuple(mutator.name for mutator in load_mutators(self.given.mutators))

    def server(self, config: ServerConfig) -> ServerConfig:
        """The server's config with the models of this mission."""
        return replace(
            config,
            target_model=self.target_model,
            mutator_model=self.mutator_model,
            judge_model=self.judge_model,
        )


def read_missions(
    texts: Sequence[str], given: MissionConfig, server: ServerConfig
) -> list[MissionSpec]:
    """The missions that `-m` names; without any, the one of the flags.

    A setting that a mission leaves out is taken from `given`, and a model from `server`.

    Raises:
        UserError: one cannot be read; the message names the key that was meant.
    """
    models = {key: value for key, value in resolved(server).items() if key in MODELS}
    flags = {key: value for key, value in (resolved(given) | models).items() if value is not None}
    tables = [(text if is_path(text) else "-m", mission_table(text)) for text in texts]
    tables = tables or [("flags", {"name": "default"})]
    missions = [_parsed(source, table, flags) for source, table in tables]
    for mission in missions:
        mission.given.check()
    return missions


def guard_missions(
    missions: Sequence[MissionSpec], guard: GuardConfig, queries: tuple[Query, ...] = ()
) -> list[MissionSpec]:
    """For each mission the one that plays the guard queries under the same settings.

    Without any, a mission of a run that was trained with guard queries plays those it held out. No
    answer to them is right: in place of a reward that compares answers stands `refusal`.
    """
    query_set = QueryConfig(
        queries=guard.guard_queries, prompt_column=guard.guard_column, where=guard.guard_where
    )
    return [
        replace(
            each,
            name=guard_name(each.name),
            given=each.given.without_answers(query_set),
            guard_of=each.name,
            train=(),
            guard=(),
            played=queries or each.guard,
        )
        for each in missions
        if queries or each.guard
    ]


def guard_name(mission: str) -> str:
    """What the mission is called that plays a mission's guard queries."""
    return f"{mission} guard"


def with_queries(
    mission: MissionSpec, split: str, episodes: int | None, seed: int, guard: Sequence[Query]
) -> MissionSpec:
    """The mission with its queries, in an order that the seed draws.

    Args:
        mission: the mission.
        split: the side of the split that is played, `held-out` or `train`.
        episodes: how many are played; None: all.
        seed: the evaluation's.
        guard: queries that ought to be refused, which it must not have.

    Raises:
        UserError: there are not as many, the query set cannot be read, or a query is a guard query.
    """
    queries = load_query_set(mission.given.query_set, mission.given.reward)
    check_no_guard((*queries.train, *queries.held_out), guard, f"mission {mission.name!r}")
    both = queries.train if split == "train" else queries.held_out
    side = [query for query in both if not query.is_guard]
    ordered = sorted(side, key=lambda query: derive_seed(seed, "order", query.text))
    wanted = len(side) if episodes is None else episodes
    if not 0 < wanted <= len(side):
        to_do = f"--episodes is {episodes}: ask for fewer" if side else "hold out a larger share"
        share = f"{len(side)} {split} queries (--held-out {mission.given.query_set.held_out:g})"
        raise UserError(f"mission {mission.name!r} has {share}; {to_do}")
    return replace(
        mission,
        train=queries.train,
        played=tuple(ordered[:wanted]),
        guard=tuple(query for query in queries.held_out if query.is_guard),
    )


def record_queries(missions: Sequence[MissionSpec]) -> dict[str, Any]:
    """The queries.json of an evaluation: the missions name sets, so that equal ones are once."""
    sets = list(dict.fromkeys(side for each in missions for side in (each.train, each.played)))
    return {
        "missions": {
            each.name: {"train": sets.index(each.train), "played": sets.index(each.played)}
            for each in missions
        },
        "sets": [[_without_defaults(query) for query in queries] for queries in sets],
        "categories": categories_of(query for mission in missions for query in mission.played),
    }


def _without_defaults(query: Query) -> dict[str, Any]:
    """A query as data, without what is as it is in most: a file of a million of them is short."""
    found = {name: value for name, value in asdict(query).items() if value not in (None, (), False)}
    if query.group == query.text:
        del found["group"]
    return found


def recorded_queries(run: Path) -> dict[str, tuple[tuple[Query, ...], tuple[Query, ...]]]:
    """By mission, guard missions too, the `train` and `played` that an evaluation's folder has.

    Raises:
        UserError: its queries.json is damaged.
    """
    record = RecordedRun(run).read_json(QUERIES, MOST_QUERIES_BYTES)
    try:
        rows = [[{"group": row["text"], **row} for row in each] for each in record["sets"]]
        sets, sides = _SETS.validate_python(rows), _SIDES.validate_python(record["missions"])
        return {name: (sets[of["train"]], sets[of["played"]]) for name, of in sides.items()}
    except (LookupError, TypeError, ValueError) as error:
        raise _damaged(run / QUERIES) from error


def with_recorded_queries(run: Path, missions: Sequence[MissionSpec]) -> list[MissionSpec]:
    """The missions with the queries of `recorded_queries`.

    Raises:
        UserError: queries.json is damaged.
    """
    found = recorded_queries(run)
    if any(each.name not in found for each in missions):
        raise _damaged(run / QUERIES)
    none: tuple[tuple[Query, ...], ...] = ((), ())
    own = {each.name for each in missions}
    guards = {name: played for name, played in found.items() if name not in own}
    return [
        replace(
            each,
            train=found[each.name][0],
            played=found[each.name][1],
            guard=guards.get(guard_name(each.name), none)[1],
        )
        for each in missions
    ]


def _damaged(path: Path) -> UserError:
    return UserError(f"{str(path)!r} is damaged: begin a new evaluation")


def recorded_missions(run: Path) -> list[MissionSpec]:
    """The missions as the folder of an evaluation has them.

    Raises:
        UserError: its missions.json is damaged.
    """
    tables = recorded_tables(run).items()
    return [_parsed(str(run / MISSIONS), table | {"name": name}, {}) for name, table in tables]


def recorded_tables(run: Path) -> dict[str, dict[str, Any]]:
    """The settings of the missions that the folder of an evaluation has, by their names and flags.

    Raises:
        UserError: its missions.json is damaged.
    """
    tables = RecordedRun(run).read_json(MISSIONS)
    try:
        _TABLES.validate_python(tables, strict=True)
    except ValueError as error:
        raise _damaged(run / MISSIONS) from error
    return tables


def missions_are_data(missions: Sequence[MissionSpec], given: MissionConfig) -> bool:
    """Whether none names code, a host or a file that the command's own flags do not name.

    If so, a resumed run can take them from the folder's copy.
    """
    flags = resolved(given)
    own = [
        {
            flag: as_texts(value)
            for flag, value in resolved(mission).items()
            if flag != "queries" and value != flags.get(flag)
        }
        for mission in missions
    ]
    return not any(map(untrusted_flags, own))


def is_path(text: str) -> bool:
    """Whether what `-m` names is a file or a folder that exists."""
    return os.path.exists(text)  # noqa: PTH110 - False, too, for what is too long to be a path


def mission_table(text: str) -> dict[str, Any]:
    """The settings of a mission in a run folder, in a TOML file or inline, as `-m` names it.

    Raises:
        UserError: it cannot be read.
    """
    if folder := mission_run(text):
        return {"name": folder.name} | defaults_of_run(folder, mission_settings())
    if is_path(text):
        return {"name": Path(text).stem} | read_toml(Path(text))
    table: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not (key and value) or key in table:
            raise UserError(
                f"-m {text!r} has the part {part!r}; expected a TOML file that exists, a run's "
                "folder, or key=value,key=value with each key once"
            )
        table[key] = value
    return table


def _parsed(source: str, table: Mapping[str, Any], flags: Mapping[str, Any]) -> MissionSpec:
    """A table as a mission, checked as flags are; `flags` for what it leaves out."""

    def read(spec: MissionSpec = MissionSpec()) -> MissionSpec:
        name = spec.name or spec.target_model or "default"
        return replace(spec, name=name, given=spec.given.located())

    layers = ((table, source), (flags, "the flags"))
    config = [Dict(dict(data), source=name, use_commands_as_keys=False) for data, name in layers]
    app = App(config=config, version_flags=(), help_flags=(), result_action="return_value")
    app.default(read)
    try:
        return app([], exit_on_error=False, print_error=False)  # type: ignore[no-any-return]
    except CycloptsError as error:
        raise UserError(str(error)) from error


def mission_run(text: str) -> Path | None:
    """The run folder that a value of `-m` names; None: it names none."""
    return Path(text) if os.path.isdir(text) else None  # noqa: PTH112 - as in `is_path`


def mission_settings() -> frozenset[str]:
    """The settings that a mission takes over from a run."""
    return frozenset({*resolved(MissionConfig()), *MODELS})


def run_keys(command: str) -> frozenset[str]:
    """The flags that a command takes over from a run: those of its mission and of its server."""
    mission = RewordingConfig() if command == "proxy" else MissionConfig()
    return frozenset(resolved(mission) | resolved(ServerConfig()))


def run_path(policy: str) -> Path | None:
    """The run folder that a policy names: `RUN`, `run=RUN` or `run=RUN,key=value`; None: none."""
    path = Path(policy.removeprefix("run=").partition(",")[0])
    return path if os.path.isfile(path / CONFIG) else None  # noqa: PTH113 - as in `is_path`


def defaults_of_run(path: Path, keys: Collection[str]) -> dict[str, Any]:
    """The settings of the run in the folder `path` whose flags are among `keys`.

    The queries of a training are its folder's copy, which has their groups, and no rows that
    `--where` left out.

    Raises:
        UserError: it is no run, or its config.toml cannot be read.
    """
    check_is_run(path, "-m")
    table = read_toml(path / CONFIG)
    if COMMAND_KEYS["train"] in table and (path / QUERIES).is_file():
        left_out = {"prompt-column", "where", "group-column", "answer-column"}
        table = {key: value for key, value in table.items() if key not in left_out}
        table["queries"] = str((path / QUERIES).absolute())
    return {key: value for key, value in table.items() if key in keys}
