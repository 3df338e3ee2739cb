"""The measurement of how often intervals hold: its truths are true, and its tables go where they should."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.coverage import REPORT, Condition, Effect, conditions, lifted, main, returns

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
    effects: list[Effect] = ["none", "0.3", "mixed", "few"]
    for effect in effects:
        better, truth = lifted(stream, chances, rates, effect)
        assert (better - chances).mean() == pytest.approx(truth[0], abs=0.01)


def test_a_small_run_shows_every_table_and_leaves_the_document_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = REPORT.read_text(encoding="utf-8")
    assert main(["--experiments", "5"]) == 0
    shown = capsys.readouterr().out
    for title in (
        "Coverage: rates",
        "Coverage: mean returns",
        "Coverage: differences",
        "Coverage: corrected rates",
        "Interval and test",
    ):
        assert f"## {title}\n" in shown
    assert REPORT.read_text(encoding="utf-8") == before
