"""What is asked of the lanes of `envs/lanes.py` and has not been given yet: one call at a time.

All of it is one value, which is replaced whole. So wherever Ctrl-C tears the caller away, a call has begun in
all its lanes or in none, and results are there or taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import TimeoutError as ProcessTimeoutError
from typing import NamedTuple

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from envs.lane_threads import Job, LaneThreads, Task

RESET = "reset"
SEND = "send"
INTERRUPTED = "interrupted call"
"""A call that the caller was torn from, as by Ctrl-C: the next one waits for it and forgets it."""


class LanesTimeoutError(TimeoutError, ProcessTimeoutError):
    """Python's TimeoutError, and that of `multiprocessing`, which Gymnasium's AsyncVectorEnv raises."""


class Call(NamedTuple):
    """A call under way; without tasks there is none."""

    name: str = ""
    tasks: Mapping[int, Task] = {}
    """By lane, those whose result nobody has taken."""


class LaneCalls:
    """The call under way, and the lanes whose result nobody has taken.

    A call of all lanes (`reset`, `step`, `call`) begins and ends whole; `send` begins steps lane by lane.
    Results stay until they are taken, so that a timeout or an error loses none.
    """

    def __init__(self, threads: LaneThreads) -> None:
        self._threads = threads
        self._call = Call()

    @property
    def name(self) -> str | None:
        """The call under way."""
        return self._call.name if self._call.tasks else None

    @property
    def pending(self) -> Collection[int]:
        """The lanes whose result nobody has taken."""
        return self._call.tasks.keys()

    def check(self, name: str) -> None:
        """Check that a call of all lanes may begin; one that was interrupted is forgotten.

        Raises:
            AlreadyPendingCallError: another is under way.
        """
        if self.name == INTERRUPTED:
            self.drop()
        if self.name is not None:
            raise AlreadyPendingCallError(
                f"`{name}` while `{self.name}` is pending in {len(self.pending)} lanes: end it, or reset",
                self.name,
            )

    def check_lanes(self, lanes: Sequence[int]) -> None:
        """Check that some lanes may begin a step.

        Raises:
            AlreadyPendingCallError: one of them has a result that nobody took, or another call is under way.
        """
        if self.name != SEND:
            self.check(SEND)
        busy = sorted(set(lanes).intersection(self.pending))
        if busy:
            raise AlreadyPendingCallError(f"lanes {busy!r} have a step pending: recv() it first", SEND)

    def start(self, name: str, jobs: Mapping[int, Job]) -> None:
        """Begin a call in some lanes: each does its job. If it raises an Exception, no lane has started."""
        tasks = {lane: Task(lane, job) for lane, job in jobs.items()}
        self._threads.prepare(tasks.values())
        self._call = Call(name, {**self._call.tasks, **tasks})
        self._threads.start(tasks.values())

    def all_of(self, name: str, timeout_s: float | None) -> list[Task]:
        """The results of all lanes, in their order, once they are there.

        Raises:
            NoAsyncCallError: the call under way is another, or none.
            TimeoutError: they were not there in time.
        """
        if self.name != name:
            raise NoAsyncCallError(f"`{name}_wait` without a call to `{name}_async` before", name)
        return sorted(self._await(len(self.pending), timeout_s), key=lambda task: task.lane)

    def some(self, least: int, timeout_s: float | None) -> list[Task]:
        """The results of sent steps that are there, in the order of arrival, once there are `least`.

        Raises:
            ValueError: there will not be as many.
            NoAsyncCallError: no step was sent.
            TimeoutError: they were not there in time.
        """
        if self.name != SEND:
            raise NoAsyncCallError("recv() with no step pending: send() one first", SEND)
        if not 1 <= least <= len(self.pending):
            raise ValueError(
                f"min_lanes is {least!r}; expected 1 to {len(self.pending)}, the number of lanes with a step "
                "pending"
            )
        return self._await(least, timeout_s)

    def take(self, tasks: Sequence[Task]) -> None:
        """Note that the caller has the results of these."""
        taken = {task.lane for task in tasks}
        rest = {lane: task for lane, task in self._call.tasks.items() if lane not in taken}
        self._call = Call(self._call.name, rest)

    def drop(self) -> None:
        """Wait for every result, and forget them and the call."""
        self._threads.start(self._call.tasks.values())  # the caller may have been torn from it
        self._threads.wait(self._call.tasks, len(self.pending))
        self._call = Call()

    def raise_first(self, tasks: Sequence[Task]) -> None:
        """Raise the first error, if there is one, which is taken then; the results of the others stay."""
        for task in tasks:
            if task.error is None:
                continue
            self.take([task])
            note = f"raised in lane {task.lane}"
            if note not in getattr(task.error, "__notes__", ()):
                task.error.add_note(note)
            raise task.error

    def leave_to_recv(self) -> None:
        """Let what is under way be received lane by lane."""
        self._rename(SEND)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A call from its begin to its end: torn from it, the caller may begin another."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._rename(INTERRUPTED)
            raise

    def _rename(self, name: str) -> None:
        self._call = Call(name, self._call.tasks)

    def _await(self, count: int, timeout_s: float | None) -> list[Task]:
        done = self._threads.wait(self._call.tasks, count, timeout_s)
        if len(done) < count:
            raise LanesTimeoutError(
                f"after {timeout_s!r} s {len(done)} of {count} results of `{self.name}` are there; none is "
                "lost: wait again"
            )
        return done
