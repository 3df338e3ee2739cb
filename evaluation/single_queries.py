"""A trained policy on a user's queries, one by one: what `ask` and `proxy` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.specs import PolicySpec, parse_policy
from evaluation.trained_policy import RunSource, run_source
from records.errors import as_user_error

if TYPE_CHECKING:
    from envs.mission import MissionConfig, RewordingConfig
    from evaluation.episodes import AgentEpisode, EpisodeContext
    from evaluation.trained_policy import RunPolicy
    from ollama_utils.connect import Connection

SIDE_BY_SIDE = 64
"""Queries under way at once; how many calls are in flight is the dispatcher's to say."""


def open_source(run: str, rewording: RewordingConfig) -> RunSource:
    """The policy of a run, which must fit what the command was told of rewordings.

    Args:
        run: the folder, or `run=FOLDER` with options.
        rewording: the command's mutators and encoder.

    Raises:
        UserError: it is no run, or does not fit; a mutator is unknown.
    """
    text = run if run.startswith("run=") else f"run={run}"
    with as_user_error(ValueError):
        spec = PolicySpec(kind="run", arg=run) if Path(run).is_dir() else parse_policy(text)
    source = run_source(spec)
    rewording.check()
    source.run.check_fits(rewording.located(), "this command")
    return source


def query_context(
    mission: MissionConfig, connection: Connection, queries: Sequence[str], seed: int
) -> EpisodeContext:
    """What the episodes of all queries have in common.

    Raises:
        UserError: a part of the mission cannot be made.
    """
    from envs.make import mission_parts
    from envs.query_mutation import QueryMutationEnv
    from evaluation.episodes import EpisodeContext

    mission = mission.without_answers(mission.query_set)
    config, parts = mission_parts(
        mission.located(), connection.dispatcher, connection.roles, queries, seed=seed
    )
    env = QueryMutationEnv(config, **parts)
    return EpisodeContext(rules=env.rules, models=env.models, seed=seed)


def query_episode(
    context: EpisodeContext, source: RunSource, query: str
) -> tuple[AgentEpisode, RunPolicy]:
    """The episode of a query, not begun, and its policy: of the query and the seed alone."""
    from envs.episode import derive_seed
    from evaluation.episodes import AgentEpisode

    return AgentEpisode(context, query), source.make(derive_seed(context.seed, "policy", query))
