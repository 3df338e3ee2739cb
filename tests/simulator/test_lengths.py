"""Reply lengths: the distributions that a text names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.profiles import parse_reply_length

SHARES = [(place + 0.5) / 20_000 for place in range(20_000)]


def test_a_number_is_the_length_of_every_reply() -> None:
    assert {parse_reply_length("64")(share) for share in (0.0, 0.3, 0.999)} == {64}


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_the_mean_is_that_of_the_distribution_and_not_of_its_logarithm(sigma: float) -> None:
    draw = parse_reply_length(f"lognormal:mean=64,sigma={sigma}")
    assert sum(map(draw, SHARES)) / len(SHARES) == pytest.approx(64, rel=0.01)


@given(st.floats(0, 1), st.floats(1, 1e4), st.floats(0, 3))
def test_a_reply_has_at_least_one_token(share: float, mean: float, sigma: float) -> None:
    assert parse_reply_length(f"lognormal:mean={mean},sigma={sigma}")(share) >= 1


def test_anything_else_is_refused_with_what_was_expected() -> None:
    for spec in (
        "",
        "0",
        "-3",
        "6.5",
        "many",
        "lognormal",
        "lognormal:mean=64",
        "lognormal:mean=64,sigma=x",
        "lognormal:mean=0,sigma=1",
        "lognormal:mean=64,sigma=-1",
        "lognormal:mean=nan,sigma=1",
        "normal:mean=3,sigma=1",
    ):
        with pytest.raises(ValueError, match="lognormal:mean=64,sigma=1"):
            parse_reply_length(spec)
