"""How much faster the steps of several agents are with each policy wrapper than one by one.

python -m benchmarks.wrappers

The policies are defined here, so that other processes can import them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import Section, at_least, run
from evaluation.policies import Policy, View
from evaluation.stepping import PolicyStepper, StepperName
from ollama_utils.parallel import map_parallel

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
class Case:
    """A policy, and the wrappers that are compared with `serial`: a PolicySource."""

    name: str
    make_policy: Callable[[], Policy]
    wrappers: Sequence[StepperName]
    steps: int
    """Steps of an episode in a run."""
    episodes: int = 1
    """Episodes side by side, each with its own agents."""

    def make(self, seed: int) -> Policy:  # noqa: ARG002 - these policies leave nothing to chance
        """An instance."""
        return self.make_policy()


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

    def step(self, view: View) -> int:
        """The action for one."""
        return int(np.argmax(_memory() @ view.observation)) % MUTATORS

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:
        """The actions for several, in one product."""
        seen = np.stack([view.observation for view in views])
        return [int(row) % MUTATORS for row in np.argmax(_memory() @ seen.T, axis=0)]


class Networked:
    """Has a network of the size that PPO trains."""

    def __init__(self) -> None:
        self.network = _network()

    def step(self, view: View) -> int:
        """The best-scored mutator; wrappers ask the network themselves."""
        import torch

        with torch.no_grad():
            return int(self.network(torch.from_numpy(view.observation)[None]).argmax())


@cache
def _memory() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(REMEMBERED, DIMENSION)).astype(np.float32)


@cache
def _network() -> torch.nn.Module:
    from torch.nn import Linear, Sequential, Tanh

    hidden = (Linear(DIMENSION, 64), Tanh(), Linear(64, 64), Tanh())
    return Sequential(*hidden, Linear(64, MUTATORS))


def sections(*, quick: bool) -> Iterator[Section]:
    """Each kind of policy under the wrappers that fit it, beside one step after another."""
    step_s, steps, runs = (0.01, 2, 1) if quick else (STEP_S, 20, 3)
    cases = cases_for(step_s, steps)
    rows = [row for case in cases for row in measure(case, agents=AGENTS, runs=runs)]
    faster = {(row["policy"], row["wrapper"]): row["times faster"] for row in rows}
    waits, computes = (case.name for case in cases[:2])
    yield Section(
        title="Policies side by side",
        about=(
            f"What a step of {AGENTS} agents takes under a policy wrapper, and one policy after "
            f"another (`serial`), medians of {runs} runs that take turns; wrappers are warm. What "
            "computes in Python gains from as many processes as there are cores."
        ),
        rows=rows,
        checks=[
            at_least(f"times faster on threads: {waits}", 6, faster[waits, "thread"]),
            at_least(f"times faster in processes: {computes}", 1.2, faster[computes, "process"]),
        ],
    )


def cases_for(step_s: float, steps: int) -> list[Case]:
    """A policy that waits, one that computes, one with `step_batch`, one with a network.

    Args:
        step_s: seconds that a step of the first two takes; they take 2 steps.
        steps: of the others.
    """
    few = min(2, steps)
    waits, computes = partial(Waits, step_s), partial(Computes, _rounds(step_s))
    return [
        Case(name=f"waits {step_s * 1000:g} ms", make_policy=waits, wrappers=["thread"], steps=few),
        Case(
            name=f"computes {step_s * 1000:g} ms in Python",
            make_policy=computes,
            wrappers=["thread", "process"],
            steps=few,
        ),
        Case(name="has step_batch", make_policy=Remembers, wrappers=["batch"], steps=steps),
        Case(
            name="has a torch network",
            make_policy=Networked,
            wrappers=["torch"],
            episodes=8,
            steps=steps,
        ),
    ]


def measure(case: Case, *, agents: int, runs: int) -> list[dict[str, Any]]:
    """One row for each wrapper: milliseconds a step of all agents of an episode.

    Figures are medians over runs, which take turns; wrappers are warm.
    """
    names: list[StepperName] = ["serial", *case.wrappers]
    with ExitStack() as stack:
        steppers = {
            name: stack.enter_context(closing(PolicyStepper(name, jobs=agents * case.episodes)))
            for name in names
        }
        for stepper in steppers.values():
            _step_s(case, stepper, agents)  # warms it up
        taken = [
            {name: _step_s(case, stepper, agents) for name, stepper in steppers.items()}
            for _ in range(runs)
        ]
    return [
        {
            "policy": case.name,
            "episodes": case.episodes,
            "wrapper": name,
            "ms a step, serial": round(1000 * median(each["serial"] for each in taken), 2),
            "ms a step": round(1000 * median(each[name] for each in taken), 2),
            "times faster": round(median(each["serial"] / each[name] for each in taken), 2),
        }
        for name in case.wrappers
    ]


def _step_s(case: Case, stepper: PolicyStepper, agents: int) -> float:
    """The seconds of a step of all agents, after a first one, in which instances are made."""
    seats = [(episode, agent) for episode in range(case.episodes) for agent in range(agents)]
    policies = {
        (episode, agent): stepper.begin(
            case, episode * agents + agent, group=episode, group_seed=episode * agents
        )
        for episode, agent in seats
    }

    def play(seat: tuple[int, int], steps: range) -> None:
        for step in steps:
            policies[seat].step(_view(seat[1], step))

    map_parallel(lambda seat: play(seat, range(1)), seats)
    began_s = time.perf_counter()
    map_parallel(lambda seat: play(seat, range(1, case.steps + 1)), seats)
    taken_s = time.perf_counter() - began_s
    for policy in policies.values():
        policy.close()
    return taken_s / case.steps


@cache
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
        agent=agent,
    )


def _rounds(cpu_s: float) -> int:
    """Rounds of `Computes` that take so much CPU time here."""
    few = 20_000
    taken = []
    for _ in range(5):
        began_s = time.thread_time()
        Computes(few).step(_view(0, 0))
        taken.append(time.thread_time() - began_s)
    return max(1, round(few * cpu_s / min(taken)))


if __name__ == "__main__":
    sys.exit(run("wrappers", "performance.md"))
