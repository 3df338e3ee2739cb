"""Ridge regression told one row at a time is the one solved at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from scorers.critic import OnlineRidge

STRENGTHS = (0.1, 1.0, 10.0)
Floats = NDArray[np.float64]


@st.composite
def told(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Some rows and a value for each."""
    rows, width = draw(st.integers(0, 30)), draw(st.integers(1, 8))
    numbers = st.floats(-2, 2, width=32)
    return draw(arrays(np.float64, (rows, width), elements=numbers)), draw(
        arrays(np.float64, rows, elements=st.floats(0, 1, width=32))
    )


def solved(rows: Floats, values: Floats, strength: float) -> Floats:
    """(width,), the weights of the whole at once."""
    squares = rows.T @ rows + strength * np.eye(rows.shape[1])
    return np.asarray(np.linalg.solve(squares, rows.T @ values), np.float64)


def fitted(rows: Floats, values: Floats) -> OnlineRidge:
    ridge = OnlineRidge(rows.shape[1], STRENGTHS)
    for row, value in zip(rows, values, strict=True):
        ridge.update(row, value)
    return ridge


@given(told())
def test_row_by_row_gives_the_weights_of_the_batch(case: tuple[Floats, Floats]) -> None:
    rows, values = case
    ridge = fitted(rows, values)
    expected = [solved(rows, values, strength) for strength in STRENGTHS]
    np.testing.assert_allclose(ridge.weights, expected, atol=1e-7)


@given(told())
def test_the_strength_in_use_is_the_one_that_foresaw_best(case: tuple[Floats, Floats]) -> None:
    rows, values = case
    missed = np.zeros(len(STRENGTHS))
    for count, (row, value) in enumerate(zip(rows, values, strict=True)):
        foreseen = [row @ solved(rows[:count], values[:count], strength) for strength in STRENGTHS]
        missed += (value - np.array(foreseen)) ** 2
    chosen = STRENGTHS.index(fitted(rows, values).strength)
    assert missed[chosen] <= missed.min() + 1e-6


def test_without_rows_it_says_0_under_the_greatest_strength() -> None:
    ridge = OnlineRidge(3, STRENGTHS)
    assert ridge.predict(np.ones(3)) == 0
    assert ridge.strength == 10


def test_noise_brings_a_great_strength_and_a_plain_line_a_small_one() -> None:
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(60, 20))
    assert fitted(rows, chance.normal(size=60)).strength == 10
    assert fitted(rows, rows @ chance.normal(size=20)).strength == 0.1


@pytest.mark.parametrize("strengths", [(), (0.0,), (-1.0, 1.0), (float("nan"),), (float("inf"),)])
def test_a_strength_that_is_not_above_0_is_an_error(strengths: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected ridge strengths above 0"):
        OnlineRidge(3, strengths)
