"""Bandits find the best arm, and what they are frozen into plays it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.policies.bandits import UCB1, Bandit, BestFixed, EpsilonGreedy, Exp3
from evaluation.policies.baselines import FixedPolicy, SampledSource
from evaluation.policies.specs import PolicySpec, make_bandit

RATES = (0.2, 0.3, 0.8, 0.4)
KINDS: Sequence[Callable[..., Bandit]] = (EpsilonGreedy, UCB1, Exp3)


def fit(bandit: Bandit, *, plays: int, together: int = 1, rates: Sequence[float] = RATES) -> list[int]:
    """Play arms that succeed at these rates, some at a time; the arms that were played."""
    chance = np.random.default_rng(0)
    played: list[int] = []
    while len(played) < plays:
        arms = [bandit.ask() for _ in range(together)]
        for arm in arms:
            bandit.tell(arm, float(chance.random() < rates[arm]))
        played += arms
    return played


@pytest.mark.parametrize("together", [1, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bandit_comes_to_play_the_best_arm_most_one_at_a_time_and_many(
    kind: Callable[..., Bandit], together: int
) -> None:
    bandit = kind(len(RATES), seed=1)
    played = fit(bandit, plays=3200, together=together)
    late = Counter(played[1600:])
    assert late.most_common(1)[0][0] == 2
    assert late[2] > 0.6 * 1600


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_and_rewards_give_equal_arms_and_other_seeds_others(kind: Callable[..., Bandit]) -> None:
    runs = [fit(kind(len(RATES), seed=seed), plays=100) for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("kind", [EpsilonGreedy, UCB1])
@given(arms=st.integers(1, 20), seed=st.integers(0, 1000), rows=st.integers(1, 3))
def test_each_arm_is_played_once_before_any_is_played_again(
    kind: Callable[..., Bandit], arms: int, seed: int, rows: int
) -> None:
    together = kind(arms, seed=seed)
    assert sorted(together.ask() for _ in range(arms)) == list(range(arms))
    in_turn = kind(arms, seed=seed)
    assert sorted(fit(in_turn, plays=arms, rates=[0.5] * arms)) == list(range(arms))
    many = kind(arms, seed=seed)
    assert Counter(many.ask() for _ in range(rows * arms)) == dict.fromkeys(range(arms), rows)


def test_an_arm_whose_steps_did_not_happen_is_asked_for_again() -> None:
    for kind in (EpsilonGreedy, UCB1):
        bandit = kind(3, seed=0)
        arms = [bandit.ask() for _ in range(3)]
        for arm in arms[:2]:
            bandit.tell(arm, 1.0)
        assert bandit.ask() == arms[2]


def test_ucb1_plays_the_arm_with_the_highest_upper_bound() -> None:
    bandit = UCB1(3, seed=0)
    rewards = {0: [1.0, 0.0], 1: [1.0], 2: [0.0, 0.0, 0.0, 0.0, 0.0]}
    for arm, told in rewards.items():
        for reward in told:
            bandit.tell(arm, reward)
    bounds = {arm: np.mean(told) + math.sqrt(2 * math.log(8) / len(told)) for arm, told in rewards.items()}
    assert max(bounds, key=lambda arm: bounds[arm]) == 1
    # Plays that wait for their reward count: 0.5 + sqrt(ln 12) > 1 + sqrt(2/5 ln 12).
    assert [bandit.ask() for _ in range(5)] == [1, 1, 1, 1, 0]


def test_exp3_raises_a_weight_by_the_reward_over_the_probability_of_the_draw() -> None:
    bandit = Exp3(2, seed=0, gamma=0.5)
    arm = bandit.ask()
    bandit.tell(arm, 1.0)
    grown = math.exp(0.5 * (1 / 0.5) / 2)
    weights = bandit.frozen().weights
    assert weights[arm] == pytest.approx(grown / (1 + grown))


def test_exp3_stays_finite_however_long_it_runs() -> None:
    bandit = Exp3(2, seed=0, gamma=1.0)
    for _ in range(5000):
        bandit.tell(0, 1.0)
    assert bandit.frozen().weights == (1.0, 0.0)


def test_frozen_ucb1_plays_the_best_mean_epsilon_greedy_stays_random_and_exp3_samples_its_weights() -> None:
    greedy, ucb1, exp3 = (kind(len(RATES), seed=1) for kind in KINDS)
    for bandit in (greedy, ucb1, exp3):
        fit(bandit, plays=1000)
    assert ucb1.frozen() == FixedPolicy(name="ucb1", action=2)
    frozen = greedy.frozen()
    assert isinstance(frozen, SampledSource)
    assert frozen.weights == pytest.approx([0.025, 0.025, 0.925, 0.025])
    drawn = exp3.frozen()
    assert isinstance(drawn, SampledSource)
    assert max(drawn.weights) == drawn.weights[2]
    assert sum(drawn.weights) == pytest.approx(1)


def test_best_fixed_is_the_mutator_with_the_best_mean_return_of_an_episode() -> None:
    found = BestFixed(3)
    for arm, returns in enumerate(([0.4] * 9, [0.8, 1.0], [0.5] * 5)):
        for episode_return in returns:
            found.tell(arm, episode_return)
    assert found.frozen() == FixedPolicy(name="best_fixed", action=1)


def test_a_bandit_that_knows_too_little_cannot_be_frozen() -> None:
    bandits: list[Bandit | BestFixed] = [BestFixed(3), *(kind(3, seed=0) for kind in KINDS)]
    for bandit in bandits:
        with pytest.raises(ValueError, match=r"fit it first|nothing is known of the arms"):
            bandit.frozen()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("arm", "reward"), [(3, 0.5), (-1, 0.5), (0, 1.5), (0, -0.1), (0, math.nan)])
def test_a_reward_out_of_range_and_an_arm_that_is_not_there_are_refused(
    kind: Callable[..., Bandit], arm: int, reward: float
) -> None:
    with pytest.raises(ValueError, match=r"there is no arm|in \[0, 1\]"):
        kind(3, seed=0).tell(arm, reward)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (PolicySpec(kind="epsilon_greedy", kwargs={"epsilon": 1.5}), "epsilon must be a number from 0 to 1"),
        (PolicySpec(kind="epsilon_greedy", kwargs={"epsilon": "much"}), "got 'much'"),
        (PolicySpec(kind="exp3", kwargs={"gamma": 0}), "gamma must be over 0"),
        (PolicySpec(kind="random"), "'random' is not a bandit; expected one of epsilon_greedy, ucb1, exp3"),
    ],
)
def test_a_bandit_that_cannot_be_is_refused(spec: PolicySpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_bandit(spec, arms=3, seed=0)


def test_a_frozen_bandit_has_the_name_it_was_asked_for_by() -> None:
    bandit = make_bandit(PolicySpec(kind="exp3", kwargs={"gamma": 0.3}), arms=2, seed=0)
    bandit.tell(bandit.ask(), 1.0)
    assert bandit.frozen().name == "exp3,gamma=0.3"
