"""The test by flips of signs is right however many queries differ, and says how it was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test  # type: ignore[import-untyped]

from scorers.comparison import Comparison, compare
from scorers.statistics import Floats

EXACT = "exact sign flips by query"
DRAWN = "sign flips by query, 99,999 drawn"
REALS = st.floats(-1, 1, allow_subnormal=False).filter(lambda value: abs(value) > 1e-6)


def of(differences: Sequence[float] | Floats) -> Comparison:
    """The comparison of two policies that differ so by query."""
    return compare([[2 + float(d)] for d in differences], [[2.0] for _ in differences])


def drawn_share(differences: Floats, flips: int, seed: int = 1) -> float:
    """The share of random flips that lie as far from 0, drawn by size: as many pluses as a coin gives."""
    chance = np.random.default_rng(seed)
    sums = np.zeros(flips)
    for size, count in zip(*np.unique(np.abs(differences), return_counts=True), strict=True):
        sums += size * (2 * chance.binomial(count, 0.5, flips) - count)
    return float(np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-6))


def led(sizes: Floats, lead: float) -> Floats:
    """Differences of these sizes, whose sum is so many of its standard deviations."""
    places = np.arange(len(sizes))
    signs = np.where(places % 2, 1.0, -1.0)
    for place in places[::2]:
        if signs @ sizes >= lead * np.sqrt(sizes @ sizes):
            break
        signs[place] = 1.0
    return signs * sizes


def lattice(m: int, step: float, largest: int, lead: float) -> Floats:
    """So many differences other than 0, multiples of a step, of which one policy has the lead."""
    sizes = np.random.default_rng(m).integers(1, largest + 1, m)
    return led(sizes.astype(np.float64) * step, lead)


@pytest.mark.parametrize(
    ("m", "step", "largest"),
    [
        (300, 1 / 3, 3),
        (6000, 0.05, 20),
        pytest.param(300, 0.05, 20, marks=pytest.mark.soak),
        pytest.param(6000, 1 / 3, 3, marks=pytest.mark.soak),
    ],
)
def test_the_p_value_is_that_of_drawn_flips_however_many_queries_differ(
    m: int, step: float, largest: int
) -> None:
    differences = lattice(m, step, largest, lead=2.0)
    found = of(differences)
    flips = 400_000
    expected = drawn_share(differences, flips)
    assert 0.03 < expected < 0.05
    assert found.p_value == pytest.approx(expected, abs=4 * np.sqrt(expected / flips))
    assert found.test == EXACT


@pytest.mark.parametrize("m", [25, 400])
def test_differences_of_one_step_are_counted_in_whole_numbers(m: int) -> None:
    """Against a count in integers, of a p-value that no draw could tell."""
    differences = lattice(m, 0.05, 12, lead=6.0 if m > 30 else 4.0)
    steps = np.rint(differences / 0.05).astype(int).tolist()
    ways = Counter({0: 1})
    for step in steps:
        more: Counter[int] = Counter()
        for total, count in ways.items():
            more[total + step] += count
            more[total - step] += count
        ways = more
    far = sum(count for total, count in ways.items() if abs(total) >= abs(sum(steps)))
    assert of(differences).p_value == pytest.approx(far / 2**m, rel=1e-9)


def test_trials_that_are_missing_here_and_there_keep_the_count_exact() -> None:
    chance = np.random.default_rng(0)
    a, b = ([chance.integers(0, 2, chance.integers(1, 6)).tolist() for _ in range(300)] for _ in "ab")
    found = compare(a, b)
    differences = np.array([np.mean(x) - np.mean(y) for x, y in zip(a, b, strict=True)])
    assert found.test == EXACT
    assert found.p_value == pytest.approx(drawn_share(differences.round(9), 400_000), abs=0.004)


@settings(max_examples=25, deadline=None)
@given(st.lists(REALS, min_size=2, max_size=9))
@example([0.3, -0.3, 0.30001, 0.7])
@example([1.0, 1e-5, -1e-5])
def test_a_few_differences_of_any_size_are_flipped_in_every_way(differences: list[float]) -> None:
    values = np.array(differences)
    found = of(values)
    expected = permutation_test(
        (2 + values, np.full(len(values), 2.0)),
        lambda x, y: np.abs(np.sum(x - y)),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert found.test == EXACT
    assert found.p_value == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("m", [30, pytest.param(1000, marks=pytest.mark.soak)])
def test_many_differences_of_no_common_step_are_drawn_and_the_test_says_so(m: int) -> None:
    sizes = np.random.default_rng(m).exponential(size=m)
    differences = led(sizes, 2.0)
    found = of(differences)
    signs = np.random.default_rng(1).choice(np.array([-1.0, 1.0], np.float32), (20_000, m))
    expected = np.mean(np.abs(signs @ sizes.astype(np.float32)) >= abs(differences.sum()))
    assert 0.01 < expected < 0.06
    assert found.p_value == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 / 20_000 + 1 / 99_999)))
    assert found.test == DRAWN
    assert of(differences) == found
    assert of(-differences).p_value == found.p_value


def test_a_drawn_p_value_is_never_0() -> None:
    found = of(np.random.default_rng(0).exponential(size=200))
    assert found.test == DRAWN
    assert found.p_value == pytest.approx(1e-5)
