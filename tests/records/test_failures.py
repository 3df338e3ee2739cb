"""When a run stops for its failures: a broken server is told from failures that end last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import RunStoppedError
from records.failures import FailureLimit

GOOD, BAD = "", "ServerFaultError: down"


def is_over(looks: list[list[str]], window: int) -> bool:
    """Whether more than half failed of the latest looks that together have a window."""
    latest: list[str] = []
    for errors in reversed(looks):
        latest += errors
        if len(latest) >= window:
            return latest.count(BAD) > 0.5 * len(latest)
    return False


@given(
    st.lists(st.lists(st.sampled_from([GOOD, BAD]), min_size=1, max_size=90), max_size=20),
    st.integers(1, 60),
)
def test_the_share_is_that_of_the_latest_looks_with_a_window(
    looks: list[list[str]], window: int
) -> None:
    limit = FailureLimit(0.5, window)
    for number, errors in enumerate(looks, start=1):
        if is_over(looks[:number], window):
            with pytest.raises(RunStoppedError):
                limit.add(errors)
            return
        limit.add(errors)


def test_at_the_end_fewer_are_judged_and_the_message_has_the_facts() -> None:
    limit = FailureLimit(0.25)
    limit.add([BAD, GOOD, "TimeoutError: slow", GOOD])
    with pytest.raises(RunStoppedError) as stopped:
        limit.check()
    assert str(stopped.value) == (
        "50% of the last 4 steps could not be scored (--max-unscored 0.25); "
        "last error: TimeoutError: slow"
    )
