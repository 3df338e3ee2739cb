"""The budget of an evaluation, and the order within an episode."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from envs.episode import Rules
from envs.models import ModelCalls, Models
from evaluation.episodes import AgentEpisode, Call, EpisodeContext, play_episode
from evaluation.policies.policy import View
from evaluation.run import play_in_order
from evaluation.stepping import make_stepper
from mutators.registry import by_rule
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import HashingEncoder
from ollama_utils.types import Completion
from scorers.reward import Verdict
from tests.ollama_utils.scripted import SAID, ScriptedServer

WAIT_S = 30.0


def waiting(opened: list[int], number: int, gate: threading.Event) -> Generator[list[Call], Any, int]:
    """A plan that goes on when its gate is opened."""
    opened.append(number)
    yield [partial(gate.wait, WAIT_S)]
    return number


def test_plans_are_opened_in_their_order_as_many_as_there_are_jobs_and_yielded_in_their_order() -> None:
    opened: list[int] = []
    gates = [threading.Event() for _ in range(5)]
    gates[1].set()  # the second ends first, and lets the third begin
    gates[2].set()
    plans = [waiting(opened, k, gate) for k, gate in enumerate(gates)]
    results = play_in_order(plans, 2, lambda ended: gates[0].set() if ended >= 2 else None)
    assert next(results) == 0
    for gate in gates:
        gate.set()
    assert list(results) == [1, 2, 3, 4]
    assert opened == [0, 1, 2, 3, 4]


def test_an_error_in_a_later_plan_ends_the_play_with_it() -> None:
    def broken() -> Generator[list[Call], Any, int]:
        yield []
        raise RuntimeError("a bug")

    never = threading.Event()
    with pytest.raises(RuntimeError, match="a bug"):
        list(play_in_order([waiting([], 0, never), broken()], 2))
    never.set()


EVENTS: list[str] = []
"""Choices and steps, as they begin."""


@by_rule
def shout(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Add a mark."""
    EVENTS.append("step")
    return f"{query}!"


def score(original: str, query: str, reply: Completion, similarity: float) -> Verdict:  # noqa: ARG001 - a Scorer's
    """A second rewording is answered."""
    success = query.count("!") == 2
    return Verdict(outcome="answered" if success else "refused", success=success, reward=success)


@dataclass(frozen=True)
class NotedSource:
    """A policy that chooses the first mutator, and notes that it is asked."""

    name: str = "noted"

    def make(self, seed: int) -> NotedSource:  # noqa: ARG002 - it leaves nothing to chance
        return self

    def step(self, view: View) -> int:  # noqa: ARG002 - whatever it sees
        EVENTS.append("choice")
        return 0


@pytest.mark.parametrize("jobs", [1, 8])
@pytest.mark.parametrize("name", ["serial", "thread"])
def test_all_agents_are_asked_before_any_step_goes_on(name: str, jobs: int) -> None:
    EVENTS.clear()
    rules = Rules(mutators=(shout,), max_steps=5, intent_threshold=0)
    with ScriptedServer(lambda _body: (200, SAID)) as server, Dispatcher([server.host]) as dispatcher:
        models = ModelCalls(
            models=Models(target="m", mutator="m"),
            dispatcher=dispatcher,
            encoder=HashingEncoder(16),
            scorer=score,
        )
        context = EpisodeContext(rules=rules, models=models, seed=0)
        agents = [AgentEpisode(context, "q", agent) for agent in range(3)]
        stepper = make_stepper(name, jobs=jobs, action_timeout_ms=None, report=print)
        begin = partial(stepper.begin, [NotedSource()] * 3, range(3))
        (episode,) = play_in_order([play_episode(agents, context, begin)], jobs)
    assert EVENTS == 2 * (["choice"] * 3 + ["step"] * 3)
    result = episode.result("q", ["p"] * 3)
    assert [agent["actions"] for agent in result["agents"]] == [["shout", "shout"]] * 3
    assert all(agent["success"] for agent in result["agents"])
