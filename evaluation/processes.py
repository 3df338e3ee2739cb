"""Processes that policies live in: `--policy-wrapper process`.

A policy is made in one of them from its source, and a step sends its view alone. When a process
ends, the policies that lived there are made again in a new one, and step through the views that
they had seen.
"""

from __future__ import annotations

import itertools
import os
import pickle
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from joblib.externals.loky import ProcessPoolExecutor, cpu_count

import mutagym
from evaluation.errors import (
    PolicyError,
    RemotePolicyError,
    StepperError,
    policy_traceback,
    timeout_error,
)
from evaluation.instance import Instance
from evaluation.policies import PolicySource, View
from records.errors import describe

WATCH_S = 1.0
"""How often a process looks whether its parent is still there."""
_numbers = itertools.count()


class Processes:
    """As many processes as jobs or CPUs, whichever is less.

    Args:
        jobs: how many policies step at once.
        timeout_ms: the deadline of a step; None: none.
    """

    def __init__(self, jobs: int, timeout_ms: float | None) -> None:
        self._processes = [_Process(timeout_ms) for _ in range(min(jobs, cpu_count()))]
        self._lock = threading.Lock()

    def begin(self, source: PolicySource, seed: int) -> Resident:
        """A policy in the process that has the fewest.

        Raises:
            StepperError: it cannot be pickled.
        """
        try:
            payload = pickle.dumps((source, seed))
        except Exception as error:  # whatever a user's class raises
            raise StepperError(
                f"policy {source.name!r} cannot be pickled for a process: {describe(error)}"
            ) from error
        with self._lock:
            process = min(self._processes, key=lambda each: len(each.numbers))
            agent = Resident(source.name, payload, process)
            process.numbers.add(agent.number)
        return agent

    def close(self) -> None:
        """End them; steps under way fail."""
        for process in self._processes:
            process.close()


@dataclass(eq=False)
class Resident:
    """A policy that lives in a process."""

    name: str
    payload: bytes
    """Its source and seed, pickled."""
    process: _Process
    pool: ProcessPoolExecutor | None = None
    """Where it was made last."""
    number: int = field(default_factory=lambda: next(_numbers))
    seen: list[View] = field(default_factory=list)
    """The views of its steps so far."""

    def step(self, view: View) -> int:
        """The action in a view."""
        action = self.process.step(self, view)
        self.seen.append(view)
        return action

    def close(self) -> None:
        """Let go of it: the process drops it when it makes another one."""
        self.process.numbers.discard(self.number)


class _Process:
    """A process, started when it is first needed, and killed when a step is late."""

    def __init__(self, timeout_ms: float | None) -> None:
        self.numbers: set[int] = set()
        """Of the policies that live here, or are to."""
        self._timeout_ms = timeout_ms
        self._pool: ProcessPoolExecutor | None = None
        self._is_closed = False
        self._turn = threading.Lock()
        """Held while a policy is made and stepped."""
        self._lock = threading.Lock()
        """Held while the process is replaced."""

    def step(self, agent: Resident, view: View) -> int:
        """The action of an agent's policy."""
        with self._turn:
            try:
                return self._step(agent, view)
            except RuntimeError:  # dead, perhaps before this step, by somebody else's fault
                self._end()
            try:
                return self._step(agent, view)
            except RuntimeError as error:
                self._end()
                codes = ", ".join(re.findall(r"\w+\(-?\d+\)", str(error)))
                raise PolicyError(f"policy {agent.name!r} ended its process: {codes}") from None

    def close(self) -> None:
        """Kill it; a step under way fails."""
        self._is_closed = True
        self._end()

    def _step(self, agent: Resident, view: View) -> int:
        """The action; the executor raises a RuntimeError where the process dies."""
        pool = self._started()
        if agent.pool is not pool:
            living = set(self.numbers)
            pool.submit(_make, agent.number, living, sys.path, agent.payload, agent.seen).result()
            agent.pool = pool
        timeout_ms = self._timeout_ms
        try:
            reply = pool.submit(_step, agent.number, view)
            action: int = reply.result(None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            self._end()
            raise timeout_error(agent.name, timeout_ms or 0) from None
        return action

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._is_closed:
                raise StepperError("the evaluation ended before the policy stepped")
            self._pool = self._pool or _start_pool()
            return self._pool

    def _end(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(kill_workers=True)


def _start_pool() -> ProcessPoolExecutor:
    """A process that is ready for policies. It never sees Ctrl-C, which is for its parent."""
    # loky warns where there is no `pgrep` to find what a policy has started.
    warnings.filterwarnings("ignore", "Failed to kill subprocesses")
    pool = ProcessPoolExecutor(
        max_workers=1,
        initializer=mutagym.call,
        initargs=(_begin, os.getpid()),
        env={"PYTHONSAFEPATH": "1"},  # no file of the user's is taken for a module of Python's
    )
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        started = pool.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    started.result()
    return pool


# What follows runs in such a process.

_instances: dict[int, Instance] = {}
"""By the numbers of their residents."""


def _begin(parent: int) -> None:
    """Have what policies print go to standard error; end this process soon after its parent."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _make(
    number: int, living: set[int], paths: list[str], payload: bytes, seen: Sequence[View]
) -> None:
    """Make a policy and step it through what it has seen; drop those that are gone."""
    for gone in _instances.keys() - living:
        del _instances[gone]
    sys.path[:] = paths
    try:
        instance = Instance(*pickle.loads(payload))  # noqa: S301 - from the parent
        for view in seen:
            instance.step(view)
    except Exception as error:
        raise RemotePolicyError(policy_traceback(error)) from error
    _instances[number] = instance


def _step(number: int, view: View) -> int:
    """The action of a policy."""
    try:
        return _instances[number].step(view)
    except Exception as error:
        raise RemotePolicyError(policy_traceback(error)) from error
