"""Whatever steps a policy, it does the same."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.policies.baselines import RoundRobinSource, SampledSource
from evaluation.policies.policy import PolicySource
from evaluation.stepping import PolicyStepper, count_cpus
from ollama_utils.plans import PlanRunner
from tests.evaluation import policies_for_tests as policies
from tests.evaluation.network_policies import Likeliest, Networked
from tests.evaluation.policies_for_tests import source
from tests.evaluation.stepping.playing import failures, play, play_episode, step, stepper_of, view

EACH_ALONE = ("serial", "thread", "process", "auto")
LONG_MS = 60_000.0
"""A deadline that nothing overruns."""


def wanderers(agents: int = 3) -> list[PolicySource]:
    return [source(policies.Wanderer)] * agents


@pytest.mark.parametrize(
    ("name", "timeout_ms"),
    [
        *((name, None) for name in EACH_ALONE),
        *((name, LONG_MS) for name in ("serial", "thread", "auto")),
        pytest.param("process", LONG_MS, marks=pytest.mark.soak),
    ],
)
def test_a_policy_with_a_memory_and_a_stream_of_chance_does_the_same_however_it_steps(
    name: str, timeout_ms: float | None
) -> None:
    with stepper_of("serial", jobs=1) as stepper:
        expected = play(stepper, wanderers())
    with stepper_of(name, action_timeout_ms=timeout_ms) as stepper:
        assert play(stepper, wanderers()) == expected
    assert not failures(expected)


@pytest.mark.parametrize("name", ["serial", "thread", "batch", "auto"])
def test_a_policy_that_serves_many_agents_does_the_same_in_one_call_as_alone(name: str) -> None:
    with stepper_of("serial") as stepper:
        expected = play(stepper, [source(policies.Together)] * 3)
    with stepper_of(name) as stepper:
        assert play(stepper, [source(policies.Together)] * 3) == expected
    assert not failures(expected)


@pytest.mark.parametrize(
    "name",
    [*("serial", "thread", "batch", "torch", "auto"), pytest.param("process", marks=pytest.mark.soak)],
)
def test_a_network_does_the_same_alone_as_in_a_block_with_others(stepper: PolicyStepper) -> None:
    sources = [source(Networked), source(Networked, kind=1), source(Likeliest), source(Networked)]
    with stepper_of("serial") as serial:
        expected = [play_episode(serial, sources, episode=episode) for episode in range(6)]
    assert play(stepper, sources, episodes=6) == expected
    assert not failures(expected)


@pytest.mark.parametrize("name", ["thread", "process", "auto"])
def test_policies_of_several_kinds_play_in_one_team(stepper: PolicyStepper) -> None:
    sources: list[PolicySource] = [
        source(policies.Wanderer),
        SampledSource(name="random", weights=(0.5, 0.25, 0.25, 0, 0, 0, 0)),
        RoundRobinSource(),
        source(policies.Together),
    ]
    with stepper_of("serial") as serial:
        expected = play(serial, sources)
    assert play(stepper, sources) == expected
    assert not failures(expected)


@pytest.mark.parametrize("kind", [policies.Busy, policies.Waiting, policies.Unpicklable, policies.Homebody])
def test_auto_does_the_same_before_and_after_it_moves_a_policy(kind: type[policies.Wanderer]) -> None:
    with stepper_of("serial") as stepper:
        expected = play(stepper, [source(kind)] * 2)
    with stepper_of("auto") as stepper:
        assert play(stepper, [source(kind)] * 2) == expected
        assert play(stepper, [source(kind)] * 2) == expected
    assert not failures(expected)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True, min_size=1), st.randoms())
def test_actions_do_not_depend_on_the_order_in_which_they_are_asked_for(
    agents: list[tuple[int, int]], chance: object
) -> None:
    order = agents[:]
    chance.shuffle(order)  # type: ignore[attr-defined] # a random.Random
    sources = [source(policies.Wanderer), source(Networked), source(policies.Together), source(Likeliest)]
    found = []
    for name, asked in (("serial", agents), ("auto", order)):
        with stepper_of(name) as stepper:
            begun = [
                stepper.begin(sources, [10 * episode + agent for agent in range(4)]) for episode in range(4)
            ]
            found.append({(e, a): step(begun[e], view(a, 0, e)) for e, a in asked})
    assert found[0] == found[1]


def test_views_that_came_in_while_a_forward_pass_was_under_way_go_into_the_next_one_together() -> None:
    under_way, go_on = threading.Event(), threading.Event()

    class Slow(Likeliest):
        def choose(self, _scores: object, _view: object) -> int:
            under_way.set()
            go_on.wait(20)
            return 0

    with stepper_of("torch") as stepper:
        slow = stepper.begin([source(Slow)], [0])
        others = [stepper.begin([source(Likeliest)], [seed]) for seed in range(1, 12)]
        rows = Likeliest(0).network.rows
        with PlanRunner[Any, Any](lambda call: call(), 12) as runner:
            first = runner.submit(slow.step([view()]))
            assert under_way.wait(20)
            before = len(rows)
            found = [runner.submit(each.step([view(episode=i)])) for i, each in enumerate(others)]
            while len(stepper._passes._waiting) < len(others):
                time.sleep(0.001)
            go_on.set()
            assert first.result(20) == [0]
            assert all(each.result(20) for each in found)
    assert rows[before:] == [16]


@pytest.mark.skipif(count_cpus() == 1, reason="auto picks no process where there is one CPU")
def test_auto_moves_a_policy_to_its_process_as_it_stands_and_pickles_it_once() -> None:
    with stepper_of("auto") as stepper:
        (actions,) = play_episode(stepper, [source(policies.Countable)], steps=7)
    assert actions == [0, 0, 0, 2, 2, 2, 2]


def test_a_policy_that_is_made_in_its_process_is_never_pickled_itself(processes: PolicyStepper) -> None:
    assert play_episode(processes, [source(policies.Countable)] * 2, steps=3) == [[0, 0, 0], [0, 0, 0]]
