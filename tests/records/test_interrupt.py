"""Signals stop a run where it may stop, and not inside an update."""

from __future__ import annotations

import os
import signal

import pytest

from records.interrupt import Interrupted, interruptible


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_at_once_where_that_is_allowed(signum: signal.Signals, code: int) -> None:
    with interruptible(), pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signum)
    assert caught.value.exit_code == code


def test_elsewhere_it_waits_until_it_is() -> None:
    with interruptible() as interrupt:
        interrupt.allow(allowed=False)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupt.allow(allowed=True)


def test_the_handlers_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
