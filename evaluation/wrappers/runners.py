"""Where steps run: on the caller's own thread, or on a pool that gets around what is stuck."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from evaluation.wrappers.errors import PolicyTimeoutError, WrapperClosedError

Work = Callable[[], Any]

LAST_STEP_S = 5.0
"""How long closing a pool waits for steps that are under way, all together."""


class Task:
    """Work that was handed over, and what came of it."""

    __slots__ = ("_error", "_value", "begun_s", "is_over", "what", "work")

    def __init__(self, what: str, work: Work) -> None:
        self.what = what
        """For messages."""
        self.work = work
        self.begun_s = 0.0
        """When it began, by `time.monotonic()`."""
        self.is_over = False
        self._value: Any = None
        self._error: BaseException | None = None

    def settle(self, value: Any, error: BaseException | None) -> None:  # noqa: ANN401 - whatever the work gives
        """Say what came of it."""
        self._value, self._error = value, error
        self.is_over = True

    def outcome(self) -> Any:  # noqa: ANN401 - whatever the work gives
        """What the work gave; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value


class Runner(Protocol):
    """Does work now or later."""

    def start(self, what: str, work: Work) -> Task:
        """Hand work over; `what` names it in messages."""
        ...

    def result(self, task: Task) -> Any:  # noqa: ANN401 - whatever the work gives
        """What the work gave, once it is done; raises what it raised."""
        ...

    def close(self) -> None:
        """End; what has not begun never will."""
        ...


class CallersThread:
    """Does work at once, on the thread that hands it over: nothing can stop it, so there is no deadline."""

    def start(self, what: str, work: Work) -> Task:
        """Do the work; what it raises is kept, but for interrupts."""
        task = Task(what, work)
        try:
            task.settle(work(), None)
        except Exception as error:  # noqa: BLE001 - raised in `result`
            task.settle(None, error)
        return task

    def result(self, task: Task) -> Any:  # noqa: ANN401 - whatever the work gives
        """What the work gave."""
        return task.outcome()

    def close(self) -> None:
        """Nothing to end."""


def in_turn(jobs: int, timeout_s: float | None) -> Runner:
    """Where a caller waits for work that it hands over: its own thread, or with a deadline another one.

    Args:
        jobs: how many callers there may be at once.
        timeout_s: the deadline of a piece of work; None: none.
    """
    return CallersThread() if timeout_s is None else ThreadPool(jobs, timeout_s)


class ThreadPool:
    """Daemon threads, started as they are needed, that do work in the order in which it comes.

    Work that overruns its deadline is given up: its thread is left alone, no longer counts, and ends when
    the work does. Whoever waits for a result gives up all work that is late, so that none queues behind it.

    Args:
        size: the most threads, those left alone not counted.
        timeout_s: seconds that a piece of work may take from when it begins; None: as long as it takes.
    """

    def __init__(self, size: int, timeout_s: float | None = None) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._handed_over = threading.Condition(self._lock)
        self._over = threading.Condition(self._lock)
        self._queue: deque[Task] = deque()
        self._running: dict[Task, threading.Thread] = {}
        self._threads: set[threading.Thread] = set()
        self._is_closed = False

    def start(self, what: str, work: Work) -> Task:
        """Queue the work.

        Raises:
            WrapperClosedError: the pool is closed.
        """
        task = Task(what, work)
        with self._lock:
            if self._is_closed:
                raise WrapperClosedError(f"{what} was to step after the end of the evaluation")
            self._queue.append(task)
            self._staff()
            self._handed_over.notify()
        return task

    def result(self, task: Task) -> Any:  # noqa: ANN401 - whatever the work gives
        """What the work gave.

        Raises:
            PolicyTimeoutError: it overran its deadline.
            WrapperClosedError: the pool was closed before it began.
        """
        with self._lock:
            while not task.is_over:
                self._over.wait(self._next_deadline_s())
                self._give_up_what_is_late()
        return task.outcome()

    def cancel(self, task: Task) -> None:
        """Drop work that has not begun: nobody wants its result."""
        with self._lock:
            if task in self._queue:
                self._queue.remove(task)

    def close(self) -> None:
        """End the threads; work under way has 5 seconds, or its deadline, to end."""
        with self._lock:
            self._is_closed = True
            while self._queue:
                task = self._queue.popleft()
                task.settle(None, WrapperClosedError(f"the evaluation ended before {task.what} stepped"))
            threads = list(self._threads)
            self._handed_over.notify_all()
            self._over.notify_all()
        until = time.monotonic() + min(LAST_STEP_S, self._timeout_s or LAST_STEP_S)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            for task in self._running:
                task.settle(None, WrapperClosedError(f"the evaluation ended while {task.what} stepped"))
            self._running.clear()
            self._over.notify_all()

    def _staff(self) -> None:
        """Start the threads that are missing; the lock is held."""
        while len(self._threads) < min(self._size, len(self._running) + len(self._queue)):
            thread = threading.Thread(target=self._work, name="policy-step", daemon=True)
            thread.start()
            self._threads.add(thread)

    def _work(self) -> None:
        """What a thread does until it is not wanted any more."""
        while (task := self._next()) is not None:
            value, error = None, None
            try:
                value = task.work()
            except BaseException as raised:  # noqa: BLE001 - raised in `result`
                error = raised
            if not self._settle(task, value, error):
                return

    def _next(self) -> Task | None:
        with self._lock:
            while not self._queue and not self._is_closed:
                self._handed_over.wait()
            if not self._queue:
                return None
            task = self._queue.popleft()
            task.begun_s = time.monotonic()
            self._running[task] = threading.current_thread()
            return task

    def _settle(self, task: Task, value: Any, error: BaseException | None) -> bool:  # noqa: ANN401 - as above
        """Note what came of a task; False where it was given up, and this thread with it."""
        with self._lock:
            self._give_up_what_is_late()
            if task.is_over:
                return False
            del self._running[task]
            task.settle(value, error)
            self._over.notify_all()
            return True

    def _give_up_what_is_late(self) -> None:
        """Settle what has overrun its deadline, and replace its threads; the lock is held."""
        if self._timeout_s is None:
            return
        due_s = time.monotonic() - self._timeout_s
        for task in [task for task in self._running if task.begun_s <= due_s]:
            limit = f"{self._timeout_s * 1000:g} ms"
            task.settle(None, PolicyTimeoutError(f"{task.what} took longer than {limit} over one step"))
            self._threads.discard(self._running.pop(task))
            self._over.notify_all()
        self._staff()

    def _next_deadline_s(self) -> float | None:
        """Seconds until work under way, or the next to begin, is late at the earliest."""
        if self._timeout_s is None:
            return None
        begun_s = min((task.begun_s for task in self._running), default=time.monotonic())
        return max(0.0, begun_s + self._timeout_s - time.monotonic())
