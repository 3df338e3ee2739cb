"""The observation: each entry where the layout says."""

from __future__ import annotations

import numpy as np

from envs.observation import Memory, observation, observation_space


def test_every_entry_stands_where_the_layout_says() -> None:
    embedding = np.array([0.6, 0.0, 0.0, -0.8], np.float32)
    memory = Memory().after(2, 0.95, "answered").after(0, -0.05, "partly_refused", changed=False)
    seen = observation(embedding, 3, memory, 0.4)
    expected = [1.2, 0, 0, -1.6, *[1, 0, 1], *[1, 0, 0], *[1, 0, 0], -0.05, *[0, 1, 0], 0.4]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    assert seen.dtype == np.float32
    assert seen in observation_space(4, 3)


def test_a_mutator_that_changes_the_query_at_a_second_try_is_idle_no_more() -> None:
    memory = Memory().after(1, -0.05, "refused", changed=False)
    assert memory.idle == {1}
    assert memory.after(1, -0.05, "refused", changed=True).idle == set()


def test_at_the_start_there_is_the_query_and_nothing_else() -> None:
    seen = observation(np.array([0.0, 1.0], np.float32), 2, Memory(), 0.0)
    np.testing.assert_allclose(seen, [0, np.sqrt(2), *[0] * 11], rtol=1e-6)


def test_a_reward_beyond_the_bounds_is_clipped_to_them() -> None:
    seen = observation(np.array([1.0], np.float32), 1, Memory().after(0, -1e9, "refused"), 1.0)
    assert seen in observation_space(1, 1)
