"""Durations as Go writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.keep_alive import FOR_EVER_S, is_duration, keep_alive_s


def test_a_keep_alive_is_a_duration_or_seconds_and_below_zero_for_ever() -> None:
    values: dict[str | float, float] = {
        "5m": 300,
        "1h30m": 5400,
        "1.5s": 1.5,
        ".5m10s": 40,
        "+100ms": 0.1,
        "3us4\u00b5s5\u03bcs": 12e-6,
        "7ns": 7e-9,
        "0": 0,
        "-0": 0,
        90: 90,
        0.25: 0.25,
        0: 0,
        -1: FOR_EVER_S,
        "-1ns": FOR_EVER_S,
        "-1h": FOR_EVER_S,
        1e300: FOR_EVER_S,
    }
    assert {value: keep_alive_s(value) for value in values} == pytest.approx(values)


def test_what_is_not_a_duration_is_refused() -> None:
    for text in ("", "5", "m", "5 m", "1d", "1m-1s", "--1s", ".s", "1e3s"):
        assert not is_duration(text), text
        with pytest.raises(ValueError, match="keep_alive must be a duration such as '5m'"):
            keep_alive_s(text)


@given(
    hours=st.integers(0, 99),
    minutes=st.integers(0, 999),
    seconds=st.floats(0, 999).map(lambda s: round(s, 3)),
)
def test_a_duration_is_the_sum_of_its_parts(hours: int, minutes: int, seconds: float) -> None:
    text = f"{hours}h{minutes}m{seconds:.3f}s"
    assert keep_alive_s(text) == pytest.approx(3600 * hours + 60 * minutes + seconds)
