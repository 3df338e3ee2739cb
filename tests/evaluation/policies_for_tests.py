"""Policies of all kinds, in a module that other processes can import."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from evaluation.policies.policy import Policy, View

MUTATORS = ("noop", "paraphrase", "shorten", "expand", "formalize", "simplify", "add_context")
DIMENSION = 24
"""Numbers of an observation."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Makes `make_policy(seed, **arguments)`."""

    name: str
    make_policy: Callable[..., Policy]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def make(self, seed: int) -> Policy:
        return self.make_policy(seed, **self.arguments)


def source(make_policy: Callable[..., Policy], **arguments: Any) -> Source:  # noqa: ANN401 - the policy's own
    return Source(name=make_policy.__name__, make_policy=make_policy, arguments=arguments)


class Wanderer:
    """Remembers all it saw and did, and draws from its stream: another order or instance would show."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.memory = 0

    def step(self, view: View) -> int:
        seen = int(view.observation.sum() * 1000) + view.agent
        self.memory = (31 * self.memory + seen + int(self.chance.integers(1000))) % 10007
        return self.memory % len(view.mutators)


class Busy(Wanderer):
    """A wanderer that computes for `cpu_s` of its thread's own time."""

    def __init__(self, seed: int, cpu_s: float = 0.01) -> None:
        super().__init__(seed)
        self.cpu_s = cpu_s

    def step(self, view: View) -> int:
        end_s = time.thread_time() + self.cpu_s
        while time.thread_time() < end_s:
            pass
        return super().step(view)


class Waiting(Wanderer):
    """A wanderer that waits, as for a server."""

    def step(self, view: View) -> int:
        time.sleep(0.02)
        return super().step(view)


class Countable(Busy):
    """Counts in its state how often it was pickled and unpickled, and chooses by that count."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dumps = self.loads = 0

    def __getstate__(self) -> dict[str, Any]:
        self.dumps += 1
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.loads += 1

    def step(self, view: View) -> int:
        super().step(view)
        return self.dumps + self.loads


class Unpicklable(Busy):
    """Holds what cannot be pickled."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lock = threading.Lock()


class Homebody(Busy):
    """Is pickled, and cannot be unpickled elsewhere."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise RuntimeError("nowhere but home")


class Failing(Wanderer):
    """Does `fault` in step `at` of agent `agent`."""

    def __init__(self, seed: int, fault: Callable[[], int], agent: int = 0, at: int = 1) -> None:
        super().__init__(seed)
        self.fault, self.agent, self.at = fault, agent, at

    def step(self, view: View) -> int:
        if (view.agent, view.step_count) == (self.agent, self.at):
            return self.fault()
        return super().step(view)


class OddError(Exception):
    """Cannot be unpickled: it wants two arguments and keeps one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.why = why


def raise_value_error() -> int:
    raise ValueError("the fault of this policy")


def raise_odd_error() -> int:
    raise OddError("odd", "because")


def leave() -> int:
    sys.exit(3)


def die() -> int:
    os._exit(9)


def hang() -> int:
    """Hangs until `release` is set, which in another process nobody does."""
    release.wait(60)
    return 0


release = threading.Event()


class Meeting:
    """Steps only when `parties` policies step at once."""

    barrier: ClassVar[threading.Barrier]

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def step(self, view: View) -> int:
        self.barrier.wait(20)
        return view.agent


class LateMeeting(Meeting):
    """Waits for itself alone in its first three steps ever, and then for the others."""

    steps: ClassVar[int] = 0

    def step(self, view: View) -> int:
        LateMeeting.steps += 1
        if LateMeeting.steps <= 3:
            time.sleep(0.02)
            return view.agent
        return super().step(view)


class Crowd:
    """Counts how many instances step at once, and how many steps an instance does at once."""

    now: ClassVar[int] = 0
    most: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def step(self, view: View) -> int:
        with self.lock:
            Crowd.now += 1
            Crowd.most = max(Crowd.most, Crowd.now)
        time.sleep(0.001)  # gives way, so that others may come in
        with self.lock:
            Crowd.now -= 1
        return view.agent


class Together:
    """Chooses from the view alone, for one agent or many; counts its calls."""

    calls: ClassVar[list[int]] = []

    def __init__(self, seed: int) -> None:  # noqa: ARG002 - as all are made
        self.seen: dict[int, int] = {}

    def step(self, view: View) -> int:
        seen = self.seen[view.agent] = self.seen.get(view.agent, 0) + int(view.observation.sum() * 1000)
        return seen % len(view.mutators)

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:
        self.calls.append(len(views))
        return [self.step(view) for view in views]


class BadTogether(Together):
    """Gives what `actions` says."""

    def __init__(self, seed: int, actions: Sequence[Any]) -> None:
        super().__init__(seed)
        self.actions = actions

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:  # noqa: ARG002 - whatever it sees
        return list(self.actions)


class Chooser(Wanderer):
    """Chooses `action`, whatever it is."""

    def __init__(self, seed: int, action: object) -> None:
        super().__init__(seed)
        self.action = action

    def step(self, view: View) -> Any:  # noqa: ANN401, ARG002 - that is the point
        return self.action
