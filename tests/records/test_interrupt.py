"""Signals stop a run where it may stop, and not inside an update."""

from __future__ import annotations

import os
import signal

import pytest

from records.interrupt import Interrupted, interruptible


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_at_once_where_that_is_allowed(signum: signal.Signals, code: int) -> None:
    before = signal.getsignal(signum)
    with interruptible(), pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signum)
    assert caught.value.exit_code == code
    assert signal.getsignal(signum) is before


@pytest.mark.parametrize("is_allowed", [True, False])
def test_elsewhere_it_waits_until_it_is_or_for_the_end(*, is_allowed: bool) -> None:
    reached = []

    def work() -> None:
        with interruptible() as interrupt:
            interrupt.allow(allowed=False)
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("behind the signal")
            if is_allowed:
                interrupt.allow(allowed=True)
                reached.append("behind the place where it may stop")

    with pytest.raises(Interrupted):
        work()
    assert reached == ["behind the signal"]


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
