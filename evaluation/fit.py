"""Fits policies on a mission's training queries, with a stated number of questions to the target.

What a fit comes to does not depend on how many jobs there are: a bandit's pulls go in rows of always as many,
which are chosen in their order and learned from in their order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.episode import Transition, derive_seed
from evaluation.episodes import AgentEpisode, Call, EpisodeContext
from evaluation.policies.bandits import Bandit, BestFixed
from evaluation.policies.contextual import BanditSource
from evaluation.policies.policy import PolicySource
from ollama_utils.errors import OllamaError
from records.errors import RunStoppedError
from records.failures import FailureLimit

if TYPE_CHECKING:
    from train.bandit import Explore, LinearBandit

PULLS_SIDE_BY_SIDE = 16
"""Pulls of a bandit that are made side by side; the lanes of a contextual one."""
STEPS_OF_A_LANE = 4
"""Steps that each lane of a contextual bandit takes before it learns from them."""


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
    limit: FailureLimit,
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
            limit.add(episode.attempts[-1:])
            for transition in episode.transitions:
                if not transition.info["unscored"]:
                    success = float(transition.info["success"])
                    bandit.tell(arm, success)
                    found.note(arm, success)
    return found.fit(bandit)


def fit_best_fixed(
    name: str, context: EpisodeContext, queries: Sequence[str], *, calls: int, limit: FailureLimit
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
            limit.add(episode.step_errors)
            result = episode.result(name)
            if result["status"] == "scored":
                best.tell(arm, result["return"])
                found.note(arm, result["return"])


def fit_contextual(
    name: str,
    how: Explore,
    context: EpisodeContext,
    queries: Sequence[str],
    *,
    calls: int,
    limit: FailureLimit,
    seed: int,
) -> FitPlan:
    """The plan of a contextual bandit that plays whole episodes, learning every few steps as in training.

    Args:
        name: what the policy is called.
        how: it explores, `linucb` or `thompson`.
        context: the mission's.
        queries: its training queries.
        calls: the most questions to the target.
        limit: stops the fit when calls keep failing.
        seed: of all chance.

    Raises:
        RunStoppedError: a query cannot be embedded, or too little could be scored.
    """
    from train.bandit import LinearBandit, credit, rule_actions  # torch takes long to import

    found = _Found(name, context)
    ordered = _ordered(queries, context.seed)
    (embeddings,) = yield [partial(_embedded, name, context, ordered)]
    model = LinearBandit(embeddings.shape[1], len(found.names), rule_actions(context.rules.mutators))
    model.fit_components(embeddings)
    lanes = [_BanditLane(lane, context, ordered, seed) for lane in range(PULLS_SIDE_BY_SIDE)]
    left = calls
    while steps := min(STEPS_OF_A_LANE, left // len(lanes)):
        left -= steps * len(lanes)
        played = yield [partial(lane.play, model, how, steps) for lane in lanes]
        limit.add(chain.from_iterable(rows.errors for rows in played))
        found.calls += sum(rows.questions for rows in played)
        scored = list(chain.from_iterable(rows.scored for rows in played))
        if scored:
            observations, actions, transitions = zip(*scored, strict=True)
            earned = [each.reward + credit(each.info) for each in transitions]
            model.learn(np.stack(observations), np.array(actions), np.array(earned))
        for _, action, transition in scored:
            found.note(action, transition.reward)
    return found.fit(_Frozen(name, model))


class _Played(NamedTuple):
    """What a lane played in a rollout of a contextual bandit."""

    scored: list[tuple[NDArray[np.float32], int, Transition]]
    """Observation before it, action and transition of each step that was scored."""
    errors: list[str]
    """For each step that is over, or the beginning of an episode, why it is unscored; "" where it is not."""
    questions: int


class _BanditLane:
    """One after another the episodes of a lane, on queries that are drawn as training draws them."""

    def __init__(self, lane: int, context: EpisodeContext, queries: Sequence[str], seed: int) -> None:
        self._lane = lane
        self._context = context
        self._queries = queries
        self._seed = seed
        self._row = 0
        self._number = 0
        self._episode: AgentEpisode | None = None

    def play(self, model: LinearBandit, how: Explore, steps: int) -> _Played:
        """Play so many steps; one that cannot be scored, or an episode that cannot begin, counts, too."""
        from train.bandit import explore

        played = _Played([], [], 0)
        for _ in range(steps):
            episode, over, questions = self._begun(), 0, 0
            if not episode.is_over:
                over, questions = len(episode.step_errors), episode.calls["questions"]
                shown = episode.view().observation
                action = explore(model, how, shown, seed=self._seed, lane=self._lane, row=self._row)
                transition = episode.step(action)
                if not transition.info["unscored"]:
                    played.scored.append((shown, action, transition))
            self._row += 1
            played.errors.extend(episode.step_errors[over:])
            played = played._replace(questions=played.questions + episode.calls["questions"] - questions)
        return played

    def _begun(self) -> AgentEpisode:
        """The episode under way; a new one where there is none."""
        if self._episode is None or self._episode.is_over:
            key = (self._seed, self._lane, self._number, "query")
            query = self._queries[derive_seed(*key) % len(self._queries)]
            self._episode = AgentEpisode(self._context, query, self._lane, self._number)
            self._episode.begin()
            self._number += 1
        return self._episode


class _Frozen(NamedTuple):
    """A contextual bandit that is fitted."""

    name: str
    model: LinearBandit

    def frozen(self) -> BanditSource:
        """The policy that plays what was learned.

        Raises:
            ValueError: nothing was.
        """
        if not self.model.has_learned:
            raise ValueError(f"no step was scored; --fit-calls of {PULLS_SIDE_BY_SIDE} or more give it one")
        return BanditSource(self.name, self.model)


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

    def fit(self, learned: Bandit | BestFixed | _Frozen) -> Fit:
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


def _embedded(name: str, context: EpisodeContext, queries: Sequence[str]) -> NDArray[np.float32]:
    """The embeddings of the queries, (queries, D).

    Raises:
        RunStoppedError: one of them cannot be embedded.
    """
    embeddings = context.models.embed(queries)
    for query, embedding in zip(queries, embeddings, strict=True):
        if isinstance(embedding, OllamaError):
            raise RunStoppedError(f"{name} could not be fitted: {query!r:.60} was not embedded: {embedding}")
    return np.stack(embeddings)  # type: ignore[arg-type] # vectors all


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
