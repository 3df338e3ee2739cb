"""Where lanes could differ from Gymnasium's own vectors, or leave something behind: they do not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from envs.lanes import LaneVectorEnv
from tests.envs.lane_worlds import Counting, Waiting, Wide


def test_a_masked_reset_beside_a_step_of_a_lane_left_out_is_refused() -> None:
    lanes = LaneVectorEnv([partial(Counting, lane) for lane in range(3)])
    lanes.reset(seed=0)
    lanes.send([1, 2], [0, 1])
    with pytest.raises(AlreadyPendingCallError, match=r"leaves out lanes \[1\]"):
        lanes.reset(options={"reset_mask": np.array([True, False, True])})
    assert sorted(lanes.recv(2).rewards.tolist()) == [1, 2]
    lanes.send([1], [0])
    shown, _ = lanes.reset(options={"reset_mask": np.array([True, False, True])})
    assert shown[:, 2].tolist() == [0, 1, 0]
    lanes.close()


def test_a_timeout_is_pythons_and_that_of_gymnasiums_async_vector() -> None:
    waiting = LaneVectorEnv([Waiting])
    waiting.reset()
    waiting.step_async([1])
    for kind in (TimeoutError, multiprocessing.TimeoutError):
        with pytest.raises(kind):
            waiting.step_wait(timeout=0)
    waiting.envs[0].go()
    waiting.step_wait()
    waiting.close()


def test_the_last_observation_of_an_episode_outlives_the_reset() -> None:
    class Reusing(Counting):
        seen = np.zeros(4, np.float32)

        def show(self, action: int | np.int64) -> NDArray[np.float32]:
            self.seen[:] = super().show(action)
            return self.seen

    lanes = LaneVectorEnv([partial(Reusing, 0, 1)], autoreset_mode=AutoresetMode.SAME_STEP)
    lanes.reset()
    assert lanes.step([3])[4]["final_obs"][0].tolist() == [0, 1, 1, 3]
    lanes.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_resets_without_options_leave_the_environments_own_defaults(mode: AutoresetMode) -> None:
    class Own(Counting):
        def reset(self, *, seed: int | None = None, options: Any = "own") -> Any:  # noqa: ANN401 - Gymnasium's
            return super().reset(seed=seed, options={"from": options})

    lanes = LaneVectorEnv([partial(Own, 0, 1)], autoreset_mode=mode)
    lanes.reset()
    lanes.step([0])
    lanes.step([0])
    assert lanes.get_attr("options")[0][:2] == [{"from": "own"}, {"from": "own"}]
    lanes.close()


def test_environments_that_come_to_nothing_are_closed() -> None:
    made: list[Counting] = []

    def make(kind: type[Counting]) -> Counting:
        made.append(kind())
        return made[-1]

    def fail() -> Counting:
        raise LookupError("no such environment")

    with pytest.raises(LookupError):
        LaneVectorEnv([partial(make, Counting), partial(make, Counting), fail])
    with pytest.raises(RuntimeError, match="lane 1"):
        LaneVectorEnv([partial(make, Counting), partial(make, Wide)])
    assert [len(env.closed_by) for env in made] == [1] * 4


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TimeLimit(env, 5)], ids=["bare", "wrapped"])
def test_the_same_environment_in_two_lanes_is_refused(wrap: Callable[[Counting], Any]) -> None:
    shared = Counting()
    with pytest.raises(ValueError, match=r"lanes 1 and 2 have the same environment object.*make a new"):
        LaneVectorEnv([Counting, lambda: shared, lambda: wrap(shared)])
    assert shared.closed_by


def test_each_lane_may_have_reset_options_of_its_own() -> None:
    lanes = LaneVectorEnv([partial(Counting, lane) for lane in range(3)])
    options = [{"query": "a"}, None, {}]
    lanes.reset(seed=1, options=options)
    assert lanes.get_attr("options") == ([{"query": "a"}], [None], [{}])
    with pytest.raises(ValueError, match="expected 3 reset options, one per lane, got 2"):
        lanes.reset(options=options[:2])
    lanes.close()


def test_an_environment_whose_reset_takes_no_options_is_reset_without() -> None:
    class Plain(Counting):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override] # noqa: ANN401 - no options
            return super().reset(seed=seed)

    lanes = LaneVectorEnv([partial(Plain, lane) for lane in range(2)])
    assert lanes.reset(seed=3)[0].tolist() == [[0, 1, 0, 0], [1, 1, 0, 0]]
    with pytest.raises(TypeError, match="options"):
        lanes.reset(options={"query": "a"})
    lanes.close()


def test_an_error_that_lanes_share_names_each_lane_once() -> None:
    error = LookupError("shared")

    class Sharing(Counting):
        def fail_in(self, lane: int) -> int:
            raise error if lane == 0 else LookupError

    lanes = LaneVectorEnv([Sharing] * 2)
    for _ in range(2):
        with pytest.raises(LookupError):
            lanes.call("fail_in", 0)
    assert error.__notes__ == ["raised in lane 0"]
    lanes.close()
