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

Guard queries, which ought to be refused, make a second mission of each: `NAME guard`.
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
from envs.queries import Chat, Query, answers_of, chats_of, load_queries, queries_sha256
from envs.query_files import QueryFileError
from envs.query_sets import QueryConfig, categories_of, load_query_set
from mutators.registry import load_mutators
from ollama_utils.connect import ServerConfig
from records.errors import UserError
from records.json_lines import MOST_QUERIES_BYTES
from records.run_folder import COMMAND_KEYS, CONFIG, MISSIONS, QUERIES, RecordedRun, check_is_run
from records.settings import as_texts, read_toml, resolved
from records.trust import untrusted_flags

if TYPE_CHECKING:
    from evaluation.config import GuardConfig

GUARD = " guard"
"""The end of the name of a mission of guard queries."""
MODELS = ("target-model", "mutator-model", "judge-model")
_TABLE = dict[str, str | float | bool | list[str] | None]
_TABLES = TypeAdapter(Annotated[dict[str, _TABLE], Field(min_length=1)])
"""The form of missions.json."""


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

    @property
    def guard(self) -> bool:
        """Whether its queries ought to be refused."""
        return self.guard_of is not None

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


@dataclass(frozen=True, kw_only=True)
class MissionQueries:
    """The queries of a mission; categories, chats and answers are those of some, by query."""

    train: tuple[str, ...] = ()
    """What policies may be fitted on."""
    played: tuple[str, ...]
    """What they are evaluated on, in this order."""
    split: str = "held-out"
    """The side of the split that these are of: held-out or train."""
    sha256: str
    """Of those that are played, see `envs.queries.queries_sha256`."""
    categories: Mapping[str, str] = field(default_factory=dict, hash=False)
    chats: Mapping[str, Chat] = field(default_factory=dict, hash=False)
    """What the target is sent before each query that ends a chat."""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


def read_missions(
    texts: Sequence[str], given: MissionConfig, server: ServerConfig
) -> list[MissionSpec]:
    """The missions that `-m` names; without any, the one of the flags.

    A setting that a mission leaves out is taken from `given`, and a model from `server`.

    Raises:
        UserError: one cannot be read; the message names the key that was meant.
    """
    of_server = {key: value for key, value in resolved(server).items() if key in MODELS}
    flags = {
        key: value for key, value in (resolved(given) | of_server).items() if value is not None
    }
    missions = [_read(text, flags) for text in texts] or [
        _parsed("flags", {"name": "default"}, flags)
    ]
    names = [mission.name for mission in missions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two missions are called {twice!r}: give each a 'name'")
    if guard := next((name for name in names if name.endswith(GUARD)), None):
        raise UserError(
            f"a mission is called {guard!r}: names with this end are those of guard queries; "
            "give it another 'name'"
        )
    for mission in missions:
        mission.given.check()
    return missions


def read_guard(config: GuardConfig) -> tuple[Query, ...]:
    """The guard queries, in the order of their file; none where no file is named.

    Raises:
        UserError: the file, a column or a filter is no good, or stands without a file.
    """
    if config.guard_queries is None:
        if config.guard_column is not None or config.guard_where:
            raise UserError(
                "--guard-column and --guard-where are for a file of --guard-queries: name one"
            )
        return ()
    try:
        return load_queries(
            config.guard_queries, prompt_column=config.guard_column, where=config.guard_where
        )
    except QueryFileError as error:
        said = str(error).replace("--prompt-column", "--guard-column")
        said = said.replace("--where", "--guard-where")
        raise UserError(f"--guard-queries: {said}") from error


def guard_missions(missions: Sequence[MissionSpec], guard: GuardConfig) -> list[MissionSpec]:
    """For each mission the one that plays the guard queries under the same settings.

    No answer to them is right: in place of a reward that compares answers stands `refusal`.
    """
    queries = QueryConfig(
        queries=guard.guard_queries, prompt_column=guard.guard_column, where=guard.guard_where
    )
    return [
        replace(
            each,
            name=each.name + GUARD,
            given=each.given.without_answers(queries),
            guard_of=each.name,
        )
        for each in missions
    ]


def mission_queries(
    mission: MissionSpec, split: str, episodes: int | None, seed: int, guard: Sequence[Query] = ()
) -> MissionQueries:
    """The queries of a mission, in an order that the seed draws.

    Args:
        mission: the mission.
        split: `held-out`, or `train`.
        episodes: how many; None: all.
        seed: the evaluation's.
        guard: queries that ought to be refused, which it must not have.

    Raises:
        UserError: there are not as many, the query set cannot be read, or a query is a guard query.
    """
    queries = load_query_set(mission.given.query_set, mission.given.reward)
    guarded = {query.text for query in guard}
    everything = (query.text for query in (*queries.train, *queries.held_out))
    if both := [text for text in everything if text in guarded]:
        raise UserError(
            f"{len(both)} of the {len(guard)} guard queries stand among the queries of mission "
            f"{mission.name!r}, too, such as {both[0]!r}: a query ought to be answered or to be "
            "refused; take it out of one of them"
        )
    side = queries.train if split == "train" else queries.held_out
    ordered = sorted(side, key=lambda query: derive_seed(seed, "order", query.text))
    wanted = len(side) if episodes is None else episodes
    if not 0 < wanted <= len(side):
        share = f"{len(side)} {split} queries (--held-out {mission.given.query_set.held_out:g})"
        raise UserError(
            f"--episodes is {episodes}, mission {mission.name!r} has {share}: ask for fewer"
            if side
            else f"mission {mission.name!r} has {share}: hold out a larger share"
        )
    used = ordered[:wanted]
    found = played_queries(used, (*queries.train, *used))
    return replace(found, train=tuple(query.text for query in queries.train), split=split)


def played_queries(used: Sequence[Query], known: Sequence[Query]) -> MissionQueries:
    """Queries that are played, with the chats and right answers of all that are known."""
    return MissionQueries(
        played=tuple(query.text for query in used),
        sha256=queries_sha256(used),
        categories=categories_of(used),
        chats=chats_of(known),
        answers=answers_of(known),
    )


def record_queries(queries: Mapping[str, MissionQueries]) -> dict[str, Any]:
    """What an evaluation keeps of its missions' queries, those of several that share them once."""
    sets = list(dict.fromkeys(queries.values()))
    return {
        "missions": {name: sets.index(of_mission) for name, of_mission in queries.items()},
        "sets": [asdict(each) for each in sets],
        "categories": {text: name for each in sets for text, name in each.categories.items()},
    }


def recorded_queries(run: Path, missions: Sequence[MissionSpec]) -> list[MissionQueries]:
    """The queries of each mission, as the folder of an evaluation has them.

    Raises:
        UserError: its queries.json is damaged.
    """
    record = RecordedRun(run).read_json(QUERIES, MOST_QUERIES_BYTES)
    try:
        sets = TypeAdapter(list[MissionQueries]).validate_python(record["sets"])
        return [sets[record["missions"][mission.name]] for mission in missions]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{str(run / QUERIES)!r} is damaged: begin a new evaluation") from error


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
        raise UserError(f"{str(run / MISSIONS)!r} is damaged: begin a new evaluation") from error
    return tables


def missions_are_data(missions: Sequence[MissionSpec], given: MissionConfig) -> bool:
    """Whether a resumed run can take its missions from the folder's copy.

    It cannot where one names code, a host or a file that the command's own flags do not name.
    """
    flags = resolved(given)
    for mission in missions:
        own = {flag: value for flag, value in resolved(mission).items() if value != flags.get(flag)}
        settings = {flag: as_texts(value) for flag, value in own.items()}
        if untrusted_flags(settings | {"queries": []}):
            return False
    return True


def is_path(text: str) -> bool:
    """Whether what `-m` names is a file or a folder that exists."""
    return os.path.exists(text)  # noqa: PTH110 - False, too, for what is too long to be a path


def _read(text: str, flags: Mapping[str, Any]) -> MissionSpec:
    """One mission as `-m` names it."""
    if folder := mission_run(text):
        table = {"name": folder.name} | defaults_of_run(folder, mission_settings())
        return _parsed(text, table, flags)
    return _parsed(text if is_path(text) else "-m", mission_table(text), flags)


def mission_table(text: str) -> dict[str, Any]:
    """The settings of a mission in a TOML file or inline, as `-m` names it.

    Raises:
        UserError: it cannot be read.
    """
    if is_path(text):
        return {"name": Path(text).stem} | read_toml(Path(text))
    if "=" not in text:
        raise UserError(
            f"-m names {text!r}; expected a TOML file that exists, a run's folder, or "
            "key=value,key=value"
        )
    return _inline(text)


def mission_run(text: str) -> Path | None:
    """The run folder that a value of `-m` names; None: it names none."""
    return Path(text) if os.path.isdir(text) else None  # noqa: PTH112 - as in `is_path`


def mission_settings() -> frozenset[str]:
    """The settings that a mission takes over from a run."""
    return frozenset({*resolved(MissionConfig()), *MODELS})


def _inline(text: str) -> dict[str, str]:
    """`key=value,key=value` as a table."""
    table: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in table:
            raise UserError(f"-m {text!r} has the part {part!r}; expected key=value, each key once")
        table[key] = value
    return table


def _parsed(source: str, table: Mapping[str, Any], flags: Mapping[str, Any]) -> MissionSpec:
    """A table as a mission, checked as flags are; `flags` for what it leaves out."""

    def read(spec: MissionSpec = MissionSpec()) -> MissionSpec:
        return spec

    layers = ((table, source), (flags, "the flags"))
    config = [Dict(dict(data), source=name, use_commands_as_keys=False) for data, name in layers]
    app = App(config=config, version_flags=(), help_flags=())
    app.default(read)
    try:
        spec: MissionSpec = app(
            [], exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        raise UserError(str(error)) from error
    name = spec.name or spec.target_model or "default"
    return replace(spec, name=name, given=spec.given.located())


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
