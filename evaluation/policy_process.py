"""A process that policies live in: the end here, and the process itself.

    python -m evaluation.policy_process FD PARENT

A policy is pickled once, as its source or as it stands, and lives in one process; a step sends its view
alone. When the process dies or is killed, the policy that was stepping fails; the others that lived there
are made again in a new one and stepped through the views that they had seen.

The process answers one request after another over the connection at the file descriptor FD. It ends with the
connection, or soon after the process PARENT, whatever its policies are at. A request is the numbers of
policies to drop, a name and its arguments; a reply is `("done", action)`,
`("raised", pickled exception or None, traceback)`, or `("unreadable", reason)` where a policy cannot be
unpickled. It is not a pool of `concurrent.futures`: such a pool breaks with an exception that cannot be
unpickled, and has no way to end a process that hangs.
"""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from evaluation.errors import (
    RemotePolicyError,
    RemoteTraceback,
    StepperClosedError,
    StepperError,
    WorkerDiedError,
    WorkerLoadError,
    error_line,
    overrun,
    policy_traceback,
)
from evaluation.policies.instance import Outcome, PolicyInstance, instance_or_error
from evaluation.policies.policy import PolicySource, View
from records.errors import describe

Reply = tuple[Any, ...]
_numbers = itertools.count()
_ROOT = Path(__file__).resolve().parents[1]
_LOOK_UP_S = 1.0
_EXIT_S = 1.0
"""How long a process that let go of its connection may take to end by itself."""


class RemotePolicy:
    """A policy that is to live in a process.

    Args:
        source: what makes it.
        seed: what it is made with.
        instance: the instance to move there as it stands; None: it is made there.

    Raises:
        StepperError: the source or the instance cannot be pickled.
    """

    def __init__(self, source: PolicySource, seed: int, instance: PolicyInstance | None = None) -> None:
        self.number = next(_numbers)
        self.what = f"policy {source.name!r}"
        self.seen: list[View] = []
        """The views of the steps that it has done."""
        try:
            self.payload = pickle.dumps((source, seed, instance), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever a user's class raises
            raise StepperError(
                f"{self.what} cannot be pickled for a process of its own: {describe(error)}"
            ) from error


class PolicyProcess:
    """A process that policies live in, started when it is first needed.

    Args:
        timeout_s: the deadline of a step; None: none.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.residents = 0
        """Policies that live here, or are to."""
        self._timeout_s = timeout_s
        self._process: _Process | None = None
        self._made: set[int] = set()
        self._dropped: list[int] = []
        self._turn = threading.Lock()
        """Held from a request to its reply."""
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def step(self, policy: RemotePolicy, view: View) -> Outcome:
        """The action of a policy, or what stands in its place; it is made first if it is not there."""
        with self._turn:
            if self._process is not None and self._process.has_ended():
                self._end()  # between two steps: none of its policies is at fault
            if policy.number not in self._made:
                paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" too
                made = self._ask(policy, None, "make", policy.number, paths, policy.payload, policy.seen)
                if isinstance(made, Exception):
                    return made
                self._made.add(policy.number)
            outcome = self._ask(policy, self._timeout_s, "step", policy.number, view)
            if policy.number in self._made:  # it came back, whatever with
                policy.seen.append(view)
            return outcome

    def drop(self, policy: RemotePolicy) -> None:
        """Forget a policy, with the next request."""
        with self._lock:
            self.residents -= 1
            self._dropped.append(policy.number)

    def close(self) -> None:
        """Kill the process; a step under way fails."""
        with self._lock:
            self._closed.set()
            if self._process is not None:
                self._process.kill()
        with self._turn:
            self._end()

    def _ask(self, policy: RemotePolicy, timeout_s: float | None, request: str, *arguments: Any) -> Outcome:  # noqa: ANN401 - each request has its own
        """What the process replies; without a reply it is no more."""
        with self._lock:
            if self._closed.is_set():
                return _closed(policy)
            self._process = self._process or _Process()
            process, dropped, self._dropped = self._process, self._dropped, []
        self._made.difference_update(dropped)
        try:
            reply = process.reply((dropped, request, *arguments), timeout_s)
        except (EOFError, OSError):
            code = self._end()
            died = WorkerDiedError(f"{policy.what} ended its process (exit code {code})")
            return _closed(policy) if self._closed.is_set() else died
        if reply is None:
            process.kill()
            self._end()
            return overrun(policy.what, timeout_s or 0)
        return _outcome(policy, reply)

    def _end(self) -> int | None:
        """End the process, and with it the policies that live there; returns its exit code."""
        with self._lock:
            process, self._process = self._process, None
        self._made.clear()
        return process.end() if process else None


class _Process:
    """The process and the connection to it. What policies print there goes to standard error."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
            arguments = [str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "evaluation.policy_process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
                pass_fds=[theirs.fileno()],
                process_group=0,  # signals to a terminal's group are for the parent
            )

    def reply(self, request: tuple[Any, ...], timeout_s: float | None) -> Reply | None:
        """The reply to a request; None where there is none in time.

        Raises:
            EOFError: the process has ended.
            OSError: likewise.
        """
        self._connection.send(request)
        if not self._connection.poll(timeout_s):
            return None
        reply: Reply = self._connection.recv()
        return reply

    def has_ended(self) -> bool:
        """Whether it is no more."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it; whoever waits for a reply learns of it. From any thread."""
        self._process.kill()

    def end(self) -> int:
        """Kill it unless it has ended, and return its exit code; no other thread may wait for a reply."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):  # it may be on its way out already, with a code of its own
            return self._process.wait(_EXIT_S)
        self._process.kill()
        return self._process.wait()


def _outcome(policy: RemotePolicy, reply: Reply) -> Outcome:
    kind, *values = reply
    if kind == "raised":
        return _remote_error(*values)
    if kind == "unreadable":
        return WorkerLoadError(f"{policy.what} cannot be unpickled in a process: {values[0]}")
    action: int = values[0]
    return action


def _closed(policy: RemotePolicy) -> StepperClosedError:
    return StepperClosedError(f"the evaluation ended before {policy.what} stepped")


def _remote_error(payload: bytes | None, trace: str) -> Exception:
    """The exception that a policy raised in its process, with the traceback there as its cause."""
    error: Exception | None = None
    with suppress(Exception):  # its class may not be there to import
        error = pickle.loads(payload) if payload else None  # noqa: S301 - from a process of ours
    error = error or RemotePolicyError(error_line(trace))
    error.__cause__ = RemoteTraceback(trace)
    return error


def _make(
    instances: dict[int, PolicyInstance], number: int, paths: list[str], payload: bytes, seen: Sequence[View]
) -> Reply:
    """Take in a policy, or make it from its source, and step it through what it has seen before."""
    sys.path[:] = paths
    try:
        source, seed, instance = pickle.loads(payload)  # noqa: S301 - from the process that started this one
    except Exception as error:  # noqa: BLE001 - whatever a user's class raises
        return "unreadable", describe(error)
    made = instance or instance_or_error(source, seed)
    if isinstance(made, Exception):
        return _raised(made)
    instances[number] = made
    for view in seen:
        made.step(view)
    return "done", 0


def _step(instances: dict[int, PolicyInstance], number: int, view: View) -> Reply:
    outcome = instances[number].step(view)
    return _raised(outcome) if isinstance(outcome, Exception) else ("done", outcome)


def _raised(error: Exception) -> Reply:
    """An error with its traceback; as None where it does not survive being pickled."""
    try:
        payload: bytes | None = pickle.dumps(error)
        pickle.loads(payload or b"")  # noqa: S301 - just pickled
    except Exception:  # noqa: BLE001 - whatever a user's class raises
        payload = None
    return "raised", payload, policy_traceback(error)


def _serve(connection: Connection) -> None:
    """In the process: answer requests until the other side is gone."""
    instances: dict[int, PolicyInstance] = {}
    with suppress(EOFError, ConnectionError):
        while True:
            dropped, request, *arguments = connection.recv()
            for number in dropped:
                instances.pop(number, None)
            answer = _make if request == "make" else _step
            connection.send(answer(instances, *arguments))


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(_LOOK_UP_S)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    _serve(Connection(int(sys.argv[1])))
