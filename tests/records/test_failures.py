"""When a run stops for its failures: a broken server is told from failures that end last."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import RunStoppedError
from records.failures import FailureLimit

GOOD, BAD = "", "ServerFaultError: down"


def stopped_after(
    looks: Sequence[Sequence[str]], most: float = 0.5, window: int = 40
) -> int | None:
    """After how many looks the run is stopped; None: it is not."""
    limit = FailureLimit(most, window, what="calls failed", flag="--max-failed")
    for number, errors in enumerate(looks, start=1):
        try:
            limit.add(errors)
        except RunStoppedError:
            return number
    return None


@given(
    st.lists(st.lists(st.sampled_from([GOOD, BAD]), max_size=90), max_size=20), st.integers(1, 60)
)
def test_the_share_is_that_of_the_latest_looks_with_a_window(
    looks: list[list[str]], window: int
) -> None:
    def is_over(so_far: list[list[str]]) -> bool:
        for first in range(len(so_far) - 1, -1, -1):
            latest = [error for errors in so_far[first:] for error in errors]
            if len(latest) >= window:
                return latest.count(BAD) > 0.5 * len(latest)
        return False

    over = [
        number
        for number in range(1, len(looks) + 1)
        if looks[number - 1] and is_over(looks[:number])
    ]
    assert stopped_after(looks, window=window) == next(iter(over), None)


def test_at_the_end_fewer_are_judged_and_the_message_has_the_facts() -> None:
    limit = FailureLimit(0.25)
    limit.add([BAD, GOOD, "TimeoutError: slow", GOOD])
    with pytest.raises(RunStoppedError) as stopped:
        limit.check()
    assert str(stopped.value) == (
        "50% of the last 4 steps could not be scored (--max-unscored 0.25); "
        "last error: TimeoutError: slow"
    )
