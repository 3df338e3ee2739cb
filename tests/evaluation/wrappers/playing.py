"""Plays episodes with a wrapper: what each agent did, or how it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np

from evaluation.policies.policy import PolicySource, View
from evaluation.wrappers.wrapper import Wrapper, make_wrapper
from tests.evaluation.network_policies import DIMENSION
from tests.evaluation.policies_for_tests import MUTATORS

Outcomes = list[list[list[int | Exception]]]
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
def wrapper_of(
    name: str,
    *,
    jobs: int = JOBS,
    action_timeout_ms: float | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Wrapper]:
    """A wrapper that is closed at the end."""
    with closing(make_wrapper(name, jobs=jobs, action_timeout_ms=action_timeout_ms, report=report)) as made:
        yield made


def play(wrapper: Wrapper, sources: Sequence[PolicySource], *, episodes: int = 3, steps: int = 4) -> Outcomes:
    """Episodes side by side, each on its own thread; agents of an episode have seeds of their own."""

    def one(episode: int) -> list[list[int | Exception]]:
        return play_episode(wrapper, sources, episode=episode, steps=steps)

    with ThreadPoolExecutor(episodes) as threads:
        return list(threads.map(one, range(episodes)))


def play_episode(
    wrapper: Wrapper, sources: Sequence[PolicySource], *, episode: int = 0, steps: int = 4
) -> list[list[int | Exception]]:
    """One episode; an agent goes on after an error."""
    done: list[list[int | Exception]] = [[] for _ in sources]
    with closing(wrapper.team(sources, [100 * episode + agent for agent in range(len(sources))])) as team:
        for step in range(steps):
            pending = [team.submit(agent, view(agent, step, episode)) for agent in range(len(sources))]
            for agent, each in enumerate(pending):
                try:
                    done[agent].append(each.result())
                except Exception as error:  # noqa: BLE001 - it is the outcome
                    done[agent].append(error)
    return done


def failures(outcomes: Outcomes) -> dict[tuple[int, int, int], Exception]:
    """Errors by episode, agent and step."""
    return {
        (episode, agent, step): outcome
        for episode, agents in enumerate(outcomes)
        for agent, steps in enumerate(agents)
        for step, outcome in enumerate(steps)
        if isinstance(outcome, Exception)
    }
