"""Whatever steps a policy, it does the same."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.policies.baselines import RoundRobinSource, SampledSource
from evaluation.policies.policy import PolicySource
from evaluation.wrappers.costs import count_cpus
from tests.evaluation import policies_for_tests as policies
from tests.evaluation.network_policies import Likeliest, Networked
from tests.evaluation.policies_for_tests import source
from tests.evaluation.wrappers.playing import failures, play, play_episode, view, wrapper_of

EACH_ALONE = ("serial", "thread", "process", "auto")
LONG_MS = 60_000.0
"""A deadline that nothing overruns."""


def wanderers(agents: int = 3) -> list[PolicySource]:
    return [source(policies.Wanderer)] * agents


@pytest.mark.parametrize("timeout_ms", [None, LONG_MS])
@pytest.mark.parametrize("name", EACH_ALONE)
def test_a_policy_with_a_memory_and_a_stream_of_chance_does_the_same_under_every_wrapper(
    name: str, timeout_ms: float | None
) -> None:
    with wrapper_of("serial", jobs=1) as wrapper:
        expected = play(wrapper, wanderers())
    with wrapper_of(name, action_timeout_ms=timeout_ms) as wrapper:
        assert play(wrapper, wanderers()) == expected
    assert not failures(expected)


@pytest.mark.parametrize("name", ["serial", "thread", "batch", "auto"])
def test_a_policy_that_serves_many_agents_does_the_same_in_one_call_as_alone(name: str) -> None:
    with wrapper_of("serial") as wrapper:
        expected = play(wrapper, [source(policies.Together)] * 3)
    with wrapper_of(name) as wrapper:
        assert play(wrapper, [source(policies.Together)] * 3) == expected
    assert not failures(expected)


@pytest.mark.parametrize("name", ["serial", "thread", "process", "batch", "torch", "auto"])
def test_a_network_does_the_same_alone_as_in_a_block_with_others(name: str) -> None:
    sources = [source(Networked), source(Networked, kind=1), source(Likeliest), source(Networked)]
    with wrapper_of("serial") as wrapper:
        expected = [play_episode(wrapper, sources, episode=episode) for episode in range(6)]
    with wrapper_of(name) as wrapper:
        assert play(wrapper, sources, episodes=6) == expected
    assert not failures(expected)


@pytest.mark.parametrize("name", ["thread", "process", "auto"])
def test_policies_of_several_kinds_play_in_one_team(name: str) -> None:
    sources: list[PolicySource] = [
        source(policies.Wanderer),
        SampledSource(name="random", weights=(0.5, 0.25, 0.25, 0, 0, 0, 0)),
        RoundRobinSource(),
        source(policies.Together),
    ]
    with wrapper_of("serial") as wrapper:
        expected = play(wrapper, sources)
    with wrapper_of(name) as wrapper:
        assert play(wrapper, sources) == expected
    assert not failures(expected)


@pytest.mark.parametrize("kind", [policies.Busy, policies.Waiting, policies.Unpicklable, policies.Homebody])
def test_auto_does_the_same_before_and_after_it_moves_a_policy(kind: type[policies.Wanderer]) -> None:
    with wrapper_of("serial") as wrapper:
        expected = play(wrapper, [source(kind)] * 2)
    with wrapper_of("auto") as wrapper:
        assert play(wrapper, [source(kind)] * 2) == expected
        assert play(wrapper, [source(kind)] * 2) == expected
    assert not failures(expected)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True, min_size=1), st.randoms())
def test_actions_do_not_depend_on_the_order_in_which_they_are_asked_for(
    seats: list[tuple[int, int]], chance: object
) -> None:
    order = seats[:]
    chance.shuffle(order)  # type: ignore[attr-defined] # a random.Random
    sources = [source(policies.Wanderer), source(Networked), source(policies.Together), source(Likeliest)]
    found = []
    for name, asked in (("serial", seats), ("auto", order)):
        with wrapper_of(name) as wrapper:
            teams = [
                wrapper.team(sources, [10 * episode + agent for agent in range(4)]) for episode in range(4)
            ]
            pending = {(e, a): teams[e].submit(a, view(a, 0, e)) for e, a in sorted(seats)}
            found.append({seat: pending[seat].result() for seat in asked})
    assert found[0] == found[1]


def test_views_that_came_in_while_a_forward_pass_was_under_way_go_into_the_next_one_together() -> None:
    under_way, go_on = threading.Event(), threading.Event()

    class Slow(Likeliest):
        def choose(self, _scores: object, _view: object) -> int:
            under_way.set()
            go_on.wait(20)
            return 0

    with wrapper_of("torch") as wrapper:
        slow = wrapper.team([source(Slow)], [0])
        first = slow.submit(0, view())
        waiter = threading.Thread(target=first.result)
        waiter.start()
        assert under_way.wait(20)
        teams = [wrapper.team([source(Likeliest)], [seed]) for seed in range(1, 12)]
        rows = Likeliest(0).network.rows
        before = len(rows)
        pending = [team.submit(0, view(episode=i)) for i, team in enumerate(teams)]
        go_on.set()
        waiter.join()
        actions = [each.result() for each in pending]
    assert len(actions) == 11
    assert rows[before:] == [16]


@pytest.mark.skipif(count_cpus() == 1, reason="auto picks no process where there is one CPU")
def test_auto_moves_a_policy_to_its_process_as_it_stands_and_pickles_it_once() -> None:
    with wrapper_of("auto") as wrapper:
        (actions,) = play_episode(wrapper, [source(policies.Countable)], steps=7)
    assert actions == [0, 0, 0, 2, 2, 2, 2]


def test_a_policy_that_is_made_in_its_process_is_never_pickled_itself() -> None:
    with wrapper_of("process") as wrapper:
        assert play_episode(wrapper, [source(policies.Countable)] * 2, steps=3) == [[0, 0, 0], [0, 0, 0]]
