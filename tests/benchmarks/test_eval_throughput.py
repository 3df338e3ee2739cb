"""The schedule at no cost that evaluations are held against."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.eval_throughput import zero_overhead_s

SECONDS = st.integers(0, 20).map(float)
EPISODES = st.lists(st.lists(st.lists(SECONDS, min_size=1, max_size=4), max_size=4), max_size=6)


def test_a_step_waits_for_all_agents_of_the_step_before_it() -> None:
    assert zero_overhead_s([[[1.0, 3.0], [2.0, 1.0]]], jobs=2) == 5.0


def test_a_free_slot_takes_the_step_that_was_ready_first() -> None:
    assert zero_overhead_s([[[4.0, 1.0]], [[2.0], [2.0]]], jobs=2) == 5.0


def test_no_more_episodes_are_open_than_there_are_jobs() -> None:
    """With one job the second episode begins when the first has ended, though it waits for nothing."""
    assert zero_overhead_s([[[1.0], [1.0]], [[1.0]]], jobs=1) == 3.0


@given(episodes=EPISODES)
def test_one_job_takes_the_sum_and_any_number_no_less_than_the_longest_episode(
    episodes: list[list[list[float]]],
) -> None:
    total = sum(seconds for episode in episodes for step in episode for seconds in step)
    longest = max((sum(map(max, episode)) for episode in episodes), default=0.0)
    assert zero_overhead_s(episodes, jobs=1) == total
    assert zero_overhead_s(episodes, jobs=100) == longest
    assert max(total / 3, longest) <= zero_overhead_s(episodes, jobs=3) + 1e-9


def test_without_episodes_no_time_is_taken() -> None:
    assert zero_overhead_s([], jobs=4) == pytest.approx(0)
