"""Tables with holes, filled in by an ensemble of low rank."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from search.selectors.matrix_ucb import Ensemble


def table(seed: int = 0, rows: int = 8, columns: int = 60) -> NDArray[np.float64]:
    """Scores that a combination's mean and a datapoint's difficulty make up."""
    chance = np.random.default_rng(seed)
    means = chance.uniform(0.3, 0.7, size=(rows, 1))
    by_datapoint = chance.choice([-1, 1], size=(1, columns))
    return np.asarray(means + 0.3 * chance.uniform(0.5, 1, size=(rows, 1)) * by_datapoint)


def holes(shape: tuple[int, int], share: float, seed: int = 1) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(shape) >= share


def test_a_table_of_low_rank_is_filled_in() -> None:
    scores = table()
    known = holes(scores.shape, 0.6)
    filled = Ensemble(*scores.shape, rank=1, ridge=0.1).complete(scores, known).mean(0)
    naive = np.where(known, scores, (scores * known).sum(1, keepdims=True) / known.sum(1, keepdims=True))
    assert np.abs(filled - scores)[~known].mean() < 0.4 * np.abs(naive - scores)[~known].mean()


def test_what_is_known_stays_as_it_is_in_every_member() -> None:
    scores = table()
    known = holes(scores.shape, 0.5)
    filled = Ensemble(*scores.shape).complete(np.where(known, scores, np.nan), known)
    assert np.array_equal(filled[:, known], np.broadcast_to(scores[known], (len(filled), known.sum())))
    assert np.isfinite(filled).all()


def test_members_differ_least_on_rows_that_were_measured_most() -> None:
    scores = np.random.default_rng(3).integers(0, 2, size=(4, 200)).astype(float)
    known = np.zeros(scores.shape, dtype=bool)
    for row, count in enumerate((5, 20, 80, 160)):
        known[row, :count] = True
    rows = Ensemble(*scores.shape, members=64).complete(scores, known).mean(-1)
    spread = rows.std(0).tolist()
    assert spread == sorted(spread, reverse=True)


def test_a_row_without_any_score_is_taken_for_one_in_the_middle() -> None:
    scores = table()
    known = holes(scores.shape, 0.5)
    known[2] = False
    filled = Ensemble(*scores.shape).complete(scores, known)
    assert filled[:, 2].mean() == pytest.approx(0.5, abs=0.1)


def test_the_same_seed_fills_in_the_same_and_another_does_not() -> None:
    scores = table()
    known = holes(scores.shape, 0.5)
    first, again, other = (Ensemble(*scores.shape, seed=seed).complete(scores, known) for seed in (4, 4, 5))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"members": 1}, {"ridge": 0.0}])
def test_an_ensemble_that_cannot_be_is_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="two members and a ridge above 0"):
        Ensemble(3, 4, **wrong)  # type: ignore[arg-type] # one of them is a float
