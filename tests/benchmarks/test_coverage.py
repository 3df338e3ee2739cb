"""The measurement of how often intervals hold: its truths are true, and all its tables are made."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.coverage import Condition, Effect, conditions, lifted, returns, sections

MANY = 40_000


@pytest.mark.parametrize("condition", [c for c in conditions() if (c.queries, c.trials) == (20, 1)])
@pytest.mark.parametrize("rate", [0.1, 0.7])
def test_the_means_that_intervals_are_held_against_are_the_true_ones(
    condition: Condition, rate: float
) -> None:
    stream = np.random.default_rng(0)
    rates = np.full((MANY // 20, 1), rate)
    chances = condition.chances(stream, rates)
    assert chances.mean() == pytest.approx(rate, abs=0.01)
    paid = returns(stream, chances, 1)
    assert paid.mean() == pytest.approx(condition.mean_return(rates)[0], abs=0.02)
    effects: list[Effect] = ["no effect", "0.3", "mixed", "few"]
    for effect in effects:
        better, truth = lifted(stream, chances, rates, effect)
        assert (better - chances).mean() == pytest.approx(truth[0], abs=0.01)


def test_a_quick_run_makes_every_table_with_a_row_for_each_condition() -> None:
    made = {section.title: section for section in sections(quick=True)}
    assert not made.pop("How often the intervals hold").rows
    assert list(made) == [
        "Coverage: rates",
        "Coverage: mean returns",
        "Coverage: differences",
        "Coverage: differences where few queries differ",
        "Coverage: corrected rates",
        "Coverage: several seeds",
        "Interval and test",
    ]
    everything = len(list(conditions()))
    assert len(made["Coverage: mean returns"].rows) == everything
    assert sum(len(made[title].rows) for title in list(made)[2:4]) == everything
