"""An event loop whose clock leaps to the next timer: an hour passes at once, and nothing is left to luck."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Leap(selectors.SelectSelector):
    """Waits for no time: whatever is waited for is added to a clock, and how late the loop wakes."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self.now_s = 1000.0
        self._late_s = late_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now_s += timeout + self._late_s
        return super().select(0)


class _LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self, leap: _Leap) -> None:
        super().__init__(leap)
        self._leap = leap

    def time(self) -> float:
        return self._leap.now_s


def run(play: Coroutine[Any, Any, None], *, late_s: float = 0.0) -> None:
    """Play a scene to its end; every timer fires `late_s` after its moment."""
    with asyncio.Runner(loop_factory=lambda: _LeapingLoop(_Leap(late_s))) as runner:
        runner.run(play)
