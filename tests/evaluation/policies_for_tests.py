"""Policies of all kinds, in a module that other processes can import, and how they are played."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from evaluation.instance import policy_traceback, raised_line
from evaluation.policies import PolicySource, View
from evaluation.stepping import PolicyStepper
from ollama_utils.parallel import map_parallel

MUTATORS = ("noop", "paraphrase", "shorten", "expand", "formalize", "simplify", "add_context")
DIMENSION = 24
"""Numbers of an observation."""
Outcome = int | str


def view(agent: int = 0, step_count: int = 0, episode: int = 0, **more: Any) -> View:
    """What an agent sees; it follows from where it is."""
    chance = np.random.default_rng((agent, step_count, episode))
    known: dict[str, Any] = {
        "observation": chance.random(DIMENSION, np.float32),
        "original": "How do I kill a Python process?",
        "query": f"How do I end process {agent}-{step_count}-{episode}?",
        "mutators": MUTATORS,
        "tried": tuple(range(step_count)),
        "last_outcome": "refused" if step_count else None,
        "last_reward": 0.0,
        "step_count": step_count,
        "max_steps": 5,
        "agent": agent,
    }
    return View(**(known | more))


def play(
    stepper: PolicyStepper, sources: Sequence[PolicySource], *, episodes: int = 1, steps: int = 4
) -> list[list[Outcome]]:
    """Episodes side by side: of each agent its actions, then the error that ended them, if any."""

    def play_agent(seat: tuple[int, int]) -> list[Outcome]:
        done: list[Outcome] = []
        (episode, agent), first = seat, 100 * seat[0]
        try:
            policy = stepper.begin(sources[agent], first + agent, group=episode, group_seed=first)
            for step in range(steps):
                done.append(policy(view(agent, step, episode)))  # noqa: PERF401 - they stay when one raises
        except Exception as error:  # noqa: BLE001 - whatever a policy raises
            done.append(raised_line(policy_traceback(error)))
        return done

    return map_parallel(play_agent, product(range(episodes), range(len(sources))))


def source(make_policy: Callable[..., Any], **arguments: Any) -> PolicySource:
    """Makes `make_policy(seed, **arguments)`."""
    return PolicySource(name=make_policy.__name__, make=partial(make_policy, **arguments))


class Wanderer:
    """Remembers all it saw and did, and draws from its stream: another order would show.

    With a file it writes the process there that it steps in, and prints it. In step 1 of agent 0 it
    does `fault`.
    """

    def __init__(
        self, seed: int, fault: Callable[[], Any] | None = None, file: Path | None = None
    ) -> None:
        self.chance = np.random.default_rng(seed)
        self.memory = 0
        self.fault, self.file = fault, file

    def step(self, view: View) -> Any:
        if self.file:
            print(f"in process {os.getpid()}")  # noqa: T201 - a policy may
            with self.file.open("a") as lines:
                lines.write(f"{os.getpid()}\n")
        if self.fault and (view.agent, view.step_count) == (0, 1):
            return self.fault()
        seen = int(view.observation.sum() * 1000) + view.agent
        self.memory = (31 * self.memory + seen + int(self.chance.integers(1000))) % 10007
        return self.memory % len(view.mutators)


class Together:
    """Chooses from what it saw of an agent, for one or many at once; counts its calls."""

    calls: ClassVar[list[int]] = []

    def __init__(self, seed: int, fault: Callable[[], Any] | None = None) -> None:  # noqa: ARG002 - as all are made
        self.seen: dict[int, int] = {}
        self.fault = fault

    def step(self, view: View) -> Any:
        if self.fault and (view.agent, view.step_count) == (0, 1):
            return self.fault()
        seen = self.seen.get(view.agent, 0) + int(view.observation.sum() * 1000)
        self.seen[view.agent] = seen
        return seen % len(view.mutators)

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:
        self.calls.append(len(views))
        time.sleep(0.002)  # gives way, so that others may come in
        return [self.step(view) for view in views]


class OddError(Exception):
    """Cannot be unpickled: it wants two arguments and keeps one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.why = why


def raise_odd_error() -> int:
    raise OddError("odd", "because")


def choose_7() -> int:
    return 7


def leave() -> int:
    sys.exit(3)


def hang() -> int:
    """Hangs until `release` is set, which in another process nobody does."""
    release.wait(60)
    return 0


release = threading.Event()
