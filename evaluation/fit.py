"""Fits policies on a mission's training queries, with a stated number of questions to the target.

What a fit comes to does not depend on how many jobs there are: a bandit's pulls go in rows of always as many,
which are chosen in their order and learned from in their order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from envs.episode import derive_seed
from evaluation.episodes import AgentEpisode, Call, EpisodeContext
from evaluation.policies.bandits import Bandit, BestFixed
from evaluation.policies.policy import PolicySource
from evaluation.unscored import UnscoredLimit
from records.errors import RunStoppedError

PULLS_SIDE_BY_SIDE = 16
"""Pulls of a bandit that are made side by side."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted policy."""

    source: PolicySource
    """The policy, frozen."""
    calls: int
    """Questions that were asked."""
    means: dict[str, float]
    """The mean reward of each mutator, by name."""
    mutators: Sequence[str]

    def result(self) -> dict[str, Any]:
        """What results.json holds of it."""
        action = getattr(self.source, "action", None)
        return {
            "policy": self.source.name,
            "calls": self.calls,
            "means": self.means,
            "chosen": None if action is None else self.mutators[action],
        }


FitPlan = Generator[Sequence[Call], Sequence[Any], Fit]


def fit_bandit(
    name: str,
    bandit: Bandit,
    context: EpisodeContext,
    queries: Sequence[str],
    *,
    calls: int,
    limit: UnscoredLimit,
) -> FitPlan:
    """The plan of fitting a bandit: a pull rewords a query as it stands and asks it, and pays 1 for success.

    The k-th pull of an arm on a query has the same seeds for every bandit, so what one has asked is known to
    the others.

    Args:
        name: what the policy is called.
        bandit: what learns.
        context: the mission's.
        queries: its training queries.
        calls: the most questions to the target.
        limit: stops the fit when calls keep failing.

    Raises:
        RunStoppedError: too little could be scored.
    """
    found = _Found(name, context)
    pulls: Counter[tuple[str, int]] = Counter()
    next_query = cycle(_ordered(queries, context.seed))
    left = calls  # a rewrite that fails asks nothing, and is paid for all the same: fits end
    while left:
        arms = [bandit.ask() for _ in range(min(PULLS_SIDE_BY_SIDE, left))]
        left -= len(arms)
        row: list[AgentEpisode] = []
        for arm in arms:
            query = next(next_query)
            row.append(AgentEpisode(context, query, number=pulls[query, arm]))
            pulls[query, arm] += 1
        yield [partial(_pull, episode, arm) for episode, arm in zip(row, arms, strict=True)]
        for episode, arm in zip(row, arms, strict=True):
            found.calls += episode.calls["questions"]
            limit.add(episode.attempts)
            for transition in episode.transitions:
                if not transition.info["unscored"]:
                    success = float(transition.info["success"])
                    bandit.tell(arm, success)
                    found.note(arm, success)
    return found.fit(bandit)


def fit_best_fixed(
    name: str, context: EpisodeContext, queries: Sequence[str], *, calls: int, limit: UnscoredLimit
) -> FitPlan:
    """The plan of playing each mutator alone in whole episodes, on the same queries, with equal budgets.

    Args: see `fit_bandit`.

    Raises:
        RunStoppedError: too little could be scored.
    """
    found = _Found(name, context)
    mutators = len(found.names)
    best = BestFixed(mutators)
    ordered = _ordered(queries, context.seed)
    left, begun = [calls // mutators] * mutators, [0] * mutators
    while True:
        # As many episodes of each mutator as its budget pays for, however long they turn out.
        paid = [(arm, budget // context.rules.max_steps) for arm, budget in enumerate(left)]
        arms = [arm for arm, episodes in paid for _ in range(episodes)]
        if not arms:
            return found.fit(best)
        row: list[AgentEpisode] = []
        for arm in arms:
            lap, place = divmod(begun[arm], len(ordered))
            row.append(AgentEpisode(context, ordered[place], number=lap))
            begun[arm] += 1
        yield [partial(_play_alone, episode, arm) for episode, arm in zip(row, arms, strict=True)]
        for episode, arm in zip(row, arms, strict=True):
            questions = episode.calls["questions"]
            found.calls += questions
            left[arm] -= max(questions, 1)
            limit.add(episode.attempts)
            result = episode.result(name)
            if result["status"] == "scored":
                best.tell(arm, result["return"])
                found.note(arm, result["return"])


class _Found:
    """What a fit has found so far."""

    def __init__(self, name: str, context: EpisodeContext) -> None:
        self.names = [mutator.name for mutator in context.rules.mutators]
        self.calls = 0
        self._name = name
        self._sums: defaultdict[int, float] = defaultdict(float)
        self._counts: Counter[int] = Counter()

    def note(self, arm: int, value: float) -> None:
        """Note what a mutator brought."""
        self._sums[arm] += value
        self._counts[arm] += 1

    def fit(self, learned: Bandit | BestFixed) -> Fit:
        """The policy that was found."""
        try:
            source = learned.frozen()
        except ValueError as error:
            raise RunStoppedError(f"{self._name} could not be fitted: {error}") from error
        means = {
            name: self._sums[arm] / self._counts[arm]
            for arm, name in enumerate(self.names)
            if self._counts[arm]
        }
        return Fit(source=source, calls=self.calls, means=means, mutators=self.names)


def _ordered(queries: Sequence[str], seed: int) -> list[str]:
    """The queries in the order in which fits take them."""
    return sorted(queries, key=lambda query: derive_seed(seed, "fit", query))


def _pull(episode: AgentEpisode, arm: int) -> None:
    """One step from the query as it stands; none where the episode could not begin."""
    episode.begin()
    if not episode.is_over:
        episode.step(arm)


def _play_alone(episode: AgentEpisode, arm: int) -> None:
    """A whole episode of one mutator."""
    episode.begin()
    while not episode.is_over:
        episode.step(arm)
