"""The missions of `mutagym eval`: each a target model, a query set and a reward, from a file or inline.

    name = "small model"            # a TOML file: the flags' names as keys, and a name
    target-model = "llama3.2:1b"
    queries = "mine.csv"
    reward = "judge"

What a mission leaves out comes from the command's own flags. The config.toml of a run is a mission, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict

from envs.episode import derive_seed
from train.errors import UserError
from train.mission import MissionConfig
from train.query_set import load_query_set
from train.run_defaults import CONFIG, defaults_of_run
from train.server import ServerConfig
from train.settings import resolved
from train.toml_files import read_toml

MODELS = ("target-model", "mutator-model", "judge-model")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MissionSpec:
    """What a mission says."""

    name: str = ""
    """What it is called in the tables."""
    target_model: str | None = None
    """The model whose answers count."""
    mutator_model: str | None = None
    """The model that rewords queries."""
    judge_model: str | None = None
    """The model that judges answers."""
    given: MissionConfig = field(default_factory=MissionConfig)

    @property
    def mutators(self) -> tuple[str, ...]:
        """The names of its mutators; action k is the k-th."""
        from mutators.registry import load_mutators

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
    """The queries of a mission."""

    train: tuple[str, ...]
    """What policies may be fitted on."""
    played: tuple[str, ...]
    """What they are evaluated on, each once, in this order."""
    split: str
    """The side of the split that these are of: held-out or train."""
    sha256: str
    """The hash of those that are played, see `envs.queries.queries_sha256`."""


def read_missions(texts: Sequence[str], given: MissionConfig, server: ServerConfig) -> list[MissionSpec]:
    """The missions that `-m` names; without any, the one of the flags.

    Args:
        texts: files, run folders, or `key=value,key=value`.
        given: the flags of a mission, for what it leaves out.
        server: the flags of the server, for the models it leaves out.

    Raises:
        UserError: one is no good; the message names the key that was meant.
    """
    flags = {key: value for key, value in resolved(given).items() if value is not None}
    models = {key: value for key, value in resolved(server).items() if key in MODELS and value is not None}
    missions = [_read(text, flags | models) for text in texts] or [
        _parsed("flags", {"name": "default"}, flags | models)
    ]
    names = [mission.name for mission in missions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two missions are called {twice!r}: give each a 'name'")
    for mission in missions:
        mission.given.check()
    return missions


def mission_queries(mission: MissionSpec, split: str, episodes: int | None, seed: int) -> MissionQueries:
    """The queries of a mission that are played, in an order that the seed draws.

    Args:
        mission: the mission.
        split: `held-out`, or `train`.
        episodes: how many; None: all.
        seed: the evaluation's seed.

    Raises:
        UserError: there are not as many, or the query set is no good.
    """
    from envs.queries import queries_sha256

    queries = load_query_set(mission.given.query_set)
    side = queries.train if split == "train" else queries.held_out
    ordered = sorted(side, key=lambda query: derive_seed(seed, "order", query.text))
    wanted = len(side) if episodes is None else episodes
    if not 0 < wanted <= len(side):
        share = f"{len(side)} {split} queries (--held-out {mission.given.query_set.held_out:g})"
        raise UserError(
            f"--episodes is {episodes}, mission {mission.name!r} has {share}, each played once: ask for fewer"
            if side
            else f"mission {mission.name!r} has {share}: hold out a larger share"
        )
    used = ordered[:wanted]
    return MissionQueries(
        train=tuple(query.text for query in queries.train),
        played=tuple(query.text for query in used),
        split=split,
        sha256=queries_sha256(used),
    )


def is_path(text: str) -> bool:
    """Whether what `-m` names is a file or a folder that exists."""
    return os.path.exists(text)  # noqa: PTH110 - False, too, for what is too long to be a path


def _read(text: str, flags: Mapping[str, Any]) -> MissionSpec:
    """One mission as `-m` names it."""
    if not is_path(text):
        if "=" not in text:
            raise UserError(
                f"-m names {text!r}; expected a TOML file that exists, a run's folder, or key=value,key=value"
            )
        return _parsed("-m", _inline(text), flags)
    path = Path(text)
    if path.is_dir() or (path.name == CONFIG and (path.parent / "queries.json").is_file()):
        folder = path if path.is_dir() else path.parent
        known = {*resolved(MissionConfig()), *MODELS}
        return _parsed(text, {"name": folder.name} | defaults_of_run(folder, known), flags)
    return _parsed(text, {"name": path.stem} | read_toml(path), flags)


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
    config = tuple(Dict(dict(data), source=name, use_commands_as_keys=False) for data, name in layers)
    app = App(config=config, version_flags=(), help_flags=())
    app.default(read)
    try:
        spec: MissionSpec = app([], exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise UserError(str(error)) from error
    return replace(spec, name=spec.name or spec.target_model or "default", given=spec.given.located())
