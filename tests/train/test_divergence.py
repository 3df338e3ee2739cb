"""The alarm's arithmetic: silent where nothing diverges, raised where a reward is gamed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.audit import REFERENCE, WINDOW, Rewarded, divergence, share_of_false

QUERIES, MUTATORS = 60, 12
VERDICTS = 8
"""Audited successes of a rollout."""


def alarm(
    seed: int, rollouts: int, gamed: Callable[[int], float] = lambda _: 0.0, error: float = 0.07
) -> int | None:
    """The rollout behind which the alarm is raised.

    Args:
        seed: of all that is drawn.
        rollouts: how long the run is.
        gamed: the share of the reward's successes that are none, by rollout.
        error: how often the audit errs, always the same way about a query and a mutator.
    """
    chance = np.random.default_rng(seed)
    errs = chance.random((QUERIES, MUTATORS)) < error
    seen: list[list[Rewarded]] = []
    for number in range(rollouts):
        cases = zip(
            chance.integers(QUERIES, size=VERDICTS), chance.integers(MUTATORS, size=VERDICTS), strict=True
        )
        seen.append([Rewarded(str(q), bool(errs[q, m] or chance.random() < gamed(number))) for q, m in cases])
        reference, later = (list(chain(*part)) for part in (seen[:REFERENCE], seen[REFERENCE:][-WINDOW:]))
        if divergence(later or reference, reference if later else ()):
            return number
    return None


def test_a_run_in_which_nothing_diverges_is_silent() -> None:
    assert [alarm(seed, 30) for seed in range(100)].count(None) >= 98


def test_a_reward_that_is_gamed_more_and_more_raises_the_alarm_once_it_is() -> None:
    alarms = [
        alarm(seed, 30, lambda number: 0.6 * min(1.0, max(0.0, (number - 8) / 6))) for seed in range(30)
    ]
    assert all(raised is not None and 8 < raised < 24 for raised in alarms)


def test_a_reward_that_was_wrong_from_the_start_raises_the_alarm_too() -> None:
    assert None not in [alarm(seed, 12, lambda _: 0.8) for seed in range(30)]


def test_a_strict_audit_that_stays_as_strict_is_no_alarm() -> None:
    assert [alarm(seed, 20, lambda _: 0.1) for seed in range(50)].count(None) >= 49


def test_a_share_that_grows_by_little_is_no_alarm_however_sure() -> None:
    def rollouts(false: int) -> list[Rewarded]:
        return [Rewarded(str(k), k % 100 < false) for k in range(10_000)]

    assert divergence(rollouts(14), rollouts(5)) == ""
    assert "11% more than of the first" in divergence(rollouts(16), rollouts(5))


steps = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40)


@given(steps, steps)
def test_growth_is_the_difference_of_shares_and_its_error_is_never_zero(
    late: list[tuple[int, bool]], early: list[tuple[int, bool]]
) -> None:
    window, reference = ([Rewarded(str(q), false) for q, false in drawn] for drawn in (late, early))
    grown = share_of_false(window, reference)
    assert grown.value == pytest.approx(share_of_false(window).value - share_of_false(reference).value)
    assert share_of_false(window).value == pytest.approx(sum(false for _, false in late) / len(late))
    assert share_of_false(window).error > 0
    assert grown.error > 0


def test_without_successes_nothing_is_known() -> None:
    assert divergence([], []) == ""
    assert divergence([], [Rewarded("q", false=True)]) == ""
    assert divergence([Rewarded("q", false=True)] * 100, []) == "", "one query tells nothing of others"


def test_false_successes_of_one_query_count_as_one() -> None:
    alike = [Rewarded("same" if k < 16 else str(k), k < 16) for k in range(64)]
    apart = [Rewarded(str(k), k < 16) for k in range(64)]
    assert share_of_false(alike).value == share_of_false(apart).value
    assert share_of_false(alike).error > 3 * share_of_false(apart).error
