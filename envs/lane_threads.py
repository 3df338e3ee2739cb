"""The threads under `envs/lanes.py`: one a lane, which does one task after another and posts what is done.

One thread hands out tasks and waits for them; it may be interrupted anywhere. So handing a task out again
does no harm, what is posted is only a hint at which tasks to look at, and the bell that it is worth looking.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

Job = Callable[[], Any]
LOOK_UP_S = 0.2
"""Whoever waits looks up as often: Python misses a Ctrl-C that comes just as a wait begins."""
LAST_STEP_S = 5.0
"""How long the end of the interpreter waits for lanes that are under way, all together."""


class Task:
    """A lane's job, and what came of it."""

    __slots__ = ("_job", "error", "lane", "value")

    def __init__(self, lane: int, job: Job) -> None:
        self.lane = lane
        self.value: Any = None
        self.error: BaseException | None = None
        self._job: Job | None = job

    @property
    def has_begun(self) -> bool:
        """Whether somebody does the job, or has done it."""
        return self._job is None

    def run(self, caught: type[BaseException] = BaseException) -> bool:
        """Do the job, unless it has begun before; returns whether it did.

        Args:
            caught: the errors that belong to whoever asked for the job; others are raised here.
        """
        job, self._job = self._job, None  # it holds the environment, which a result must not keep alive
        if job is None:
            return False
        try:
            self.value = job()
        except caught as error:
            self.error = error
        except BaseException:
            self._job = job
            raise
        return True


class LaneThreads:
    """One daemon thread a lane, started with the lane's first task.

    When the interpreter ends, lanes end with the step under way, and it waits up to 5 seconds for them: a
    thread that is in native code by then aborts the process. Close environments whose steps take longer.
    """

    def __init__(self) -> None:
        self._threads: dict[int, _LaneThread] = {}
        self._posted: list[Task] = []
        self._bell = threading.Lock()
        self._bell.acquire()
        self._wanted = 1
        _all_threads.add(self)

    def prepare(self, tasks: Iterable[Task]) -> None:
        """Do all that can fail before the tasks are under way: start the threads that are missing."""
        for task in tasks:
            thread = self._threads.get(task.lane)
            if thread is None or not thread.is_alive():
                self._threads[task.lane] = thread = _LaneThread(task.lane, self._post)
                thread.start()

    def start(self, tasks: Iterable[Task]) -> None:
        """Have the lanes do those tasks that have not begun."""
        for task in tasks:
            if not task.has_begun:
                self._threads[task.lane].inbox.put(task)

    def wait(self, tasks: Mapping[int, Task], count: int, timeout_s: float | None = None) -> list[Task]:
        """Those of the tasks that are done, in the order of their ends, once there are `count`.

        Returns:
            Fewer, if there were not as many after `timeout_s`.
        """
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self._wanted = count
        while len(done := self._done(tasks)) < count and (left := until - time.monotonic()) > 0:
            if not self._bell.acquire(timeout=min(left, LOOK_UP_S)):
                self.start(tasks.values())  # whoever started them may have been torn from it
        return done

    def finish(self, tasks: Sequence[Task], timeout_s: float | None) -> list[int]:
        """Have each lane do its last task, once it is done with the one under way, and end its thread.

        Args:
            tasks: one a lane; where a lane has no thread, this one does it.
            timeout_s: how long to wait for them all; None: as long as it takes.

        Returns:
            The lanes that were not done by then. They end when they are.
        """
        for task in tasks:
            thread = self._threads.get(task.lane)
            if thread is None or not thread.is_alive():
                task.run(Exception)
            else:
                thread.inbox.put(task)
        self.end()
        return self.join(math.inf if timeout_s is None else time.monotonic() + timeout_s)

    def end(self) -> None:
        """Have every thread end when it has nothing more to do."""
        for thread in self._threads.values():
            thread.inbox.put(None)

    def join(self, until: float) -> list[int]:
        """Wait for the threads to end, to the `time.monotonic()` given; returns the lanes of the others."""
        for thread in self._threads.values():
            while thread.is_alive() and (left := until - time.monotonic()) > 0:
                thread.join(min(left, LOOK_UP_S))
        return [lane for lane, thread in self._threads.items() if thread.is_alive()]

    def _post(self, task: Task) -> None:
        """Say that a task is done, on any thread."""
        self._posted.append(task)
        # The waiting thread first says how many it wants and then counts, this one first adds and then
        # asks: one of the two sees that there are enough.
        if len(self._posted) >= self._wanted:
            with suppress(RuntimeError):  # it has rung already
                self._bell.release()

    def _done(self, tasks: Mapping[int, Task]) -> list[Task]:
        """Those of the tasks that are posted; what else is has been taken."""
        posted = self._posted[:]
        done = [task for task in posted if tasks.get(task.lane) is task]
        if len(done) < len(posted):
            self._posted[: len(posted)] = done  # in one go: other threads add to the end
        return done


class CallersThread(LaneThreads):
    """No thread at all: each task is done before it counts as under way, one after another."""

    def prepare(self, tasks: Iterable[Task]) -> None:
        """Do the tasks, now; an interrupt ends them all."""
        for task in tasks:
            task.run(Exception)
            self._post(task)


class _LaneThread(threading.Thread):
    def __init__(self, lane: int, post: Callable[[Task], None]) -> None:
        super().__init__(name=f"lane-{lane}", daemon=True)
        self.inbox = SimpleQueue[Task | None]()
        self._post = post

    def run(self) -> None:
        while (task := self.inbox.get()) is not None:
            if task.run():
                self._post(task)
            del task  # it holds what the step returned


_all_threads: weakref.WeakSet[LaneThreads] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """An interpreter that ends while a thread computes in native code aborts the process."""
    until = time.monotonic() + LAST_STEP_S
    every = list(_all_threads)
    for threads in every:
        threads.end()
    for threads in every:
        threads.join(until)
