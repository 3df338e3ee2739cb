"""Environments and their parts from plain data, for Gymnasium's registry and the commands.

With nothing but plain data in it, Gymnasium's spec pickles and can be written as JSON.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from envs.batched import BatchedQueryMutationEnv
from envs.episode import Rules
from envs.mission import MissionConfig
from envs.models import ModelCalls
from envs.queries import Query, answers_of, chats_of, guards_of, load_queries
from envs.query_mutation import QueryMutationEnv
from envs.query_sets import QueryConfig
from mutators.registry import load_mutators
from ollama_utils.connect import Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.errors import OllamaError
from records.errors import as_user_error
from scorers.intent import INTENT_THRESHOLD, check_apart
from scorers.judge import read_rubric
from scorers.reward import make_scorer

_dispatchers: dict[tuple[str, ...], Dispatcher] = {}
"""One for all environments on the same hosts: one limit of calls holds for all."""
_encoder = cache(make_encoder)


def rules_and_models(
    mission: MissionConfig,
    dispatcher: Dispatcher,
    roles: Roles,
    queries: Sequence[str | Query],
    *,
    seed: int = 0,
    encoder: Encoder | None = None,
    answers: Mapping[str, Sequence[str]] | None = None,
    guards: frozenset[str] | None = None,
) -> tuple[Rules, ModelCalls]:
    """What environments on these queries share: `QueryMutationEnv(rules, models, queries)`.

    Args:
        mission: mutators, reward and limits; the queries that it names are not read.
        dispatcher: where every model call goes.
        roles: which model plays which part.
        queries: the texts that episodes start from.
        seed: the seed of the target's and the judge's calls.
        encoder: an open one [the one that the mission names is opened].
        answers: by query its right answers [those that the queries have].
        guards: the queries that ought to be refused [those of the queries that are guard queries].

    Raises:
        ValueError: bad data, or queries in a language that the encoder does not know.
        OllamaError: the encoder's model does not answer.
    """
    own = [each for each in queries if isinstance(each, Query)]
    guards = guards_of(own) if guards is None else guards
    rules = Rules(
        mutators=load_mutators(mission.mutators),
        max_steps=mission.max_steps,
        intent_threshold=mission.intent_threshold,
        asks_first=mission.asks_first,
        guards=guards,
    )
    encoder = encoder or make_encoder(mission.encoder, dispatcher)
    if mission.intent_threshold == INTENT_THRESHOLD:  # nobody chose another
        texts = [each if isinstance(each, str) else each.text for each in queries]
        check_apart(encoder.encode, texts, INTENT_THRESHOLD)
    rubric = None if mission.judge_rubric is None else read_rubric(Path(mission.judge_rubric))
    scorer = make_scorer(
        mission.reward,
        dispatcher=dispatcher,
        judge_model=roles.judge,
        intent_threshold=mission.intent_threshold,
        step_cost=mission.step_cost,
        seed=seed,
        judge_options={"num_ctx": mission.num_ctx} if mission.num_ctx else {},
        judge_rubric=rubric,
        intent_judge=mission.intent_judge,
        answers=answers or answers_of(own),
        guards=guards,
        guard_weight=mission.guard_weight,
    )
    return rules, ModelCalls(
        mission=mission,
        roles=roles,
        seed=seed,
        dispatcher=dispatcher,
        encoder=encoder,
        scorer=scorer,
        chats=chats_of(own),
    )


mission_parts = as_user_error(OllamaError, ValueError)(rules_and_models)
"""`rules_and_models` for a command: its errors are `UserError`s."""


def make_env(**plain: Any) -> QueryMutationEnv:  # noqa: ANN401 - see make_vector_env
    """`gymnasium.make(ENV_ID, ...)`; the keywords are `plain` of `make_vector_env`."""
    (env,) = _envs(1, **plain)
    return env


def make_vector_env(
    num_envs: int,
    *,
    max_workers: int = 8,
    max_episode_steps: int | None = None,
    **plain: Any,  # noqa: ANN401 - plain data, named below
) -> BatchedQueryMutationEnv:
    """`gymnasium.make_vec(ENV_ID, num_envs=N, ...)`; every keyword is plain data.

    Args:
        num_envs: lanes.
        max_workers: the most calls at once.
        max_episode_steps: Gymnasium's name for `max_steps`.
        plain: `hosts` (one URL or a list; required), `queries` (a list of texts, or a file; the
            bundled set), and `target_model` (required), `mutator_model` [the target],
            `judge_model`, `model_seed` (the seed of the target's and the judge's calls), and the
            settings of `MissionConfig`: `reward`, `mutators`, `encoder`, ...

    Raises:
        TypeError: there is no such keyword, or a required one is missing.
        ValueError, OllamaError: see `rules_and_models`.
    """
    if max_episode_steps is not None:
        plain["max_steps"] = max_episode_steps
    return BatchedQueryMutationEnv(_envs(num_envs, **plain), max_workers=max_workers)


def _envs(
    count: int,
    *,
    hosts: str | Sequence[str],
    target_model: str,
    mutator_model: str | None = None,
    judge_model: str | None = None,
    queries: str | Sequence[str | Query] | None = None,
    model_seed: int = 0,
    **settings: Any,  # noqa: ANN401 - those of MissionConfig
) -> list[QueryMutationEnv]:
    if "render_mode" in settings:
        raise ValueError("this environment renders nothing: leave render_mode out")
    # Whoever steps an environment asks the query as it stands by the action `noop`.
    mission = MissionConfig(**{"always_reword": True} | settings, query_set=QueryConfig())
    dispatcher = _dispatcher(*([hosts] if isinstance(hosts, str) else hosts))
    roles = Roles(target=target_model, mutator=mutator_model or target_model, judge=judge_model)
    encoder = _encoder(mission.encoder, dispatcher)
    if queries is None or isinstance(queries, str):
        queries = load_queries(queries)
    rules, models = rules_and_models(
        mission, dispatcher, roles, queries, seed=model_seed, encoder=encoder
    )
    return [QueryMutationEnv(rules, models, queries) for _ in range(count)]


def _dispatcher(*hosts: str) -> Dispatcher:
    """The dispatcher to these hosts, a new one where the last was ended, as by an outage."""
    found = _dispatchers.get(hosts)
    if found is None or found.servers.closed.is_set():
        found = _dispatchers[hosts] = Dispatcher(hosts)
        atexit.register(found.close)
    return found
