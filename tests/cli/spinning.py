"""Work for a child process that is quick to start: this module imports nothing else of ours."""

from __future__ import annotations

import time
from multiprocessing.synchronize import Event

SPIN_S = 0.2


def spin(done: Event, end: Event) -> None:
    """Use so much CPU time, say so, and wait for the end."""
    while time.process_time() < SPIN_S:
        pass
    done.set()
    end.wait()
