"""Contextual bandits: what they learn, how they explore, and what `auto` makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from envs.observation import LABELS
from tests.train.test_network import MUTATORS, START, WIDE, OneStep, shown, some_shown
from train.bandit import (
    NOISE_VARIANCE,
    SHARED_MEANS,
    SHARED_VARIANCES,
    Explore,
    LaneBandit,
    LinearBandit,
    discounted_returns,
    explore,
    fit_network,
)
from train.network import QueryPolicy

Floats = NDArray[np.float64]
COMPONENTS = 16
PRIOR = (*(0.01, 0.05), *(0.15,) * COMPONENTS, *(0.02,) * MUTATORS)
"""Variances of the weights that are a mutator's own."""


def embeddings(count: int) -> NDArray[np.float32]:
    """Unit rows (count, D)."""
    rows = np.random.default_rng(1).normal(size=(count, WIDE)).astype(np.float32)
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def bandit(rules: tuple[int, ...] = (3,)) -> LinearBandit:
    model = LinearBandit(WIDE, MUTATORS, rules)
    model.fit_components(embeddings(200))
    return model


def features(model: LinearBandit, row: NDArray[np.float32], action: int) -> Floats:
    """Those of an action among all, laid out as the module says."""
    history = row[WIDE:]
    tried, idle, last = history[: 3 * MUTATORS].reshape(3, MUTATORS)
    one = np.float32(1)
    shared = [one, tried[action] - idle[action], idle[action], last[action] * idle[action]]
    query = (row[:WIDE] / np.sqrt(WIDE) - model.centre.numpy()) @ model.directions.numpy()
    own = np.concatenate([[one, idle[action]], query, tried - idle])
    each = np.zeros((MUTATORS, len(own)))
    each[action] = own
    return np.concatenate([shared, history[-1 - len(LABELS) :], each.flatten()])


@pytest.mark.parametrize("parts", [[40], [1] * 40])
def test_it_is_ridge_regression_however_the_steps_are_split(parts: list[int]) -> None:
    model, chance = bandit(), np.random.default_rng(2)
    observations, rewards = some_shown(40), chance.normal(size=40)
    actions = chance.integers(MUTATORS, size=40)
    design = np.array([features(model, *each) for each in zip(observations, actions, strict=True)])
    means = np.concatenate([SHARED_MEANS, np.zeros(len(PRIOR) * MUTATORS)])
    means[len(SHARED_MEANS) + 3 * len(PRIOR) + 1] = -0.4  # action 3 is a rule
    prior = np.diag(1 / np.array([*SHARED_VARIANCES, *PRIOR * MUTATORS]))
    precision = prior + design.T @ design / NOISE_VARIANCE
    weights = np.linalg.solve(precision, prior @ means + design.T @ rewards / NOISE_VARIANCE)
    for part in np.split(np.arange(40), np.cumsum(parts)[:-1]):
        model.learn(observations[part], actions[part], rewards[part])
    for row in some_shown(5):
        of_each = np.array([features(model, row, action) for action in range(MUTATORS)])
        variances = (of_each @ np.linalg.inv(precision) * of_each).sum(axis=1)
        expected, deviations = model.expect(row)
        np.testing.assert_allclose(expected, of_each @ weights, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(deviations, np.sqrt(variances), rtol=1e-5)


def test_what_did_not_help_tells_what_will() -> None:
    """Where mutator 0 fails, 1 helps; that cannot be seen in the query."""
    chance, model = np.random.default_rng(3), bandit()
    after = START.after(0, -0.05, "refused", changed=True)
    for _ in range(200):
        query, is_hard = chance.normal(size=WIDE), chance.random() < 0.5
        model.learn(shown(query)[None], np.array([0]), np.array([float(not is_hard)]))
        if is_hard:
            action = chance.integers(1, 3)
            earned = np.array([float(action == 1)])
            model.learn(shown(query, after)[None], np.array([action]), earned)
    others = [chance.normal(size=WIDE) for _ in range(50)]
    assert np.mean([model.expect(shown(each, after))[0].argmax() == 1 for each in others]) > 0.9


def test_choices_are_keyed_by_seed_lane_and_row() -> None:
    model, row = bandit(), some_shown(1)[0]

    def draws(how: Explore, seed: int = 0, lane: int = 0) -> list[int]:
        keys = [(seed, lane, number) for number in range(60)]
        return [explore(model, how, row, seed=s, lane=k, row=n) for s, k, n in keys]

    assert draws("thompson") == draws("thompson")
    assert len(set(draws("thompson"))) > 1
    assert draws("thompson", seed=1) != draws("thompson") != draws("thompson", lane=1)
    assert len(set(draws("linucb"))) == 1


def test_a_state_that_is_loaded_expects_the_same_bits_whatever_rows_are_beside_a_row() -> None:
    model, other, rows = bandit(), LinearBandit(WIDE, MUTATORS), some_shown(30)
    model.learn(rows, np.arange(30) % MUTATORS, np.linspace(0, 1, 30))
    other.load_state_dict(model.state_dict())
    expected = model(torch.from_numpy(rows))
    assert torch.equal(other(torch.from_numpy(rows[3:17])), expected[3:17])


def lane_bandit(envs: Sequence[gymnasium.Env[Any, Any]]) -> LaneBandit:
    known = embeddings(200)
    return LaneBandit(
        envs, "linucb", n_steps=4, embeddings=known, keeps_visited=True, seed=3, workers=1
    )


def test_auto_goes_on_where_the_bandit_stands() -> None:
    learner = lane_bandit([OneStep() for _ in range(4)]).learn(800)
    states = learner.visited["observations"][learner.visited["scored"]]
    policy = QueryPolicy(learner.observation_space, learner.action_space, lambda _left: 0.0)
    fit_network(policy, learner.policy.model, learner.visited, gamma=0.9, seed=3)
    greedy = [learner.greedy(row) for row in states.numpy()]
    assert np.mean(states[:, :MUTATORS].numpy().argmax(axis=1) == greedy) > 0.5
    assert (policy.scores(states).argmax(dim=1).numpy() == greedy).mean() > 0.7
    values = [policy.score_one(row)[1] for row in states.numpy()]
    assert np.mean(values) == pytest.approx(float(learner.visited["rewards"].mean()), abs=0.1)


def test_returns_on_paper() -> None:
    """Two lanes; a step that is not scored is skipped, one that ended its episode ends it."""
    rewards = torch.tensor([[1.0, 1.0], [7.0, 7.0], [2.0, 2.0], [4.0, 4.0]])
    dones = torch.tensor([[False, False], [False, True], [True, False], [False, False]])
    scored = torch.tensor([[True, True], [False, False], [True, True], [True, True]])
    returns = discounted_returns(rewards, dones, scored, gamma=0.5)
    assert returns[scored].tolist() == [1 + 0.5 * 2, 1.0, 2.0, 2 + 0.5 * 4, 4.0, 4.0]
