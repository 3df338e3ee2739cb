"""The linear model learns what each mutator earns, query by query, and knows how little it knows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from envs.observation import Memory, observation
from train.linear_bandit import NOISE_VARIANCE, LinearBandit

D, ACTIONS = 24, 4
START = Memory()


def embeddings(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Unit rows (count, D)."""
    rows = np.random.default_rng(seed).normal(size=(count, D)).astype(np.float32)
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def shown(rows: NDArray[np.float32], memory: Memory = START) -> torch.Tensor:
    """The observations (N, size) of queries with these embeddings."""
    return torch.from_numpy(np.stack([observation(row, ACTIONS, memory, 0.2) for row in rows]))


def bandit(queries: NDArray[np.float32]) -> LinearBandit:
    made = LinearBandit(D, ACTIONS, rules=[3])
    made.fit_components(queries)
    return made


def test_it_learns_which_mutator_helps_which_query() -> None:
    queries = embeddings(300)
    best = (queries[:, :2] > 0) @ [1, 2]  # which quarter of the space a query is in
    model, chance = bandit(queries), np.random.default_rng(1)
    actions = chance.integers(ACTIONS, size=300)
    model.learn(
        shown(queries), torch.from_numpy(actions), torch.from_numpy((actions == best).astype(np.float32))
    )
    right = (model(shown(queries)).argmax(dim=1).numpy() == best).mean()
    assert right > 0.5  # a quarter by chance


def test_it_is_ridge_regression() -> None:
    queries = embeddings(40)
    model = bandit(queries)
    prior_precision, prior_moments = model.precision.clone(), model.moments.clone()
    actions = torch.arange(40) % ACTIONS
    rewards = torch.from_numpy(np.random.default_rng(2).normal(size=40))
    rows = model._features(shown(queries))[torch.arange(40), actions]
    design = torch.zeros(40, len(prior_moments), dtype=torch.float64).scatter_(
        1, model._places[actions], rows
    )
    model.learn(shown(queries), actions, rewards)
    precision = prior_precision + design.T @ design / NOISE_VARIANCE
    weights = torch.linalg.solve(precision, prior_moments + design.T @ rewards / NOISE_VARIANCE)
    expected = model.expect(shown(queries))
    taken = torch.arange(40), actions
    np.testing.assert_allclose(expected.means[taken], design @ weights, rtol=1e-9)
    variances = (design @ torch.linalg.inv(precision) * design).sum(dim=1)
    np.testing.assert_allclose(expected.deviations[taken], variances.sqrt(), rtol=1e-9)


def test_steps_in_two_parts_teach_what_they_teach_together() -> None:
    queries = embeddings(60)
    actions, rewards = torch.arange(60) % ACTIONS, torch.linspace(-0.05, 0.95, 60)
    once, twice = bandit(queries), bandit(queries)
    once.learn(shown(queries), actions, rewards)
    for part in (slice(0, 20), slice(20, 60)):
        twice.learn(shown(queries[part]), actions[part], rewards[part])
    np.testing.assert_allclose(once(shown(queries)), twice(shown(queries)), rtol=1e-5)


def test_what_was_tried_is_expected_to_earn_less_and_what_is_known_has_a_smaller_deviation() -> None:
    queries = embeddings(30)
    model = bandit(queries)
    before = model.expect(shown(queries))
    changed = Memory().after(1, -0.05, "refused")
    idle = Memory().after(3, -0.05, "refused", changed=False)  # a rule
    assert (model.expect(shown(queries, changed)).means[:, 1] < before.means[:, 1]).all()
    assert (model.expect(shown(queries, idle)).means[:, 3] < before.means[:, 3]).all()
    model.learn(shown(queries), torch.zeros(30, dtype=torch.int64), torch.ones(30))
    after = model.expect(shown(queries))
    assert (after.deviations < before.deviations).all()
    assert (after.deviations[:, 0] < after.deviations[:, 1]).all()


def test_a_state_that_is_loaded_expects_the_same() -> None:
    queries = embeddings(50)
    model = bandit(queries)
    model.learn(shown(queries), torch.arange(50) % ACTIONS, torch.linspace(0, 1, 50))
    other = LinearBandit(D, ACTIONS)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(shown(queries)), model(shown(queries)), rtol=0, atol=0)


def test_components_are_of_queries_that_vary_and_few_or_equal_queries_have_none() -> None:
    for queries in (embeddings(1), np.repeat(embeddings(1), 5, axis=0), embeddings(3)):
        model = bandit(queries)
        model.learn(shown(queries), torch.zeros(len(queries), dtype=torch.int64), torch.ones(len(queries)))
        assert torch.isfinite(model(shown(queries))).all()


def test_features_do_not_change_under_what_was_learned() -> None:
    queries = embeddings(5)
    model = bandit(queries)
    model.learn(shown(queries), torch.zeros(5, dtype=torch.int64), torch.ones(5))
    with pytest.raises(ValueError, match="learned already"):
        model.fit_components(queries)


def test_what_did_not_help_says_what_will() -> None:
    """Where mutator 0 fails, 1 helps; that cannot be seen in the query."""
    queries = embeddings(300)
    model, chance = bandit(queries), np.random.default_rng(3)
    hard = chance.random(300) < 0.5
    first, after = torch.zeros(300, dtype=torch.int64), START.after(0, -0.05, "refused")
    model.learn(shown(queries), first, torch.from_numpy((~hard).astype(np.float32)))
    actions = chance.integers(1, 3, size=int(hard.sum()))
    model.learn(
        shown(queries[hard], after),
        torch.from_numpy(actions),
        torch.from_numpy((actions == 1).astype(np.float32)),
    )
    others = embeddings(100, seed=4)
    assert (model(shown(others, after)).argmax(dim=1) == 1).double().mean() > 0.9
    assert (model(shown(others, after)) - model(shown(others)))[:, 1].mean() > 0.2
