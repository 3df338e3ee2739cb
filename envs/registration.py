"""The environments under Gymnasium's names: built from plain data, so that specs pickle and go to JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import gymnasium

from envs.answering import Models
from envs.batched import BatchedQueryMutationEnv
from envs.queries import load_queries
from envs.query_mutation import EnvConfig, QueryMutationEnv
from envs.schedules import Schedule
from mutators.registry import DEFAULT_MUTATORS
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from scorers.intent import INTENT_THRESHOLD
from scorers.reward import make_scorer

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


def make_env(**plain: Any) -> QueryMutationEnv:  # noqa: ANN401 - the keywords of `_parts`
    """`gymnasium.make(ENV_ID, ...)`: the keywords are those of `make_vector_env`, less the first three."""
    config, parts = _parts(**plain)
    return QueryMutationEnv(config, **parts)


def make_vector_env(
    num_envs: int,
    *,
    schedule: Schedule = "phased",
    max_workers: int | None = None,
    **plain: Any,  # noqa: ANN401 - the keywords of `_parts`
) -> BatchedQueryMutationEnv:
    """`gymnasium.make_vec(ENV_ID, num_envs=N, ...)`; every keyword is plain data.

    Args:
        num_envs: lanes.
        schedule: `sequential` or `phased`.
        max_workers: threads of a phase (8).
        plain: `hosts` (one URL or a list; required), `target_model` (required), `mutator_model` (the
            target), `judge_model`, `encoder` ("all-MiniLM-L6-v2"), `reward` ("refusal"), `queries` (a list
            of texts, or a file; the bundled set), `mutators`, `max_steps` (5), `intent_threshold`,
            `step_cost` (0.05), `model_seed` (0).

    Raises:
        ValueError: bad data, as the parts report it.
    """
    config, parts = _parts(**plain)
    return BatchedQueryMutationEnv(config, num_envs, schedule=schedule, max_workers=max_workers, **parts)


def _parts(  # noqa: PLR0913 - one keyword for each thing a user can set; all are plain data
    *,
    hosts: str | Sequence[str],
    target_model: str,
    mutator_model: str | None = None,
    judge_model: str | None = None,
    encoder: str = "all-MiniLM-L6-v2",
    reward: str = "refusal",
    queries: str | Sequence[str] | None = None,
    mutators: Sequence[str] = DEFAULT_MUTATORS,
    max_steps: int = 5,
    intent_threshold: float = INTENT_THRESHOLD,
    step_cost: float = 0.05,
    model_seed: int = 0,
) -> tuple[EnvConfig, dict[str, Any]]:
    dispatcher = _dispatcher((hosts,) if isinstance(hosts, str) else tuple(hosts))
    config = EnvConfig(
        models=Models(target=target_model, mutator=mutator_model or target_model, seed=model_seed),
        mutators=tuple(mutators),
        max_steps=max_steps,
        intent_threshold=intent_threshold,
    )
    scorer = make_scorer(
        reward,
        dispatcher=dispatcher,
        judge_model=judge_model,
        intent_threshold=intent_threshold,
        step_cost=step_cost,
        seed=model_seed,
    )
    parts = {
        "queries": _texts(queries),
        "dispatcher": dispatcher,
        "encoder": _encoder(encoder, dispatcher),
        "scorer": scorer,
    }
    return config, parts


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
