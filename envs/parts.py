"""Environments and their parts, made from plain data: for Gymnasium's registry and for the commands alike.

Plain data alone go into a spec of Gymnasium's, so that it pickles and can be written as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from envs.answering import Models
from envs.batched import BatchedQueryMutationEnv, Schedule
from envs.queries import load_queries
from envs.query_mutation import EnvConfig, QueryMutationEnv
from mutators.registry import DEFAULT_MUTATORS
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from scorers.intent import INTENT_THRESHOLD
from scorers.judge import read_rubric
from scorers.reward import STEP_COST, Scorer, make_scorer


class Parts(TypedDict):
    """What `QueryMutationEnv` takes by keyword, beside its config."""

    queries: Sequence[str]
    dispatcher: Dispatcher
    encoder: Encoder
    scorer: Scorer


def make_parts(  # noqa: PLR0913 - one keyword for each thing a user can set
    dispatcher: Dispatcher,
    queries: Sequence[str],
    *,
    target_model: str,
    mutator_model: str | None = None,
    judge_model: str | None = None,
    target_system: str | None = None,
    target_temperature: float = 0.0,
    think: bool | None = None,
    num_predict: int | None = None,
    num_ctx: int | None = None,
    encoder: str | Encoder = "all-MiniLM-L6-v2",
    reward: str = "refusal",
    mutators: Sequence[str] = DEFAULT_MUTATORS,
    max_steps: int = 5,
    intent_threshold: float = INTENT_THRESHOLD,
    intent_judge: bool = False,
    judge_rubric: str | None = None,
    step_cost: float = STEP_COST,
    model_seed: int = 0,
) -> tuple[EnvConfig, Parts]:
    """The config and the parts of `QueryMutationEnv` and `BatchedQueryMutationEnv`.

    Args:
        dispatcher: where every model call goes.
        queries: the texts that episodes start from.
        target_model: the model whose answers count.
        mutator_model: the model that rewords queries; None: the target.
        judge_model: the model that judges; needed by the reward `judge` and by an intent judge alone.
        target_system: the target's system prompt; None keeps the model's own.
        target_temperature: above 0 every question carries a seed of its own.
        think: whether a thinking target thinks; None leaves it to the server.
        num_predict: most tokens of a rewrite or an answer; None leaves it to the server.
        num_ctx: context length in tokens, the same for every model; None leaves it to the server.
        encoder: an encoder, or the name of one, see `ollama_utils.encoders.make_encoder`.
        reward: `refusal`, `judge` or `keyword`, see `scorers.reward.make_scorer`.
        mutators: names, or `path/to/file.py:name`; action k is the k-th.
        max_steps: steps after which an unanswered query is given up.
        intent_threshold: a rewrite less similar to the original than this is not adopted.
        intent_judge: whether the judge has a say in the intent, with the rewards that go by wording.
        judge_rubric: a file with what the judge of `judge` goes by; None: `scorers.judge.RUBRIC`.
        step_cost: what a step costs, in reward.
        model_seed: the seed of the target's and the judge's calls.

    Raises:
        ValueError: bad data, as the parts report it.
        OllamaError: the encoder's model does not answer.
    """
    runner: dict[str, Any] = {"num_ctx": num_ctx} if num_ctx else {}
    models = Models(
        target=target_model,
        mutator=mutator_model or target_model,
        target_system=target_system,
        target_temperature=target_temperature,
        think=think,
        seed=model_seed,
        options=runner | ({"num_predict": num_predict} if num_predict else {}),
    )
    config = EnvConfig(
        models=models, mutators=tuple(mutators), max_steps=max_steps, intent_threshold=intent_threshold
    )
    made = make_encoder(encoder, dispatcher) if isinstance(encoder, str) else encoder
    scorer = make_scorer(
        reward,
        dispatcher=dispatcher,
        judge_model=judge_model,
        intent_threshold=intent_threshold,
        step_cost=step_cost,
        seed=model_seed,
        judge_options=runner,
        judge_rubric=read_rubric(Path(judge_rubric)) if judge_rubric is not None else None,
        intent_judge=intent_judge,
        encoder=made,
    )
    return config, Parts(queries=queries, dispatcher=dispatcher, encoder=made, scorer=scorer)


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
        max_workers: in `lanes` the most requests under way at once (None: one a lane), in `phased` the
            threads of a phase (8).
        max_episode_steps: Gymnasium's name for `max_steps`.
        plain: `hosts` (one URL or a list; required), `queries` (a list of texts, or a file; the bundled
            set), and the keywords of `make_parts`: `target_model` (required), `reward`, ...

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
