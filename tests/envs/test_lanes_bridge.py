"""Stable-Baselines3 over lanes that are stepped one by one: they tell what rows tell, and keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.vector import AutoresetMode

from envs.lanes import LaneVectorEnv
from envs.sb3 import GymnasiumVecEnv, LaneStep
from tests.envs.lane_worlds import Counting, same

Env = gymnasium.Env[Any, Any]


def bridge(make: Callable[[], Env], lanes: int = 2) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(LaneVectorEnv([make] * lanes, autoreset_mode=AutoresetMode.SAME_STEP))


class Reusing(Counting):
    """Tells and shows the same arrays all the time, and numpy's scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = np.zeros(4, np.float32)
        self.told: dict[str, Any] = {"deep": {"at": np.zeros(2), "list": [0]}}

    def show(self, action: int | np.int64) -> Any:  # noqa: ANN401 - Counting's
        self.shown[:] = super().show(action)
        return self.shown

    def step(self, action: np.int64) -> Any:  # noqa: ANN401 - Gymnasium's five values
        shown, reward, terminated, truncated, _ = super().step(action)
        self.told["deep"]["at"] += 1
        self.told["deep"]["list"][0] += 1
        return shown, reward, terminated, truncated, self.told | {"scalar": np.float32(0.5)}


def one_by_one(env: GymnasiumVecEnv, actions: list[int]) -> list[LaneStep]:
    env.send(np.array(actions), range(len(actions)))
    steps: list[LaneStep] = []
    while len(steps) < len(actions):
        steps += env.recv()
    return sorted(steps, key=lambda step: step.lane)


def test_steps_taken_one_by_one_tell_what_a_row_tells_type_by_type() -> None:
    rows, apart = bridge(Reusing), bridge(Reusing)
    rows.seed(3)
    apart.seed(3)
    assert same(rows.reset(), apart.reset())
    ended = 0
    for action in [1, 2, 0, 3, 1, 2, 1]:
        shown, rewards, dones, infos = rows.step(np.array([action, action]))
        for lane, step in enumerate(one_by_one(apart, [action, action])):
            assert same(step.observation, np.asarray(shown)[lane])
            assert (step.reward, step.done) == (rewards[lane], dones[lane])
            assert same(step.info, infos[lane])
            if step.done:
                ended += 1
                assert same(step.reset_info, rows.reset_infos[lane])
    assert ended == 4


def test_what_a_step_told_stays_when_its_environment_goes_on() -> None:
    for take in (
        lambda env: one_by_one(env, [1, 1])[0].info,
        lambda env: env.step(np.array([1, 1]))[3][0],
    ):
        env = bridge(Reusing)
        env.reset()
        infos = [take(env) for _ in range(5)]
        assert [info["deep"]["at"].tolist() for info in infos] == [[k, k] for k in range(1, 6)]
        assert [info["deep"]["list"] for info in infos] == [[k] for k in range(1, 6)]
        assert infos[2]["terminal_observation"].tolist() == [0, 1, 3, 1]


@pytest.mark.parametrize(
    "space",
    [
        Dict(at=Box(0, 1, (2,)), on=Discrete(3)),
        Tuple((Box(0, 1, (2,)), Discrete(3))),
        Discrete(4),
        Text(5),
    ],
    ids=["dict", "tuple", "discrete", "text"],
)
def test_each_lane_shows_an_observation_of_its_own_space(space: gymnasium.Space[Any]) -> None:
    class Sampling(Counting):
        observation_space = space  # type: ignore[assignment]

        def show(self, action: int | np.int64) -> Any:  # noqa: ANN401 - of the space
            del action
            return self.observation_space.sample()

    env = bridge(Sampling)
    env.reset()
    assert all(step.observation in space for step in one_by_one(env, [1, 1]))


def test_methods_of_some_lanes_are_called_by_the_lanes_and_not_beside_a_step() -> None:
    env = bridge(Counting, lanes=3)
    env.reset()
    assert env.env_method("render", indices=[2, 0]) == ["0: 0", "0: 0"]
    assert env.env_method("fail_in", 7, indices=1) == [0]
    env.send(np.array([1]), [0])
    for indices in (None, [1], [0, 2]):
        with pytest.raises(AlreadyPendingCallError):
            env.env_method("render", indices=indices)
    env.drop()
    assert env.env_method("render", indices=[0, 1]) == ["0: 1", "0: 0"]
