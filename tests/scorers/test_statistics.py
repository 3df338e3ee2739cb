"""Intervals for rates and means."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom  # type: ignore[import-untyped]

from scorers.statistics import (
    clustered_interval,
    clustered_intervals,
    exact_interval,
    mean_interval,
    trials_without_success,
    wilson_interval,
)

COUNTS = st.tuples(st.integers(0, 500), st.integers(1, 500)).map(
    lambda pair: (pair[0] % (pair[1] + 1), pair[1])
)


def test_an_interval_is_wilsons() -> None:
    p, n, z = 0.3, 10, 1.959963984540054
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert wilson_interval(3, 10) == pytest.approx((middle - half, middle + half))


@given(COUNTS, st.floats(0.5, 0.99))
def test_an_interval_holds_the_rate_and_stays_in_bounds(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n, confidence)
    assert 0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1


@given(COUNTS)
def test_failures_mirror_successes(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert wilson_interval(n - successes, n) == pytest.approx((1 - high, 1 - low))


@given(COUNTS)
def test_more_of_the_same_makes_an_interval_narrower(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    narrow_low, narrow_high = wilson_interval(4 * successes, 4 * n)
    assert narrow_high - narrow_low < high - low


def test_without_trials_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_counts_are_an_error(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"got successes={successes} and n={n}"):
        wilson_interval(successes, n)


@pytest.mark.parametrize("confidence", [0, 1, 95, -0.5, math.nan])
def test_an_impossible_confidence_is_an_error(confidence: float) -> None:
    with pytest.raises(ValueError, match="expected a confidence above 0 and below 1"):
        wilson_interval(1, 2, confidence)


CLUSTERS = st.lists(COUNTS, min_size=2, max_size=40)


@given(CLUSTERS)
def test_a_clustered_interval_holds_the_rate_and_is_never_narrower_than_wilsons(
    clusters: list[tuple[int, int]],
) -> None:
    total, n = (sum(numbers) for numbers in zip(*clusters, strict=True))
    low, high = clustered_interval(clusters)
    narrow_low, narrow_high = wilson_interval(total, n)
    assert 0 <= low <= total / n + 1e-12
    assert total / n - 1e-12 <= high <= 1
    assert high - low >= narrow_high - narrow_low - 1e-9


@given(CLUSTERS, st.integers(2, 5))
def test_repeating_the_trials_of_each_cluster_tells_nothing_new(
    clusters: list[tuple[int, int]], times: int
) -> None:
    """Their n is capped at the trials there are, so take clusters that are alike within."""
    pure = [(n if 2 * s > n else 0, n) for s, n in clusters]
    again = [(s * times, n * times) for s, n in pure]
    assert clustered_interval(again) == pytest.approx(clustered_interval(pure))


def test_trials_that_all_came_out_the_same_count_once_a_cluster() -> None:
    assert clustered_interval([(9, 9)] * 5) == clustered_interval([(1, 1)] * 5)


def test_one_cluster_tells_nothing_of_the_others() -> None:
    assert clustered_interval([(3, 10), (0, 0)]) == (0.0, 1.0)
    assert clustered_interval([]) == (0.0, 1.0)


def test_an_impossible_cluster_is_an_error() -> None:
    with pytest.raises(ValueError, match="got successes=4 and n=3"):
        clustered_interval([(1, 2), (4, 3)])


Rates = Callable[[np.random.Generator, int], NDArray[np.float64]]


def spread(rate: float, alike: float) -> Rates:
    """Clusters' rates that are beta-distributed, with intra-cluster correlation `alike`."""
    total = 1 / alike - 1
    return lambda stream, n: stream.beta(rate * total, (1 - rate) * total, n)


def split(easy: float, hard: float, share: float) -> Rates:
    """Clusters of which a share is hard."""
    return lambda stream, n: np.where(stream.random(n) < share, hard, easy)


@pytest.mark.parametrize(
    ("clusters", "size", "rate", "rates"),
    [
        (30, 8, 0.5, spread(0.5, 0.4)),
        (150, 3, 0.2, spread(0.2, 0.5)),
        (10, 30, 0.3, spread(0.3, 0.3)),
        (20, 20, 0.95 * 0.99 + 0.05 * 0.2, split(0.99, 0.2, 0.05)),
        (40, 10, 0.97 * 0.99, split(0.99, 0.0, 0.03)),
    ],
)
def test_nineteen_intervals_of_twenty_hold_the_true_rate(
    clusters: int, size: int, rate: float, rates: Rates
) -> None:
    """1,000 simulated samples."""
    stream = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        counts = stream.poisson(size - 1, clusters) + 1
        successes = stream.binomial(counts, rates(stream, clusters))
        low, high = clustered_interval(zip(successes.tolist(), counts.tolist(), strict=True))
        held += low <= rate <= high
    assert 930 <= held <= 985


def test_a_first_failure_does_not_make_an_interval_narrower() -> None:
    for clusters, size in [(20, 20), (10, 100)]:
        sure = clustered_interval([(size, size)] * clusters)
        low, high = clustered_interval([(size, size)] * (clusters - 1) + [(size - 1, size)])
        assert high - low > sure[1] - sure[0]


@given(st.lists(st.integers(0, 1), min_size=2, max_size=60))
def test_with_one_trial_a_cluster_it_is_wilsons_interval(outcomes: list[int]) -> None:
    expected = wilson_interval(sum(outcomes), len(outcomes))
    assert clustered_interval([(one, 1) for one in outcomes]) == pytest.approx(expected)


@given(CLUSTERS, st.randoms(use_true_random=True))
def test_the_order_of_clusters_does_not_matter(clusters: list[tuple[int, int]], random: Random) -> None:
    again = list(clusters)
    random.shuffle(again)
    assert clustered_interval(again) == pytest.approx(clustered_interval(clusters))


@given(CLUSTERS)
def test_failures_mirror_successes_in_clusters_too(clusters: list[tuple[int, int]]) -> None:
    low, high = clustered_interval(clusters)
    back = clustered_interval([(n - s, n) for s, n in clusters])
    assert back == pytest.approx((1 - high, 1 - low))


def test_many_samples_at_once_have_the_intervals_of_each() -> None:
    stream = np.random.default_rng(0)
    trials = stream.integers(1, 9, (50, 12))
    successes = stream.binomial(trials, stream.random((50, 1)))
    low, high = clustered_intervals(successes.astype(float), trials.astype(float))
    for k in range(50):
        alone = clustered_interval(zip(successes[k].tolist(), trials[k].tolist(), strict=True))
        assert (low[k], high[k]) == pytest.approx(alone)


VALUES = st.lists(
    st.lists(st.integers(-40, 40).map(lambda k: k / 20), min_size=1, max_size=4), min_size=2, max_size=15
)


@given(VALUES, st.randoms(use_true_random=True))
def test_a_mean_is_of_all_values_in_whatever_order(values: list[list[float]], random: Random) -> None:
    found = mean_interval(values)
    assert found.mean == pytest.approx(np.mean([value for cluster in values for value in cluster]))
    again = [random.sample(cluster, len(cluster)) for cluster in random.sample(values, len(values))]
    assert mean_interval(again) == pytest.approx(found, rel=1e-6, abs=1e-6)


@given(VALUES, st.floats(0.1, 10), st.floats(-5, 5))
def test_the_interval_of_a_mean_goes_with_the_scale_and_its_zero(
    values: list[list[float]], scale: float, zero: float
) -> None:
    """Where the values differ: those that are all the same have no scale."""
    assume(len({value for cluster in values for value in cluster}) > 1)
    found = mean_interval([[scale * value + zero for value in cluster] for cluster in values])
    expected = [scale * x + zero for x in mean_interval(values)]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(VALUES)
def test_turning_the_values_round_turns_the_interval_round(values: list[list[float]]) -> None:
    mean, low, high = mean_interval(values)
    back = mean_interval([[-value for value in cluster] for cluster in values])
    assert back == pytest.approx((-mean, -high, -low), rel=1e-4, abs=1e-4)


def test_the_interval_of_a_mean_reaches_farther_to_the_side_of_the_few() -> None:
    mean, low, high = mean_interval([[0.9]] * 17 + [[-0.5]] * 3)
    assert mean - low > 1.3 * (high - mean)


def test_equal_values_leave_an_interval_as_wide_as_if_one_lay_off() -> None:
    mean, low, high = mean_interval([[1.0, 1.0]] * 20)
    assert mean == 1
    assert 1 - low == pytest.approx(high - 1)
    assert 0.1 < high - 1 < 0.3


def test_one_cluster_tells_nothing_of_the_mean_of_others() -> None:
    assert mean_interval([[1.0, 3.0], []]) == (2, -math.inf, math.inf)


def test_a_mean_of_nothing_is_not_a_number() -> None:
    mean, low, high = mean_interval([[]])
    assert math.isnan(mean)
    assert (low, high) == (-math.inf, math.inf)


@given(COUNTS, st.floats(0.5, 0.99))
def test_an_exact_interval_holds_the_rate_and_mirrors(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    low, high = exact_interval(successes, n, confidence)
    assert 0 <= low <= successes / n <= high <= 1
    assert exact_interval(n - successes, n, confidence) == pytest.approx((1 - high, 1 - low))


@given(COUNTS)
def test_at_the_ends_of_an_exact_interval_what_came_has_the_chance_that_was_left(
    counts: tuple[int, int],
) -> None:
    """So is it defined: as many successes or more at the lower end, as many or fewer at the upper one."""
    successes, n = counts
    low, high = exact_interval(successes, n)
    if successes:
        assert binom.sf(successes - 1, n, low) == pytest.approx(0.025, rel=1e-6)
    if successes < n:
        assert binom.cdf(successes, n, high) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize("rate", [0.01, 0.03, 0.05, 0.08, 0.2, 0.5])
@pytest.mark.parametrize("n", [20, 72, 100, 250])
def test_neither_bound_of_an_exact_interval_is_wrong_more_often_than_it_says(n: int, rate: float) -> None:
    """4,000 simulated samples; what is over 2.5 % is within three standard errors of it."""
    drawn = np.random.default_rng(n).binomial(n, rate, 4000)
    ends = {count: exact_interval(count, n) for count in set(drawn.tolist())}
    most = 4000 * 0.025 + 3 * math.sqrt(4000 * 0.025 * 0.975)
    assert sum(ends[count][0] > rate for count in drawn.tolist()) <= most
    assert sum(ends[count][1] < rate for count in drawn.tolist()) <= most


@given(st.floats(0.001, 0.9), st.floats(0.5, 0.99))
def test_so_many_trials_without_success_show_a_bound_and_fewer_do_not(
    bound: float, confidence: float
) -> None:
    n = trials_without_success(bound, confidence)
    assert exact_interval(0, n, confidence)[1] <= bound * (1 + 1e-9)
    assert n == 1 or exact_interval(0, n - 1, confidence)[1] >= bound


def test_a_bound_of_a_twentieth_takes_72_trials() -> None:
    assert trials_without_success(0.05) == 72


def test_without_trials_nothing_exact_is_known_either() -> None:
    assert exact_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("bound", [0, 1, -0.5, math.nan])
def test_an_impossible_bound_is_an_error(bound: float) -> None:
    with pytest.raises(ValueError, match="expected a bound above 0 and below 1"):
        trials_without_success(bound)
