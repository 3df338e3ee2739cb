"""Fits policies on a mission's training queries, with a stated number of questions to the target.

A fit is the same whatever the number of jobs: what is asked at once is decided beforehand, and
learned from in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.episode import Transition, derive_seed
from evaluation.episodes import AgentEpisode, EpisodeContext
from evaluation.policies import CascadePolicy, FixedPolicy, PolicySource
from ollama_utils.errors import OllamaError
from ollama_utils.parallel import iterate_parallel
from records.errors import RunStoppedError
from records.failures import FailureLimit

if TYPE_CHECKING:
    from train.bandit import LinearBandit

LANES = 16
"""Episodes that LinUCB plays side by side."""
STEPS_OF_A_LANE = 4
"""Steps that each of them takes before it learns from them."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted policy."""

    source: PolicySource
    """The policy; it learns no more."""
    calls: int
    """Questions that were asked."""
    means: dict[str, float]
    """By mutator the mean return of an episode (`best_fixed`), or the share of single steps that
    succeeded (`cascade`), or their mean reward (`linucb`)."""
    chosen: str | None = None
    """The mutator that is played from now on, where it is one."""
    order: list[str] = field(default_factory=list)
    """That of a cascade."""

    def result(self) -> dict[str, Any]:
        """What results.json holds of it."""
        order = {"order": self.order} if self.order else {}
        names = {"policy": self.source.name, "calls": self.calls, "means": self.means}
        return {**names, "chosen": self.chosen, **order}


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What a fit may use."""

    name: str
    """Of the policy."""
    context: EpisodeContext
    queries: Sequence[str]
    """The training queries."""
    calls: int
    """The most questions to the target, failed attempts left out."""
    jobs: int
    """The most episodes at once."""
    max_unscored: float
    """The share of the latest steps that may be unscored."""

    @property
    def mutators(self) -> list[str]:
        """Their names."""
        return [mutator.name for mutator in self.context.rules.mutators]

    @property
    def ordered(self) -> list[str]:
        """The queries in the order in which fits take them."""
        seed = self.context.seed
        return sorted(self.queries, key=lambda query: derive_seed(seed, "fit", query))

    def error(self, why: str) -> RunStoppedError:
        """What is raised where the fit cannot be made."""
        return RunStoppedError(f"{self.name} could not be fitted: {why}")


def fit_policy(kind: str, fitting: Fitting, *, seed: int) -> Fit:
    """Fit a policy of a kind: `best_fixed`, `cascade` or `linucb`; `seed` is of all its chance.

    Raises:
        RunStoppedError: too little could be scored, or a query cannot be embedded.
    """
    if kind == "linucb":
        return _fit_linucb(fitting, seed)
    return _fit_best_fixed(fitting) if kind == "best_fixed" else _fit_cascade(fitting)


def cascade_order(answered: NDArray[np.bool_]) -> list[int]:
    """The order in which most queries are answered early, found greedily.

    First comes the mutator that answers most queries, then the one that answers most of those that
    are left, and so on; those that answer nothing more follow by how much they answer. Of equals
    the first wins.

    Args:
        answered: (mutators, queries), whether the mutator alone gets the query answered.
    """
    order: list[int] = []
    left = np.ones(answered.shape[1], bool)
    while len(order) < len(answered):
        gains = (answered & left).sum(axis=1)
        if not gains.any():
            gains = answered.sum(axis=1)
        gains[order] = -1
        order.append(int(np.argmax(gains)))
        left &= ~answered[order[-1]]
    return order


def _fit_cascade(fitting: Fitting) -> Fit:
    """Ask as many queries as the budget allows once with each mutator; then find the order."""
    names = fitting.mutators
    queries = fitting.ordered[: fitting.calls // len(names)]
    pairs = [(action, query) for query in queries for action in range(len(names))]
    pull = partial(_play_alone, fitting.context, 1)
    limit = FailureLimit(fitting.max_unscored)
    answered, scored = [], []
    calls = 0
    for episode in iterate_parallel(pull, pairs, fitting.jobs):
        limit.add(episode.step_errors)
        calls += episode.calls["questions"]
        result = episode.result(fitting.name)
        answered.append(result["success"])
        scored.append(result["status"] == "scored")
    limit.check()
    # Queries that were scored with each mutator: what failed must not count against one of them.
    is_complete = np.array(scored).reshape(-1, len(names)).all(axis=1)
    if not is_complete.any():
        raise fitting.error("no query was scored with each mutator")
    table = np.array(answered).reshape(-1, len(names))[is_complete].T
    order = cascade_order(table)
    return Fit(
        source=CascadePolicy(name=fitting.name, order=tuple(order)),
        calls=calls,
        means=dict(zip(names, table.mean(axis=1).tolist(), strict=True)),
        order=[names[action] for action in order],
    )


def _fit_best_fixed(fitting: Fitting) -> Fit:
    """Play each mutator alone in whole episodes, on the same queries, with equal budgets."""
    names, context, queries = fitting.mutators, fitting.context, fitting.ordered
    left = [fitting.calls // len(names)] * len(names)
    returns: list[list[float]] = [[] for _ in names]
    begun, calls = [0] * len(names), 0
    limit = FailureLimit(fitting.max_unscored)

    play = partial(_play_alone, context, context.rules.max_steps)
    while True:
        # As many episodes of each mutator as its budget pays for, however long they turn out.
        row: list[tuple[int, str]] = []
        for action, budget in enumerate(left):
            first = begun[action]
            begun[action] = min(first + budget // context.rules.max_steps, len(queries))
            row += [(action, query) for query in queries[first : begun[action]]]
        if not row:
            break
        for (action, _), episode in zip(
            row, iterate_parallel(play, row, fitting.jobs), strict=True
        ):
            questions = episode.calls["questions"]
            calls += questions
            left[action] -= max(questions, 1)
            limit.add(episode.step_errors)
            result = episode.result(fitting.name)
            if result["status"] == "scored":
                returns[action].append(result["return"])
    limit.check()
    if missing := [name for name, found in zip(names, returns, strict=True) if not found]:
        raise fitting.error(f"no episode of {', '.join(missing)} was scored")
    means = [float(np.mean(found)) for found in returns]
    best = int(np.argmax(means))
    return Fit(
        source=FixedPolicy(name=fitting.name, action=best),
        calls=calls,
        means=dict(zip(names, means, strict=True)),
        chosen=names[best],
    )


def _play_alone(context: EpisodeContext, most_steps: int, pair: tuple[int, str]) -> AgentEpisode:
    """Play at most so many steps of an episode by one mutator, given with its query."""
    action, query = pair
    episode = AgentEpisode(context, query)
    episode.begin()
    for _ in range(most_steps):
        if not episode.is_over:
            episode.step(action)
    return episode


def _fit_linucb(fitting: Fitting, seed: int) -> Fit:
    """Play whole episodes on 16 lanes, learning every few steps as in training."""
    from evaluation.trained_policy import BanditSource  # torch takes long to import
    from train.bandit import LinearBandit, credit, rule_actions

    names, context, queries = fitting.mutators, fitting.context, fitting.ordered
    embeddings = _embedded(fitting, queries)
    model = LinearBandit(embeddings.shape[1], len(names), rule_actions(context.rules.mutators))
    model.fit_components(embeddings)
    lanes = [_Lane(lane, context, queries, seed) for lane in range(LANES)]
    limit = FailureLimit(fitting.max_unscored)
    rewards: dict[str, list[float]] = {}
    left, calls = fitting.calls, 0
    while steps := min(STEPS_OF_A_LANE, left // LANES):
        left -= steps * LANES
        play = partial(_Lane.play, model=model, steps=steps)
        played = list(iterate_parallel(play, lanes, fitting.jobs))
        limit.add(chain.from_iterable(each.errors for each in played))
        calls += sum(each.questions for each in played)
        if scored := list(chain.from_iterable(each.scored for each in played)):
            observations, actions, transitions = zip(*scored, strict=True)
            earned = [each.reward + credit(each.info) for each in transitions]
            model.learn(np.stack(observations), np.array(actions), np.array(earned))
        for _, action, transition in scored:
            rewards.setdefault(names[action], []).append(transition.reward)
    limit.check()
    if not model.has_learned:
        raise fitting.error(f"no step was scored; --fit-calls of {LANES} or more give it one")
    means = {name: float(np.mean(rewards[name])) for name in names if name in rewards}
    return Fit(source=BanditSource(fitting.name, model), calls=calls, means=means)


class _Played(NamedTuple):
    """What a lane played before the bandit learned."""

    scored: list[tuple[NDArray[np.float32], int, Transition]]
    """Observation before it, action and transition of each step that was scored."""
    errors: list[str]
    """For each step that is over, or the beginning of an episode, why it is unscored, or ""."""
    questions: int


class _Lane:
    """The episodes of a lane, one after another, on queries drawn as training draws them."""

    def __init__(
        self, lane: int, context: EpisodeContext, queries: Sequence[str], seed: int
    ) -> None:
        self._lane, self._context, self._queries, self._seed = lane, context, queries, seed
        self._row = self._number = 0
        self._episode: AgentEpisode | None = None

    def play(self, *, model: LinearBandit, steps: int) -> _Played:
        """Play so many steps; an episode that cannot begin counts as one."""
        from train.bandit import explore

        scored, errors, questions = [], [], 0
        for _ in range(steps):
            episode = self._current()
            over, before = 0, episode.calls["questions"]
            if not episode.is_over:
                over = len(episode.step_errors)
                seen = episode.view().observation
                keys = {"seed": self._seed, "lane": self._lane, "row": self._row}
                action = explore(model, "linucb", seen, **keys)
                transition = episode.step(action)
                if not transition.info["unscored"]:
                    scored.append((seen, action, transition))
            self._row += 1
            errors += episode.step_errors[over:]
            questions += episode.calls["questions"] - before
        return _Played(scored, errors, questions)

    def _current(self) -> AgentEpisode:
        """The episode under way; a new one where there is none."""
        if self._episode is None or self._episode.is_over:
            key = (self._seed, self._lane, self._number, "query")
            query = self._queries[derive_seed(*key) % len(self._queries)]
            self._episode = AgentEpisode(self._context, query, self._lane, self._number)
            self._episode.begin()
            self._number += 1
        return self._episode


def _embedded(fitting: Fitting, queries: Sequence[str]) -> NDArray[np.float32]:
    """The embeddings of the queries, (queries, D)."""
    embeddings = fitting.context.models.embed(queries)
    for query, embedding in zip(queries, embeddings, strict=True):
        if isinstance(embedding, OllamaError):
            raise fitting.error(f"{query!r:.60} was not embedded: {embedding}") from embedding
    return np.stack(embeddings)  # type: ignore[arg-type] # vectors all
