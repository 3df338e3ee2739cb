"""What PPO's actions come from: blocks, noise, weights; and how rollouts split into minibatches."""

from __future__ import annotations

from copy import deepcopy

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.policies import ActorCriticPolicy

from train.config import check_num_mini_batch
from train.ppo import action_noise, predict_blocks, weights_sha256
from train.rollouts import BLOCK_ROWS

WIDE = 100


@pytest.fixture(scope="module")
def policy() -> ActorCriticPolicy:
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (WIDE,), np.float32)
    return ActorCriticPolicy(observations, gymnasium.spaces.Discrete(14), lambda _: 1e-3)


@given(
    st.sets(st.integers(0, 40), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
    st.floats(0.01, 1e3),
)
@settings(max_examples=40)
def test_a_lanes_values_and_logits_have_the_same_bits_whatever_the_other_lanes_hold(
    policy: ActorCriticPolicy, lanes: set[int], seed: int, scale: float
) -> None:
    stream = np.random.default_rng(seed)
    full = np.asarray(stream.normal(size=(41, WIDE)) * scale, np.float32)
    chosen = sorted(lanes)
    values, logits = predict_blocks(policy, full)
    for some in (chosen, chosen[::-1], chosen[:1]):
        fewer = predict_blocks(policy, full[some], some)
        np.testing.assert_array_equal(fewer[0], values[some])
        np.testing.assert_array_equal(fewer[1], logits[some])


def test_blocks_agree_with_sb3s_own_forward_pass(policy: ActorCriticPolicy) -> None:
    observations = np.random.default_rng(0).normal(size=(BLOCK_ROWS + 3, WIDE)).astype(np.float32)
    values, logits = predict_blocks(policy, observations)
    tensor = torch.from_numpy(observations)
    actions = torch.from_numpy(logits.argmax(axis=1))
    with torch.no_grad():
        expected, log_probs, _ = policy.evaluate_actions(tensor, actions)
    np.testing.assert_allclose(values, expected.flatten(), atol=1e-5)
    np.testing.assert_allclose(logits.max(axis=1), log_probs, atol=1e-5)
    assert [len(part) for part in predict_blocks(policy, observations[:0])] == [0, 0]


def test_actions_are_drawn_with_the_policys_probabilities() -> None:
    shares = np.array([0.6, 0.3, 0.1])
    rows = 3000
    noise = np.concatenate([action_noise(0, [1], [row], 3) for row in range(rows)])
    counts = np.bincount(np.argmax(np.log(shares) + noise, axis=1), minlength=3)
    np.testing.assert_allclose(counts / rows, shares, atol=4 * np.sqrt(0.25 / rows))


def test_each_lane_and_row_has_noise_of_its_own() -> None:
    noise = [
        action_noise(seed, lanes, [row] * len(lanes), 4)
        for seed in (0, 1)
        for lanes in ([0, 1], [1])
        for row in (0, 1)
    ]
    assert noise[0][1].tolist() == noise[2][0].tolist()
    assert len({tuple(one) for both in noise for one in both.tolist()}) == 8


def test_the_hash_tells_weights_apart_and_nothing_else() -> None:
    net = torch.nn.Linear(2, 3)
    twin = deepcopy(net).requires_grad_(requires_grad=False)
    assert weights_sha256(net) == weights_sha256(twin)
    twin.bias[0] += 1e-3
    assert weights_sha256(net) != weights_sha256(twin)


@pytest.mark.parametrize(
    ("num_mini_batch", "message"),
    [
        (5, "does not divide the rollout of 16 x 32 = 512 rows: choose a divisor, such as 4 or 8"),
        (0, "does not divide the rollout of 16 x 32 = 512 rows: choose a divisor, such as 1"),
        (512, "leaves single rows of the rollout of 16 x 32 = 512 rows: choose a divisor, such as 256"),
        (999, "does not divide the rollout of 16 x 32 = 512 rows: choose a divisor, such as 256"),
    ],
)
def test_a_number_of_minibatches_that_does_not_divide_is_named_with_those_that_do(
    num_mini_batch: int, message: str
) -> None:
    with pytest.raises(ValueError, match="--num-mini-batch") as caught:
        check_num_mini_batch(32, 16, num_mini_batch)
    assert str(caught.value) == f"--num-mini-batch {num_mini_batch} {message}"


def test_numbers_of_minibatches_that_divide_pass() -> None:
    for num_mini_batch in (1, 4, 256):
        check_num_mini_batch(32, 16, num_mini_batch)


def test_a_rollout_of_one_row_is_too_short() -> None:
    with pytest.raises(ValueError, match=r"the rollout of 1 x 1 = 1 rows is too short to learn from"):
        check_num_mini_batch(1, 1, 1)
