"""PPO over rows that did not happen, on genuine environments behind the bridge."""

from __future__ import annotations

import logging
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from envs.lanes import LaneVectorEnv
from envs.sb3 import GymnasiumVecEnv
from tests.train.environments import ScriptedEnv, Seen, StallingCartPole, Turn, bridge, cartpoles
from tests.train.test_rollout_buffer import GAMMA, LAMBDA, PAPER_ADVANTAGES, PAPER_RETURNS, PAPER_SCORED
from train.lanes import LanePPO
from train.ppo import MaskedPPO, predict_blocks, weights_sha256


class Watch(BaseCallback):
    """Notes what SB3 tells a callback and copies the buffer of each rollout; may stop after some rows."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.heard: list[str] = []
        self.buffers: list[Any] = []

    def _on_rollout_start(self) -> None:
        self.heard.append("start")

    def _on_step(self) -> bool:
        names = {"actions", "rewards", "dones", "infos", "values", "log_probs", "new_obs"}
        assert names <= self.locals.keys()
        self.heard.append(f"row {self.locals['n_steps']} at {self.num_timesteps}")
        return self.stop_after is None or self.n_calls < self.stop_after

    def _on_rollout_end(self) -> None:
        self.heard.append("end")
        self.buffers.append(deepcopy(self.locals["rollout_buffer"]))


class Stir(BaseCallback):
    """Draws from every global random state there is."""

    def _on_step(self) -> bool:
        np.random.rand(3)  # noqa: NPY002 - that is the one
        torch.rand(3)
        return True


class Kept(KVWriter):
    """Keeps the entries of a log."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:  # noqa: ARG002 - SB3's
        self.entries.append(dict(key_values))


class KeepRewards(VecEnvWrapper):
    """Hands out the reward arrays and keeps hold of them."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.rewards: list[NDArray[np.float32]] = []

    def reset(self) -> Any:  # noqa: ANN401 - SB3's
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        step = self.venv.step_wait()
        self.rewards.append(step[1])
        return step


# The case worked on paper in test_rollout_buffer.py; a policy values what it is shown at just that number.
PAPER_SCRIPTS = (
    [
        Turn(1, 0),
        Turn(2, 1, "terminated"),
        Turn(1, 0),
        Turn(0.5, 7, "unscored"),
        Turn(0.5, 1),
        Turn(1, 0),
        Turn(2, 0),
    ],
    [
        Turn(1, 0),
        Turn(1, 0),
        Turn(1, 1, "truncated", last=2),
        Turn(0, 7, "unscored"),
        Turn(0, 1),
        Turn(3, 7, "unscored"),
        Turn(3, 0),
    ],
)


def ppo(env: VecEnv, *, seed: int | None = 3, n_steps: int = 16, **more: Any) -> MaskedPPO:  # noqa: ANN401 - SB3's options
    half = n_steps * env.num_envs // 2
    settings: dict[str, Any] = {"n_steps": n_steps, "batch_size": half, "n_epochs": 2, "device": "cpu"}
    return MaskedPPO("MlpPolicy", env, seed=seed, **settings, **more)


def ppo_on_paper(env: VecEnv) -> MaskedPPO:
    """A model whose policy values an observation of one number at that number."""
    linear: dict[str, list[int]] = {"net_arch": []}
    model = ppo(env, n_steps=6, gamma=GAMMA, gae_lambda=LAMBDA, policy_kwargs=linear)
    with torch.no_grad():
        model.policy.value_net.weight.fill_(1)
        model.policy.value_net.bias.fill_(0)
    return model


def paper_scripts() -> GymnasiumVecEnv:
    return bridge([partial(ScriptedEnv, script) for script in PAPER_SCRIPTS])


def test_the_case_worked_on_paper_holds_from_the_environment_to_the_buffer() -> None:
    watch = Watch()
    ppo_on_paper(paper_scripts()).learn(12, watch)
    (buffer,) = watch.buffers
    np.testing.assert_array_equal(buffer.scored, PAPER_SCORED)
    np.testing.assert_allclose(buffer.advantages, PAPER_ADVANTAGES, rtol=1e-6)
    np.testing.assert_allclose(buffer.returns[PAPER_SCORED], PAPER_RETURNS[PAPER_SCORED], rtol=1e-6)


def test_the_environments_rewards_are_left_as_they_were() -> None:
    env = KeepRewards(paper_scripts())
    ppo_on_paper(env).learn(12)
    told = [[turn.reward for turn in turns[:2]] for turns in zip(*PAPER_SCRIPTS, strict=True)]
    assert [rewards.tolist() for rewards in env.rewards] == told[:6]


def test_the_same_seed_gives_the_same_weights_whatever_else_draws_at_random() -> None:
    hashes = [weights_sha256(ppo(cartpoles()).learn(256, callback).policy) for callback in (None, Stir())]
    assert hashes[0] == hashes[1]
    assert hashes[0] != weights_sha256(ppo(cartpoles(), seed=4).learn(256).policy)


def test_what_an_unscored_row_pays_changes_nothing() -> None:
    hashes = {weights_sha256(ppo(cartpoles(every=5, junk=junk)).learn(256).policy) for junk in (0.0, -1e6)}
    assert len(hashes) == 1


def test_a_lane_acts_again_with_fresh_noise_on_what_an_unscored_row_showed() -> None:
    watch = Watch()
    ppo(cartpoles(every=2)).learn(64, watch)
    (buffer,) = watch.buffers
    np.testing.assert_array_equal(buffer.scored, np.tile([[True], [False]], (8, 4)))
    np.testing.assert_array_equal(buffer.observations[1:-1:2], buffer.observations[2::2])
    np.testing.assert_array_equal(buffer.values[1:-1:2], buffer.values[2::2])
    assert (buffer.actions[1:-1:2] != buffer.actions[2::2]).any()


def test_updates_without_a_scored_row_are_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    model = ppo(cartpoles(every=1))
    before = weights_sha256(model.policy)
    with caplog.at_level(logging.WARNING):
        model.learn(128)
    assert weights_sha256(model.policy) == before
    assert model.skipped_updates == 2
    assert caplog.messages == [f"rollout {n} has no scored row: its update is skipped" for n in (1, 2)]


def test_rollouts_of_which_a_single_row_is_scored_leave_the_weights_finite() -> None:
    model = ppo(
        bridge([lambda: StallingCartPole(every=1)] * 3 + [lambda: StallingCartPole(every=2)]), n_steps=2
    )
    model.learn(16)
    assert all(torch.isfinite(weight).all() for weight in model.policy.parameters())
    assert model.logger.name_to_value["train/skipped_updates"] == 0


def test_an_unscored_row_that_ends_an_episode_is_refused() -> None:
    class Quits(StallingCartPole):
        def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
            seen, reward, _, _, info = super().step(action)
            return seen, reward, False, True, info

    with pytest.raises(ValueError, match=r"lanes \[0\] ended their episode with an unscored step"):
        ppo(bridge([lambda: Quits(every=1)])).learn(16)


def test_callbacks_hear_what_sb3s_ppo_tells_them() -> None:
    watch = Watch()
    model = ppo(cartpoles(), n_steps=2).learn(16, watch)
    assert watch.heard == [
        *("start", "row 0 at 4", "row 1 at 8", "end"),
        *("start", "row 0 at 12", "row 1 at 16", "end"),
    ]
    assert (model.rollouts, model.actions_per_lane) == (2, 4)


def test_a_callback_can_stop_the_training_within_a_rollout() -> None:
    model = ppo(cartpoles()).learn(256, Watch(stop_after=20))
    assert model.num_timesteps == 80
    assert model.rollouts == 1


def test_a_saved_model_predicts_the_same_once_loaded(tmp_path: Path) -> None:
    model = ppo(cartpoles()).learn(128)
    model.save(tmp_path / "policy.zip")
    loaded = MaskedPPO.load(tmp_path / "policy.zip", device="cpu")
    observations = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    for mine, theirs in zip(
        predict_blocks(model.policy, observations), predict_blocks(loaded.policy, observations), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert weights_sha256(loaded.policy) == weights_sha256(model.policy)


def test_a_loaded_model_learns_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    env = cartpoles(every=7)
    model = ppo(env).learn(128)
    model.save(tmp_path / "policy.zip")
    loaded = MaskedPPO.load(tmp_path / "policy.zip", env=deepcopy(env), device="cpu", force_reset=False)
    hashes = [weights_sha256(m.learn(128, reset_num_timesteps=False).policy) for m in (model, loaded)]
    assert hashes[0] == hashes[1]


def test_without_a_seed_one_is_drawn_and_kept() -> None:
    model = ppo(cartpoles(), seed=None)
    assert model.seed is not None
    assert model.rollout_buffer.seed == model.seed
    assert weights_sha256(model.learn(64).policy) == weights_sha256(
        ppo(cartpoles(), seed=model.seed).learn(64).policy
    )


@pytest.mark.parametrize(("asked", "log_every", "entries"), [(1, 1, 4), (2, 1, 2), (1, 3, 1), (None, 1, 0)])
def test_the_log_has_the_entries_that_learn_is_asked_for(
    asked: int | None, log_every: int, entries: int
) -> None:
    kept = Kept()
    model = ppo(cartpoles())
    model.log_every = log_every
    model.set_logger(Logger(None, [kept]))
    model.learn(4 * 64, log_interval=asked)  # type: ignore[arg-type] # SB3 takes None for no entry
    iterations = [entry["time/iterations"] for entry in kept.entries]
    assert iterations == [(k + 1) * (asked or 1) * log_every for k in range(entries)]
    assert all("train/loss" in entry for entry in kept.entries)


@pytest.mark.parametrize("kind", [MaskedPPO, LanePPO])
def test_actions_that_do_not_start_at_0_are_the_environments_own(
    kind: type[MaskedPPO], tmp_path: Path
) -> None:
    class Offset(StallingCartPole):
        def __init__(self, first: int) -> None:
            super().__init__(every=7)
            self.first = first
            self.action_space = gymnasium.spaces.Discrete(2, start=first)

        def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
            assert action in self.action_space
            return super().step(action - self.first)

    def lanes(first: int) -> GymnasiumVecEnv:
        fns = [partial(Offset, first)] * 4
        return GymnasiumVecEnv(LaneVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))

    models = []
    for first in (0, 5):
        env = lanes(first)
        settings: dict[str, Any] = {
            "n_steps": 16,
            "batch_size": 32,
            "n_epochs": 2,
            "device": "cpu",
            "seed": 3,
        }
        models.append(kind("MlpPolicy", env, **settings).learn(128))
        env.close()
    assert weights_sha256(models[0].policy) == weights_sha256(models[1].policy)
    models[1].save(tmp_path / "policy.zip")
    seen = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    expected = models[0].predict(seen, deterministic=True)[0] + 5
    for model in (models[1], kind.load(tmp_path / "policy.zip", device="cpu")):
        assert model.predict(seen, deterministic=True)[0].tolist() == expected.tolist()
        assert model.predict(seen[0], deterministic=True)[0] == expected[0]


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(TypeError, match="expected Discrete actions"):
        ppo(bridge([lambda: gymnasium.make("Pendulum-v1")]))


def test_a_buffer_without_a_mask_is_refused() -> None:
    model = ppo(cartpoles())
    plain = RolloutBuffer(16, model.observation_space, model.action_space, n_envs=4)
    with pytest.raises(TypeError, match="is a RolloutBuffer; expected a MaskedRolloutBuffer"):
        model.collect_rollouts(cartpoles(), Watch(), plain, 16)
