"""The network of `mutagym train`: how it scores, and what an update sees of a query."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from envs.observation import Memory, observation, observation_space
from train.network import QueryPolicy
from train.ppo import LanePPO

WIDE, MUTATORS = 32, 4
START = Memory()


class OneStep(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A query is a direction, and the mutator pays that has its largest entry."""

    observation_space = observation_space(WIDE, MUTATORS)
    action_space = spaces.Discrete(MUTATORS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.query = shown(self.np_random.normal(size=WIDE))
        return self.query, {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self.query, float(np.argmax(self.query[:MUTATORS]) == action), True, False, {}


def shown(query: NDArray[np.float64], memory: Memory = START) -> NDArray[np.float32]:
    unit = (query / np.linalg.norm(query)).astype(np.float32)
    return observation(unit, MUTATORS, memory, 0.0)


def some_shown(count: int, chance: np.random.Generator | None = None) -> NDArray[np.float32]:
    """Observations (count, size) in the middle of episodes."""
    chance = chance or np.random.default_rng(0)
    rows = []
    for number in range(count):
        memory = START
        for action in chance.integers(MUTATORS, size=number % 4):
            label, changed = ("refused", "partly_refused")[action % 2], bool(chance.integers(2))
            memory = memory.after(int(action), -0.05, label, changed=changed)
        rows.append(shown(chance.normal(size=WIDE), memory))
    return np.stack(rows)


def model(seed: int = 3) -> LanePPO:
    envs = [OneStep() for _ in range(4)]
    return LanePPO(
        QueryPolicy, envs, workers=1, n_steps=16, batch_size=32, n_epochs=2, seed=seed, gamma=0.9
    )


def network(learner: LanePPO) -> QueryPolicy:
    assert isinstance(learner.policy, QueryPolicy)
    return learner.policy


def assert_scores_are_those_of_sb3(policy: QueryPolicy) -> None:
    """SB3's methods are what updates go through."""
    policy.set_training_mode(False)
    observations = some_shown(19)
    with torch.no_grad():
        seen = torch.from_numpy(observations)
        logits: Any = policy.get_distribution(seen).distribution
        values = policy.predict_values(seen).flatten().tolist()
    np.testing.assert_allclose(policy.scores(seen), logits.logits, atol=2e-5)
    assert [policy.score_one(row)[1] for row in observations] == pytest.approx(values, abs=2e-5)


def test_scores_are_those_that_updates_compute_and_follow_the_weights() -> None:
    learner, other = model().learn(64), model(seed=4)
    assert_scores_are_those_of_sb3(network(learner))
    before = network(learner).scores(torch.from_numpy(some_shown(5)))
    learner.learn(64)
    after = network(learner).scores(torch.from_numpy(some_shown(5)))
    assert not torch.equal(before, after)
    assert_scores_are_those_of_sb3(network(learner))
    network(other).scores(torch.from_numpy(some_shown(1)))
    network(other).load_state_dict(network(learner).state_dict())
    assert torch.equal(network(other).scores(torch.from_numpy(some_shown(5))), after)


def test_a_row_has_the_same_bits_whatever_rows_are_beside_it() -> None:
    policy = network(model().learn(64))
    observations = torch.from_numpy(some_shown(19))
    scores = policy.scores(observations)
    for rows in (slice(3, 4), slice(2, 17), slice(18, None)):
        assert torch.equal(policy.scores(observations[rows]), scores[rows])
