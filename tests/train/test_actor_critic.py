"""The policy of `mutagym train`: what it draws, what it saves, and what its ways around the MLP mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from envs.observation import Memory, observation, observation_space
from tests.train.environments import bridge
from train.actor_critic import OWN_SCALE, QueryPolicy
from train.ppo import MaskedPPO, predict_blocks, weights_sha256

WIDE, MUTATORS = 32, 4


class OneStep(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A query is a direction, and the mutator pays that has its largest entry."""

    observation_space = observation_space(WIDE, MUTATORS)
    action_space = gymnasium.spaces.Discrete(MUTATORS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.query = shown(self.np_random.normal(size=WIDE))
        return self.query, {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self.query, float(np.argmax(self.query[:MUTATORS]) == action), True, False, {}


class Stir(BaseCallback):
    """Draws from torch's global stream."""

    def _on_step(self) -> bool:
        torch.rand(3)
        return True


def shown(query: NDArray[np.float64], memory: Memory | None = None) -> NDArray[np.float32]:
    unit = (query / np.linalg.norm(query)).astype(np.float32)
    return observation(unit, MUTATORS, memory or Memory(), 0.0)


def model(seed: int = 3) -> MaskedPPO:
    env = bridge([OneStep] * 4)
    return MaskedPPO(QueryPolicy, env, n_steps=16, batch_size=32, n_epochs=2, device="cpu", seed=seed)


def test_what_dropout_hides_depends_on_the_seed_alone() -> None:
    plain = weights_sha256(model().learn(128).policy)
    assert weights_sha256(model().learn(128, Stir()).policy) == plain
    assert weights_sha256(model(seed=4).learn(128).policy) != plain


def test_an_update_leaves_torchs_global_stream_as_it_was() -> None:
    learner = model().learn(64)
    state = torch.random.get_rng_state()
    learner.train()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_actions_are_chosen_with_the_whole_embedding_and_in_blocks_of_the_same_bits() -> None:
    policy = model().learn(64).policy
    observations = np.stack([shown(each) for each in np.random.default_rng(0).normal(size=(19, WIDE))])
    _, logits = predict_blocks(policy, observations)
    np.testing.assert_array_equal(predict_blocks(policy, observations)[1], logits)
    np.testing.assert_array_equal(predict_blocks(policy, observations[17:], [17, 18])[1], logits[17:])


def test_an_update_sees_but_a_part_of_the_embedding() -> None:
    policy = model().policy
    policy.set_training_mode(True)
    observations = torch.from_numpy(np.stack([shown(np.ones(WIDE))] * 50))
    values = policy.predict_values(observations)
    assert len(torch.unique(values)) > 1


def test_what_was_done_with_a_mutator_adds_to_its_own_logit() -> None:
    policy = model().policy
    head: Any = policy.action_net
    with torch.no_grad():
        head.own.copy_(torch.tensor([1.0, 10.0, 100.0]))  # tried, left the query as it was, last
        head.linear.weight.zero_()
        head.linear.bias.zero_()
    memory = Memory().after(1, 0.0, "refused").after(2, 0.0, "refused", changed=False)
    batch = torch.from_numpy(shown(np.ones(WIDE), memory)[None])
    policy.set_training_mode(False)
    with torch.no_grad():
        logits = head(policy.mlp_extractor.forward_actor(batch))
    np.testing.assert_allclose(logits[0], [0, OWN_SCALE, 111 * OWN_SCALE, 0], rtol=1e-6)


def test_a_saved_policy_is_loaded_as_it_was(tmp_path: Path) -> None:
    learner = model().learn(64)
    learner.save(tmp_path / "policy.zip")
    loaded = MaskedPPO.load(tmp_path / "policy.zip", device="cpu")
    assert weights_sha256(loaded.policy) == weights_sha256(learner.policy)
    batch = np.stack([shown(each) for each in np.random.default_rng(0).normal(size=(3, WIDE))])
    np.testing.assert_array_equal(
        predict_blocks(loaded.policy, batch)[1], predict_blocks(learner.policy, batch)[1]
    )
