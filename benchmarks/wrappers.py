"""How much faster the steps of several agents are with each policy wrapper than one by one.

python -m benchmarks.wrappers

The policies are defined here, so that other processes can import them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import Section, at_least, run
from evaluation.policies.policy import Policy, View
from evaluation.stepping import PolicyStepper, make_stepper
from ollama_utils.plans import play_plans

if TYPE_CHECKING:
    import torch

AGENTS = 8
STEP_S = 0.05
"""What a step of a policy that waits, or computes, takes alone."""
DIMENSION = 384
"""Entries of an observation, about those of a sentence's embedding."""
MUTATORS = 14
REMEMBERED = 20_000


@dataclass(frozen=True, kw_only=True)
class Source:
    """Makes `make_policy(**arguments)`, whatever the seed."""

    name: str
    make_policy: Callable[..., Policy]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def make(self, seed: int) -> Policy:  # noqa: ARG002 - these policies leave nothing to chance
        """An instance."""
        return self.make_policy(**self.arguments)


@dataclass(frozen=True)
class Waits:
    """Waits, as for a server."""

    wait_s: float

    def step(self, view: View) -> int:
        """Wait."""
        time.sleep(self.wait_s)
        return view.agent % MUTATORS


@dataclass(frozen=True)
class Computes:
    """Computes in pure Python."""

    rounds: int

    def step(self, view: View) -> int:
        """Compute."""
        total = view.step_count
        for number in range(self.rounds):
            total = (total * 31 + number) % 1_000_003
        return total % MUTATORS


class Remembers:
    """Looks up the nearest of many embeddings; `step_batch` does so for several in one product."""

    def __init__(self) -> None:
        self._memory = _memory()

    def step(self, view: View) -> int:
        """The action for one."""
        return int(np.argmax(self._memory @ view.observation)) % MUTATORS

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:
        """The actions for several, in one product."""
        shown = np.stack([view.observation for view in views])
        return [int(row) % MUTATORS for row in np.argmax(self._memory @ shown.T, axis=0)]


class Networked:
    """Has a network of the size that PPO trains."""

    def __init__(self) -> None:
        self.network = _network()

    def step(self, view: View) -> int:
        """The action with the highest score; wrappers ask the network themselves."""
        import torch

        with torch.no_grad():
            return int(self.network(torch.from_numpy(view.observation)[None]).argmax())


@cache
def _memory() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(REMEMBERED, DIMENSION)).astype(np.float32)


@cache
def _network() -> torch.nn.Module:
    import torch

    torch.manual_seed(0)
    widths = (DIMENSION, 64, 64, MUTATORS)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(before, after), torch.nn.Tanh())
        for before, after in pairwise(widths)
    ]
    return torch.nn.Sequential(*layers)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A policy, and the wrappers that are compared with `serial`."""

    policy: str
    source: Source
    wrappers: Sequence[str]
    steps: int
    """Steps of an episode in a run."""
    episodes: int = 1
    """Episodes side by side, each with its own thread and its own agents."""


def sections(*, quick: bool) -> Iterator[Section]:
    """Each kind of policy under the wrappers that fit it, beside one step after another."""
    step_s, steps, runs = (0.01, 2, 1) if quick else (STEP_S, 20, 3)
    cases = cases_for(step_s, steps)
    rows = [row for case in cases for row in measure(case, agents=AGENTS, runs=runs)]
    faster = {(row["policy"], row["wrapper"]): row["times faster"] for row in rows}
    waits, computes = (case.policy for case in cases[:2])
    yield Section(
        title="Policies side by side",
        about=(
            f"What a step of {AGENTS} agents takes under a policy wrapper, and one policy after another "
            f"(`serial`), medians of {runs} runs that take turns; wrappers are warm. What computes in Python "
            "gains from as many processes as there are cores."
        ),
        rows=rows,
        checks=[
            at_least(f"times faster on threads: {waits}", 6, faster[waits, "thread"]),
            at_least(f"times faster in processes: {computes}", 1.2, faster[computes, "process"]),
            at_least(f"times faster under auto: {computes}", 1.2, faster[computes, "auto"]),
        ],
    )


def cases_for(step_s: float, steps: int) -> list[Case]:
    """A policy that waits, one that computes, one with `step_batch`, one with a network.

    Args:
        step_s: what a step of the first two takes; they take 2 steps.
        steps: of the others.
    """
    return [
        Case(
            policy=f"waits {step_s * 1000:g} ms",
            source=Source(name="waits", make_policy=Waits, arguments={"wait_s": step_s}),
            wrappers=("thread", "auto"),
            steps=min(2, steps),
        ),
        Case(
            policy=f"computes {step_s * 1000:g} ms in Python",
            source=Source(name="computes", make_policy=Computes, arguments={"rounds": _rounds(step_s)}),
            wrappers=("thread", "process", "auto"),
            steps=min(2, steps),
        ),
        Case(
            policy="has step_batch",
            source=Source(name="remembers", make_policy=Remembers),
            wrappers=("batch", "auto"),
            steps=steps,
        ),
        Case(
            policy="has a torch network",
            source=Source(name="networked", make_policy=Networked),
            wrappers=("torch", "auto"),
            episodes=8,
            steps=steps,
        ),
    ]


def measure(case: Case, *, agents: int, runs: int) -> list[dict[str, Any]]:
    """One row for each wrapper; figures are medians over runs, which take turns.

    A step is one of all agents; how many times faster it is, is the ratio in the same run. Wrappers are warm:
    processes run, and `auto` has picked.
    """
    reports: list[str] = []
    with ExitStack() as stack:
        steppers = {
            name: stack.enter_context(
                closing(make_stepper(name, jobs=agents, action_timeout_ms=None, report=reports.append))
            )
            for name in ("serial", *case.wrappers)
        }
        for stepper in steppers.values():
            _step_s(case, stepper, agents)  # warms it up
        taken = [
            {name: _step_s(case, stepper, agents) for name, stepper in steppers.items()} for _ in range(runs)
        ]
    return [
        {
            "policy": case.policy,
            "episodes": case.episodes,
            "wrapper": name,
            "ms a step, serial": round(1000 * median(each["serial"] for each in taken), 2),
            "ms a step": round(1000 * median(each[name] for each in taken), 2),
            "times faster": round(median(each["serial"] / each[name] for each in taken), 2),
            "what auto said": " ".join(reports) if name == "auto" else None,
        }
        for name in case.wrappers
    ]


def _step_s(case: Case, stepper: PolicyStepper, agents: int) -> float:
    """The median seconds of a step, all episodes of the case side by side."""
    plans = [_play(case, stepper, agents, number) for number in range(case.episodes)]
    return median(play_plans(plans, lambda call: call(), agents * case.episodes))


def _play(
    case: Case, stepper: PolicyStepper, agents: int, number: int
) -> Generator[Sequence[Callable[[], Any]], Sequence[Any], float]:
    """The plan of an episode: the median seconds of a step, but for the first: instances are made in it."""
    seeds = range(number * agents, (number + 1) * agents)
    taken = []
    with closing(stepper.begin([case.source] * agents, seeds)) as policies:
        for step in range(case.steps + 1):
            views = [_view(agent, step) for agent in range(agents)]
            began_s = time.perf_counter()
            yield from policies.step(views)
            taken.append(time.perf_counter() - began_s)
    return median(taken[1:])


def _view(agent: int, step: int) -> View:
    return View(
        observation=np.random.default_rng((agent, step)).normal(size=DIMENSION).astype(np.float32),
        original="How do I kill a Python process?",
        query="How do I end a Python process?",
        mutators=tuple(map(str, range(MUTATORS))),
        tried=(),
        last_outcome=None,
        last_reward=0.0,
        step_count=step,
        max_steps=step + 1,
        attempt=0,
        agent=agent,
    )


def _rounds(cpu_s: float) -> int:
    """Rounds of `Computes` that take so much CPU time here."""
    few = 20_000
    policy, shown = Computes(few), _view(0, 0)
    taken = []
    for _ in range(5):
        began_s = time.thread_time()
        policy.step(shown)
        taken.append(time.thread_time() - began_s)
    return max(1, round(few * cpu_s / min(taken)))


if __name__ == "__main__":
    sys.exit(run("wrappers", "performance.md"))
