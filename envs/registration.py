"""The environments under Gymnasium's names: built from plain data, so that specs pickle and go to JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import gymnasium

from envs.batched import BatchedQueryMutationEnv, Schedule
from envs.parts import Parts, make_parts
from envs.queries import load_queries
from envs.query_mutation import EnvConfig, QueryMutationEnv
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder

ENV_ID = "mutagym/QueryMutation-v0"


def register_envs() -> None:
    """Register ENV_ID once; importing `envs` does it.

    The spec says nondeterministic: a real server may answer an equal request otherwise under load.
    """
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID,
            entry_point="envs.registration:make_env",
            vector_entry_point="envs.registration:make_vector_env",
            nondeterministic=True,
        )


def make_env(**plain: Any) -> QueryMutationEnv:  # noqa: ANN401 - see make_vector_env
    """`gymnasium.make(ENV_ID, ...)`; the keywords are those of `make_vector_env` from `hosts` on."""
    config, parts = _parts(**plain)
    return QueryMutationEnv(config, **parts)


def make_vector_env(
    num_envs: int,
    *,
    schedule: Schedule = "lanes",
    max_workers: int | None = None,
    max_episode_steps: int | None = None,
    **plain: Any,  # noqa: ANN401 - plain data, named below
) -> BatchedQueryMutationEnv:
    """`gymnasium.make_vec(ENV_ID, num_envs=N, ...)`; every keyword is plain data.

    Args:
        num_envs: lanes.
        schedule: `lanes`, `phased` or `sequential`, see `BatchedQueryMutationEnv`.
        max_workers: in `lanes` the most calls under way at once (None: no limit), in `phased` the threads of
            a phase (8).
        max_episode_steps: Gymnasium's name for `max_steps`.
        plain: `hosts` (one URL or a list; required), `queries` (a list of texts, or a file; the bundled
            set), and the keywords of `envs.parts.make_parts`: `target_model` (required), `reward`, ...

    Raises:
        ValueError: bad data, as the parts report it.
        OllamaError: the model of an `ollama:` encoder does not answer.
    """
    if max_episode_steps is not None:
        plain["max_steps"] = max_episode_steps
    config, parts = _parts(**plain)
    return BatchedQueryMutationEnv(config, num_envs, schedule=schedule, max_workers=max_workers, **parts)


def _parts(
    *,
    hosts: str | Sequence[str],
    queries: str | Sequence[str] | None = None,
    encoder: str = "all-MiniLM-L6-v2",
    **plain: Any,  # noqa: ANN401 - the keywords of `make_parts`
) -> tuple[EnvConfig, Parts]:
    dispatcher = _dispatcher((hosts,) if isinstance(hosts, str) else tuple(hosts))
    return make_parts(dispatcher, _texts(queries), encoder=_encoder(encoder, dispatcher), **plain)


def _texts(queries: str | Sequence[str] | None) -> tuple[str, ...]:
    if queries is None or isinstance(queries, str):
        return tuple(query.text for query in load_queries(queries))
    return tuple(queries)


@cache
def _dispatcher(hosts: tuple[str, ...]) -> Dispatcher:
    """One dispatcher per process and set of hosts, so that one cap holds for all environments."""
    return Dispatcher(hosts)


@cache
def _encoder(name: str, dispatcher: Dispatcher) -> Encoder:
    return make_encoder(name, dispatcher)
