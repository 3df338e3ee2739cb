"""PPO without a barrier inside the rollout: the same run as with one, whatever the lanes wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from envs.lanes import LaneVectorEnv
from envs.sb3 import GymnasiumVecEnv
from tests.train.environments import Env, Seen, StallingCartPole
from tests.train.test_ppo import Watch
from train.lanes import LanePPO
from train.ppo import MaskedPPO, weights_sha256

LANES = 4
Wrap = Callable[[VecEnv], VecEnv]


class Queue:
    """Lets waiting steps go one at a time, by a given choice among those that wait."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = list(choices)
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._taken = 0

    def wait(self) -> None:
        """Wait for my turn: another's step goes first as long as it is chosen and there."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting[self._next()] is me)
            self._waiting.remove(me)
            self._taken += 1
            self._changed.notify_all()

    def _next(self) -> int:
        chosen = self._choices[self._taken % len(self._choices)] if self._choices else 0
        return chosen % len(self._waiting)


class Queued(gymnasium.Wrapper[Seen, np.int64, Seen, np.int64]):
    """An environment each step of which waits in a queue with others'."""

    def __init__(self, env: Env, queue: Queue) -> None:
        super().__init__(env)
        self.queue = queue

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        self.queue.wait()
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, float(reward), terminated, truncated, info


def cartpole(every: int = 7) -> Env:
    return StallingCartPole(every, junk=5.0)


def in_lanes(choices: Sequence[int] = (), every: int = 7, make: Callable[[Env], Env] = lambda e: e) -> VecEnv:
    queue = Queue(choices)
    fns = [lambda: make(Queued(cartpole(every), queue))] * LANES
    return GymnasiumVecEnv(LaneVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))


def in_rows(every: int = 7, make: Callable[[Env], Env] = lambda e: e) -> VecEnv:
    fns = [lambda: make(cartpole(every))] * LANES
    return GymnasiumVecEnv(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))


def learned(kind: type[MaskedPPO], env: VecEnv, steps: int = 128, **more: Any) -> tuple[str, Watch]:  # noqa: ANN401 - SB3's options
    watch = Watch()
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "device": "cpu", "seed": 3}
    model = kind("MlpPolicy", env, **{**settings, **more}).learn(steps, watch)
    env.close()
    return weights_sha256(model.policy), watch


def same_buffers(some: Watch, others: Watch) -> bool:
    names = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "scored")
    pairs = zip(some.buffers, others.buffers, strict=True)
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in names)


@settings(max_examples=15)
@given(choices=st.lists(st.integers(0, LANES - 1), max_size=40), every=st.integers(1, 8))
def test_whatever_order_steps_end_in_the_run_is_the_one_with_a_barrier(
    choices: Sequence[int], every: int
) -> None:
    weights, heard = learned(MaskedPPO, in_rows(every))
    lanes_weights, lanes_heard = learned(LanePPO, in_lanes(choices, every))
    assert lanes_weights == weights
    assert lanes_heard.heard == heard.heard
    assert same_buffers(lanes_heard, heard)


def test_one_lane_may_be_a_whole_rollout_ahead_of_another() -> None:
    # The first of those that wait is always the lane that came first: lane 0 goes as far as it can.
    weights, _ = learned(MaskedPPO, in_rows())
    for favoured in range(LANES):
        assert learned(LanePPO, in_lanes([favoured]))[0] == weights


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(VecMonitor, id="monitor"),
        pytest.param(partial(VecNormalize, norm_obs=False), id="reward-normalisation"),
        pytest.param(lambda env: VecMonitor(VecNormalize(env, norm_obs=False)), id="both"),
    ],
)
def test_monitors_and_reward_normalisation_see_the_rows_that_they_see_with_a_barrier(wrap: Wrap) -> None:
    weights, heard = learned(MaskedPPO, wrap(in_rows()))
    lanes_weights, lanes_heard = learned(LanePPO, wrap(in_lanes([3, 1, 2])))
    assert lanes_weights == weights
    assert same_buffers(lanes_heard, heard)


def test_lanes_may_be_monitored_one_by_one() -> None:
    class Episodes(Watch):
        def _on_step(self) -> bool:
            self.lengths += [info["episode"]["l"] for info in self.locals["infos"] if "episode" in info]
            return True

        lengths: list[int] = []  # noqa: RUF012 - each is made anew below

    found = []
    for kind, env in ((MaskedPPO, in_rows(make=Monitor)), (LanePPO, in_lanes([2, 0], make=Monitor))):
        watch = Episodes()
        watch.lengths = []
        kind("MlpPolicy", env, n_steps=16, batch_size=32, device="cpu", seed=3).learn(128, watch)
        found.append(watch.lengths)
    assert found[0] == found[1] != []


def test_normalised_observations_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="a lane acts on its own before its row is complete: pass norm_obs"):
        LanePPO("MlpPolicy", VecNormalize(in_lanes()))
    with pytest.raises(ValueError, match="VecFrameStack changes observations by whole rows"):
        LanePPO("MlpPolicy", VecFrameStack(in_lanes(), 2))
    env = in_lanes()
    model = LanePPO("MlpPolicy", env, n_steps=4, batch_size=16, device="cpu")
    with pytest.raises(ValueError, match="VecNormalize changes observations by whole rows"):
        model.set_env(VecNormalize(in_lanes()))
    with pytest.raises(TypeError, match="steps lanes one by one"):
        model.set_env(in_rows())
    assert model.learn(LANES).get_env() is env


def test_images_whose_channels_come_last_are_learned_from_as_with_a_barrier() -> None:
    class Camera(StallingCartPole):
        def __init__(self) -> None:
            super().__init__(every=7)
            self.observation_space: Any = Box(0, 255, (36, 36, 3), np.uint8)
            self.seen: Any = np.zeros((36, 36, 3), np.uint8)

        def reset(self, **more: Any) -> Any:  # noqa: ANN401 - Gymnasium's
            _, info = self.env.reset(**more)
            self.seen = self.look(0)
            return self.seen, info

        def step(self, action: np.int64) -> Any:  # noqa: ANN401 - Gymnasium's
            self.tried += 1
            if self.tried % self.every == 0:
                return self.seen, 0.0, False, False, {"unscored": True}
            _, *rest = self.env.step(action)
            self.seen = self.look(int(action) + 1)
            return self.seen, *rest

        def look(self, colour: int) -> Any:  # noqa: ANN401 - an image
            image = np.zeros((36, 36, 3), np.uint8)
            image[self.tried % 36, :, colour] = 255
            return image

    settings: dict[str, Any] = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 3}
    weights = []
    for kind, vector in ((MaskedPPO, SyncVectorEnv), (LanePPO, LaneVectorEnv)):
        env = GymnasiumVecEnv(vector([Camera] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
        model = kind("CnnPolicy", env, **settings).learn(64)
        assert isinstance(model.get_env(), VecTransposeImage)
        weights.append(weights_sha256(model.policy))
        env.close()
    assert weights[0] == weights[1]


class Meddler(VecEnvWrapper):
    """Changes observations, or actions, of whole rows without saying so in its spaces."""

    def __init__(self, venv: VecEnv, what: str) -> None:
        super().__init__(venv)
        self.what = what

    def reset(self) -> Any:  # noqa: ANN401 - SB3's
        return self.venv.reset()

    def step_async(self, actions: Any) -> None:  # noqa: ANN401 - SB3's
        self.venv.step_async(1 - actions if self.what == "actions" else actions)

    def step_wait(self) -> VecEnvStepReturn:
        seen, *rest = self.venv.step_wait()
        return (seen * 2 if self.what == "observations" else seen, *rest)  # type: ignore[return-value, operator]


@pytest.mark.parametrize("what", ["observations", "actions"])
def test_a_wrapper_that_meddles_with_rows_is_found_out(what: str) -> None:
    with pytest.raises(ValueError, match=f"a wrapper changes {what} by whole rows"):
        learned(LanePPO, Meddler(in_lanes(), what))


def test_environments_without_lanes_are_refused() -> None:
    for env, name in (
        (in_rows(), "SyncVectorEnv"),
        (DummyVecEnv([cartpole]), "DummyVecEnv"),
        (
            GymnasiumVecEnv(
                RecordEpisodeStatistics(LaneVectorEnv([cartpole] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
            ),
            "RecordEpisodeStatistics",
        ),
    ):
        with pytest.raises(TypeError, match=f"steps lanes one by one, which {name} cannot"):
            LanePPO("MlpPolicy", env)


def test_a_training_that_a_callback_stopped_can_go_on() -> None:
    env = in_lanes([1, 3, 0])
    model = LanePPO("MlpPolicy", env, n_steps=16, batch_size=32, device="cpu", seed=3)
    stopped = Watch(stop_after=5)
    model.learn(128, stopped)
    assert stopped.heard == ["start", *(f"row {row} at {4 * row + 4}" for row in range(5))]
    assert len(env.get_attr("spec")) == LANES  # no step is under way
    again = Watch()
    model.learn(64, again)
    assert again.heard == ["start", *(f"row {row} at {4 * row + 4}" for row in range(16)), "end"]
    assert np.all(again.buffers[0].episode_starts[0] == 1)


def test_an_error_in_one_lane_ends_the_training_and_the_next_one_begins_anew() -> None:
    class Fails(gymnasium.Wrapper[Seen, np.int64, Seen, np.int64]):
        broken = True

        def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
            if Fails.broken:
                raise RuntimeError("out of order")
            seen, reward, terminated, truncated, info = self.env.step(action)
            return seen, float(reward), terminated, truncated, info

    fns: list[Callable[[], Env]] = [cartpole, cartpole, lambda: Fails(cartpole())]
    env = GymnasiumVecEnv(LaneVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))
    model = LanePPO("MlpPolicy", env, n_steps=8, batch_size=24, device="cpu", seed=3)
    with pytest.raises(RuntimeError, match="out of order"):
        model.learn(24)
    Fails.broken = False
    assert model.learn(24).num_timesteps == 24


def test_a_model_can_be_saved_in_the_middle_of_a_rollout_and_learns_on(tmp_path: Path) -> None:
    saves = CheckpointCallback(save_freq=5, save_path=str(tmp_path))
    LanePPO("MlpPolicy", in_lanes(), n_steps=16, batch_size=32, device="cpu", seed=3).learn(64, saves)
    model = LanePPO.load(tmp_path / "rl_model_20_steps.zip", env=in_lanes())
    assert model.learn(64, reset_num_timesteps=False).num_timesteps == 84


def test_every_lane_gives_as_many_steps_as_every_other() -> None:
    _, watch = learned(LanePPO, in_lanes([0]), steps=64)
    assert watch.buffers[0].rewards.shape == (16, LANES)
    assert watch.buffers[0].full
