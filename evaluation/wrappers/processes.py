"""Policies in processes of their own: for those that compute much in pure Python.

A policy is pickled once, as its source or as it stands, and lives in one process; a step sends its view
alone. When a process dies or is killed, the policy that was stepping fails; the others that lived there are
made again in a new one and stepped through the views that they had seen.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from evaluation.policies.policy import PolicySource, View
from evaluation.wrappers.costs import count_cpus
from evaluation.wrappers.errors import (
    PolicyTimeoutError,
    WorkerDiedError,
    WorkerLoadError,
    WrapperClosedError,
    WrapperError,
)
from evaluation.wrappers.players import Player
from evaluation.wrappers.runners import Task, ThreadPool
from evaluation.wrappers.seats import Pooled, Seats
from evaluation.wrappers.worker_process import WorkerProcess, remote_error


class ProcessWrapper:
    """Spreads policies over processes, each with a thread here that talks to it.

    Args:
        jobs: the most processes; there are never more than CPUs.
        timeout_s: the deadline of a step; None: none.
    """

    def __init__(self, jobs: int, timeout_s: float | None) -> None:
        self._homes = [Home(timeout_s) for _ in range(min(jobs, count_cpus()))]
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def team(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> Seats:
        """The policies of a new episode, each made in its process.

        Raises:
            WrapperError: a source cannot be pickled.
        """
        return Seats([self.seat(*each) for each in zip(sources, seeds, strict=True)])

    def seat(self, source: PolicySource, seed: int, player: Player | None = None) -> ProcessSeat:
        """The seat of a policy, in the process with the fewest.

        Args:
            source: what makes it.
            seed: what it is made with.
            player: the instance to move there as it stands; None: it is made there.

        Raises:
            WrapperError: the source or the instance cannot be pickled.
        """
        try:
            payload = pickle.dumps((source, seed, player), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever a user's class raises
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise WrapperError(
                f"policy {source.name!r} cannot be pickled for a process of its own: {why}"
            ) from error
        with self._lock:
            home = min(self._homes, key=lambda each: each.residents)
            home.enter()
            return ProcessSeat(home, next(self._numbers), source.name, payload)

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for home in self._homes:
            home.close()


class ProcessSeat:
    """A policy in a process.

    Args:
        home: the process.
        number: the policy's there.
        name: the policy's, for messages.
        payload: what it is made from.
    """

    def __init__(self, home: Home, number: int, name: str, payload: bytes) -> None:
        self.number = number
        self.what = f"policy {name!r}"
        self.payload = payload
        self.seen: list[View] = []
        """The views of the steps that it has done."""
        self._home = home
        self._last: Task | None = None

    def submit(self, view: View) -> Pooled:
        """Queue the step at the process."""
        self._last = self._home.talk.start(self.what, partial(self._home.step, self, view))
        return Pooled(self._home.talk, self._last)

    def close(self) -> None:
        """Drop the policy."""
        if self._last is not None:
            self._home.talk.cancel(self._last)
        self._home.leave(self)


class Home:
    """A process that policies live in, started when it is first needed, and the thread that talks to it.

    Args:
        timeout_s: the deadline of a step; None: none.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.talk = ThreadPool(1)
        """Does one request after another: `step` and `drop` run there."""
        self.residents = 0
        """Seats that are not closed."""
        self._timeout_s = timeout_s
        self._process: WorkerProcess | None = None
        self._there: set[int] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def step(self, seat: ProcessSeat, view: View) -> int:
        """Step a policy, which is made first if the process does not have it.

        Raises:
            PolicyTimeoutError: the step overran its deadline; the process is killed.
            WorkerDiedError: the process died.
            WorkerLoadError: the policy cannot be unpickled there.
            Exception: whatever the policy raised, with its traceback as the cause.
        """
        if self._process is not None and self._process.has_ended():
            self._end()  # between two steps: none of its policies is at fault
        if seat.number not in self._there:
            self._ask(seat, None, "make", seat.number, seat.payload, seat.seen)
            self._there.add(seat.number)
        try:
            action: int = self._ask(seat, self._timeout_s, "step", seat.number, view)
        finally:
            if seat.number in self._there:  # it came back, whatever with
                seat.seen.append(view)
        return action

    def enter(self) -> None:
        """Expect one more policy."""
        with self._lock:
            self.residents += 1

    def leave(self, seat: ProcessSeat) -> None:
        """Forget a policy."""
        with self._lock:
            self.residents -= 1
        with suppress(WrapperClosedError):
            self.talk.start(seat.what, partial(self._drop, seat))

    def close(self) -> None:
        """Kill the process; steps under way fail."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.kill()
        self.talk.close()
        self._end()

    def _drop(self, seat: ProcessSeat) -> None:
        if seat.number in self._there:
            self._there.discard(seat.number)
            self._ask(seat, None, "drop", seat.number)

    def _ask(self, seat: ProcessSeat, timeout_s: float | None, *request: Any) -> Any:  # noqa: ANN401 - the reply
        """What the process replies; without a reply it is no more."""
        process = self._started(seat)
        try:
            reply = process.reply(request, timeout_s)
        except (EOFError, OSError) as error:
            if self._is_closed:
                raise _closed(seat) from None
            raise WorkerDiedError(f"{seat.what} ended its process (exit code {self._end()})") from error
        if reply is None:
            process.kill()
            self._end()
            limit = f"{(timeout_s or 0) * 1000:g} ms"
            raise PolicyTimeoutError(f"{seat.what} took longer than {limit} over one step")
        kind, *told = reply
        if kind == "unreadable":
            raise WorkerLoadError(f"{seat.what} cannot be unpickled in a process: {told[0]}")
        if kind == "raised":
            raise remote_error(*told)
        return told[0]

    def _started(self, seat: ProcessSeat) -> WorkerProcess:
        with self._lock:
            if self._is_closed:
                raise _closed(seat)
            if self._process is None:
                self._process = WorkerProcess()
            return self._process

    def _end(self) -> int | None:
        """End the process, and with it the policies that live there; gives its exit code."""
        with self._lock:
            process, self._process = self._process, None
            self._there.clear()
        return process.end() if process else None


def _closed(seat: ProcessSeat) -> WrapperClosedError:
    return WrapperClosedError(f"the evaluation ended before {seat.what} stepped")
