"""Signals stop a run where it may stop, and not inside an update."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from records.errors import RunStoppedError
from records.interrupt import Interrupt, Interrupted, interruptible, interruptible_thread, look_up, postponed


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


def test_another_thread_is_stopped_where_it_looks_up_and_may_be() -> None:
    interrupt = Interrupt()
    interrupt.allow(allowed=False)

    def work() -> str:
        with interruptible_thread(interrupt):
            look_up()
            interrupt.stop(RunStoppedError("first"))
            interrupt.stop(RunStoppedError("second"))
            look_up()
            try:
                interrupt.allow(allowed=True)
            except RunStoppedError as error:
                interrupt.allow(allowed=True)  # it was told
                return str(error)
        return ""

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == "first"
        assert str(interrupt.reason) == "first"
        interrupt.stop(RunStoppedError("third"))
        pool.submit(look_up).result()  # no longer that thread's
    look_up()


def test_what_must_not_break_off_is_ended_before_a_signal_counts() -> None:
    done = []

    def work() -> None:
        with postponed():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("whole")

    with interruptible(), pytest.raises(Interrupted):
        work()
    assert done == ["whole"]
    with interruptible() as interrupt:
        interrupt.allow(allowed=False)
        with postponed():
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupt.allow(allowed=True)
