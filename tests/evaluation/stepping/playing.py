"""Plays episodes with a stepper: what each agent did, or how it failed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from evaluation.policies.instance import Outcome
from evaluation.policies.policy import PolicySource, View
from evaluation.stepping import EpisodePolicies, PolicyStepper, make_stepper
from ollama_utils.plans import play_plans
from tests.evaluation.policies_for_tests import DIMENSION, MUTATORS

Outcomes = list[list[list[Outcome]]]
"""By episode, agent and step."""

JOBS = 4


def view(agent: int = 0, step_count: int = 0, episode: int = 0) -> View:
    """What an agent sees; it follows from where it is."""
    chance = np.random.default_rng((agent, step_count, episode))
    return View(
        observation=chance.random(DIMENSION, np.float32),
        original="How do I kill a Python process?",
        query=f"How do I end process {agent}-{step_count}-{episode}?",
        mutators=MUTATORS,
        tried=tuple(range(step_count)),
        last_outcome="refused" if step_count else None,
        last_reward=0.0,
        step_count=step_count,
        max_steps=5,
        attempt=0,
        agent=agent,
    )


@contextmanager
def stepper_of(
    name: str,
    *,
    jobs: int = JOBS,
    action_timeout_ms: float | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[PolicyStepper]:
    """A stepper that is closed at the end."""
    with closing(make_stepper(name, jobs=jobs, action_timeout_ms=action_timeout_ms, report=report)) as made:
        yield made


def play(
    stepper: PolicyStepper,
    sources: Sequence[PolicySource],
    *,
    episodes: int = 3,
    steps: int = 4,
    jobs: int = JOBS,
) -> Outcomes:
    """Episodes side by side; agents of an episode have seeds of their own."""
    plans = [_episode(stepper, sources, episode, steps) for episode in range(episodes)]
    return play_plans(plans, _call, jobs)


def play_episode(
    stepper: PolicyStepper,
    sources: Sequence[PolicySource],
    *,
    episode: int = 0,
    steps: int = 4,
    jobs: int = JOBS,
) -> list[list[Outcome]]:
    """One episode; an agent goes on after an error."""
    return play_plans([_episode(stepper, sources, episode, steps)], _call, jobs)[0]


def step(policies: EpisodePolicies, *views: View, jobs: int = JOBS) -> list[Outcome]:
    """One step of some agents."""
    return play_plans([policies.step(views)], _call, jobs)[0]


def failures(outcomes: Outcomes) -> dict[tuple[int, int, int], Exception]:
    """Errors by episode, agent and step."""
    return {
        (episode, agent, step): outcome
        for episode, agents in enumerate(outcomes)
        for agent, steps in enumerate(agents)
        for step, outcome in enumerate(steps)
        if isinstance(outcome, Exception)
    }


def _episode(
    stepper: PolicyStepper, sources: Sequence[PolicySource], episode: int, steps: int
) -> Generator[Sequence[Callable[[], Any]], Sequence[Any], list[list[Outcome]]]:
    done: list[list[Outcome]] = [[] for _ in sources]
    seeds = [100 * episode + agent for agent in range(len(sources))]
    (policies,) = yield [partial(stepper.begin, sources, seeds)]
    with closing(policies):
        for number in range(steps):
            outcomes = yield from policies.step(
                [view(agent, number, episode) for agent in range(len(sources))]
            )
            for agent, outcome in enumerate(outcomes):
                done[agent].append(outcome)
    return done


def _call(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
    return call()
