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

from joblib.externals.loky import ProcessPoolExecutor, cpu_count, process_executor

import mutagym
from evaluation.instance import (
    Instance,
    PolicyError,
    RemotePolicyError,
    StepperError,
    policy_traceback,
    timeout_error,
)
from evaluation.policies import PolicySource, Step, View
from records.errors import describe

WATCH_S = 1.0
"""How often a process looks whether its parent is still there."""
MOST_INSTANCES = 1024
"""Policies that a process keeps; one that was dropped is made again."""
Made = tuple[int, bytes, Sequence[View]]
"""What a policy is made of: its number, its pickled source and seed, the views that it has seen."""


class Processes:
    """As many processes as jobs or CPUs, whichever is less.

    Args:
        jobs: how many policies step at once.
        timeout_ms: the deadline of a step; None: none.
    """

    def __init__(self, jobs: int, timeout_ms: float | None) -> None:
        self._processes = [_Process(timeout_ms) for _ in range(min(jobs, cpu_count()))]
        self._numbers = itertools.count()

    def begin(self, source: PolicySource, seed: int) -> Step:
        """The `step` of a policy in one of the processes.

        Raises:
            StepperError: it cannot be pickled.
        """
        try:
            payload = pickle.dumps((source, seed))
        except Exception as error:  # whatever a user's class raises
            raise StepperError(
                f"policy {source.name!r} cannot be pickled for a process: {describe(error)}"
            ) from error
        number = next(self._numbers)
        process = self._processes[number % len(self._processes)]
        seen: list[View] = []

        def step(view: View) -> int:
            action = process.step(source.name, (number, payload, seen), view)
            seen.append(view)
            return action

        return step

    def close(self) -> None:
        """End them; steps under way fail."""
        for process in self._processes:
            process.close()


class _Process:
    """A process, started when it is first needed, and killed when a step is late."""

    def __init__(self, timeout_ms: float | None) -> None:
        self._timeout_ms = timeout_ms
        self._pool: ProcessPoolExecutor | None = None
        self._is_closed = False
        self._turn = threading.Lock()
        """Held while a policy is made and stepped."""
        self._lock = threading.Lock()
        """Held while the process is replaced."""

    def step(self, name: str, made: Made, view: View) -> int:
        """The action of a policy of this name."""
        with self._turn:
            try:
                return self._step(name, made, view)
            except RuntimeError:  # dead, perhaps before this step, by somebody else's fault
                self._end()
            try:
                return self._step(name, made, view)
            except RuntimeError as error:
                self._end()
                codes = ", ".join(re.findall(r"\w+\(-?\d+\)", str(error)))
                raise PolicyError(f"policy {name!r} ended its process: {codes}") from None

    def close(self) -> None:
        """Kill it; a step under way fails."""
        self._is_closed = True
        self._end()

    def _step(self, name: str, made: Made, view: View) -> int:
        with self._lock:
            if self._is_closed:
                raise StepperError("the evaluation ended before the policy stepped")
            pool = self._pool = self._pool or _start_pool()
        timeout_s = None if self._timeout_ms is None else self._timeout_ms / 1000
        try:
            action: int | None = pool.submit(_step, made[0], view).result(timeout_s)
            if action is None:
                pool.submit(_make, sys.path, *made).result()
                action = pool.submit(_step, made[0], view).result(timeout_s)
        except TimeoutError:
            self._end()
            raise timeout_error(name, self._timeout_ms or 0) from None
        if action is None:
            raise RuntimeError("the process was replaced")
        return action

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


def _begin(parent: int) -> None:
    """Have policies print to standard error; ignore Ctrl-C; end this process soon after its parent.

    Where psutil is installed, loky replaces a process that has grown by 300 MB, as one does that
    imports torch, and the policies in it would be lost.
    """
    process_executor._USE_PSUTIL = False  # noqa: SLF001 - loky has no setting for it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _make(paths: list[str], number: int, payload: bytes, seen: Sequence[View]) -> None:
    """Make a policy and step it through what it has seen."""
    sys.path[:] = paths
    try:
        instance = Instance(*pickle.loads(payload))  # noqa: S301 - from the parent
        for view in seen:
            instance.step(view)
    except Exception as error:
        raise RemotePolicyError(policy_traceback(error)) from error
    _instances[number] = instance
    if len(_instances) > MOST_INSTANCES:
        del _instances[next(iter(_instances))]


def _step(number: int, view: View) -> int | None:
    """The action of a policy; None where it is not here."""
    if number not in _instances:
        return None
    try:
        return _instances[number].step(view)
    except Exception as error:
        raise RemotePolicyError(policy_traceback(error)) from error
