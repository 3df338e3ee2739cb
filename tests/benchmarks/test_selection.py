"""The selectors side by side, on fewer tables."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.selection import (
    CONTESTANTS,
    DATAPOINTS,
    MEANS,
    WORLDS,
    Outcome,
    compare_selectors,
    select,
)


def outcomes(label: str, seeds: int = 10) -> list[Outcome]:
    (contestant,) = (each for each in CONTESTANTS if each.label == label)
    return [select(contestant, WORLDS["independent"].table(seed), seed) for seed in range(seeds)]


def test_arms_are_right_as_often_as_they_should_be_and_correlated_only_where_that_is_said() -> None:
    for world, least, most in (("independent", -0.02, 0.02), ("correlated", 0.2, 0.4)):
        tables = np.concatenate([WORLDS[world].table(seed) for seed in range(100)], axis=1)
        assert tables.mean(1) == pytest.approx(np.array(MEANS), abs=0.015)
        between = np.corrcoef(tables)[~np.eye(len(MEANS), dtype=bool)]
        assert least < between.min()
        assert between.max() < most


def test_brute_force_names_its_own_arm_and_saves_nothing() -> None:
    for each in outcomes("brute force"):
        assert each.as_brute_force
        assert each.savings == 0


def test_what_arm_elimination_claims_is_that_it_names_brute_forces_arm() -> None:
    found = outcomes("arm elimination")
    assert [each.claim_holds for each in found] == [each.as_brute_force for each in found] == [True] * 10
    assert sum(each.savings for each in found) / 10 >= 0.3


def test_regret_is_zero_exactly_where_the_best_arm_is_named() -> None:
    found = outcomes("random search")
    assert [each.regret == 0 for each in found] == [each.truly_best for each in found]
    assert 0 < sum(each.truly_best for each in found) < 10


def test_a_selector_sees_no_more_cells_than_it_asks_for() -> None:
    found = outcomes("matrix UCB, rank 1", seeds=1)[0]
    assert found.savings == pytest.approx(0.75, abs=1 / (len(MEANS) * DATAPOINTS))


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_every_selector_has_its_row(processes: int) -> None:
    made = compare_selectors("correlated", tables=2, processes=processes)
    assert made.title == WORLDS["correlated"].title
    assert [row["selector"] for row in made.rows] == [each.label for each in CONTESTANTS]
    assert len(made.checks) == 4
    assert "2 tables" in made.markdown()
