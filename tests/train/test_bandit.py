"""Contextual bandits: what they learn, how they explore, and what `auto` makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from envs.observation import memory_of_look
from tests.train.test_network import MUTATORS, START, WIDE, OneStep, shown, some_shown
from train.bandit import Explore, LaneBandit, LinearBandit, explore, fit_network
from train.network import QueryPolicy


def embeddings(count: int) -> NDArray[np.float32]:
    """Unit rows (count, D)."""
    rows = np.random.default_rng(1).normal(size=(count, WIDE)).astype(np.float32)
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def bandit(rules: tuple[int, ...] = (3,)) -> LinearBandit:
    model = LinearBandit(WIDE, MUTATORS, rules)
    model.fit_components(embeddings(200))
    return model


def test_it_learns_the_same_however_the_steps_are_split() -> None:
    model, other = bandit(), bandit()
    observations, actions = some_shown(40), np.arange(40) % MUTATORS
    rewards = np.linspace(-1, 1, 40)
    model.learn(observations, actions, rewards)
    for row in range(40):
        other.learn(observations[[row]], actions[[row]], rewards[[row]])
    for observation in some_shown(5):
        np.testing.assert_allclose(model.expect(observation), other.expect(observation), rtol=1e-8)


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
        return [explore(model, how, row, key=(seed, lane, number)) for number in range(60)]

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


class Broken(OneStep):
    """Every call of the mutators from 1 on fails."""

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        seen, reward, _, _, _ = super().step(action)
        return seen, reward, action == 0, False, {"unscored": bool(action)}


def test_what_failed_is_not_tried_again_before_the_others() -> None:
    learner = lane_bandit([Broken() for _ in range(4)]).learn(160)
    scored = learner.visited["scored"]
    assert not scored.all()
    for lane in range(4):
        failures = "".join("." if each else "x" for each in scored[:, lane].tolist())
        assert max(map(len, failures.split("."))) < MUTATORS


def test_linucb_spreads_over_the_lanes_what_it_is_not_sure_of_and_keeps_to_what_it_knows() -> None:
    model, row = bandit(rules=()), some_shown(1)[0]

    def choices(count: int) -> list[int]:
        key = (0, 0, 0)
        return [explore(model, "linucb", row, key=key, pending=place) for place in range(count)]

    assert sorted(choices(MUTATORS)) == list(range(MUTATORS))
    for _ in range(60):
        model.learn(np.stack([row] * 2), np.array([0, 1]), np.array([0.9, 0.0]))
    assert choices(MUTATORS).count(0) >= MUTATORS - 2
    assert 1 not in choices(MUTATORS)


def test_to_leave_it_is_worth_nothing_for_certain() -> None:
    """And to have left it tells nothing: not even how sure the model is of the others."""
    looked = memory_of_look(2, -0.05, "refused")
    rows = np.stack([shown(each, looked) for each in embeddings(40)])
    models = [LinearBandit(WIDE, MUTATORS, stop=2) for _ in range(2)]
    for model in models:
        model.fit_components(embeddings(200))
        model.learn(rows, np.arange(40) % 2, np.full(40, -0.5))
    models[1].learn(rows, np.full(40, 2), np.zeros(40))
    for row in rows[:5]:
        means, deviations = models[0].expect(row)
        assert (means[2], deviations[2]) == (0, 0)
        assert means[2] > max(means[:2])
        np.testing.assert_array_equal(models[1].expect(row), (means, deviations))


def test_variances_are_found_where_the_steps_say_so() -> None:
    """In one world mutators differ and queries do not matter; in the other it is the queries."""
    chance, found = np.random.default_rng(5), []
    for by_query in (False, True):
        model = bandit(rules=())
        weights = chance.normal(size=(MUTATORS, WIDE))
        values = np.linspace(-0.5, 0.5, MUTATORS)
        for _ in range(4):
            rows, actions = some_shown(100, chance), chance.integers(0, MUTATORS, 100)
            earned = values[actions]
            if by_query:
                earned = np.sign((rows[:, :WIDE] * weights[actions]).sum(axis=1)) / 2
            model.learn(rows, actions, earned + chance.normal(scale=0.05, size=100))
        found.append(model.variances.tolist())
    (noise, own, query), (_, other_own, other_query) = found
    assert noise < 0.02
    assert own > query
    assert other_query > max(query, other_own)
