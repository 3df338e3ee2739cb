"""Fits policies on a mission's training queries, with a stated number of questions to the target.

A fit is the same whatever the number of jobs: what is asked at once is decided beforehand, and
learned from in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.episode import Transition, derive_seed
from evaluation.episodes import AgentEpisode, EpisodeContext
from evaluation.policies import OrderedPolicy, PolicySource
from ollama_utils.errors import OllamaError
from ollama_utils.parallel import iterate_parallel
from records.errors import RunStoppedError
from records.failures import FailureLimit

if TYPE_CHECKING:
    from train.bandit import LinearBandit

ROUND = 16
"""Episodes that LinUCB plays before it learns from them."""
Explored = tuple[NDArray[np.float32], int, Transition]
"""Observation before a step, its action and what it gave."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted policy, which learns no more."""

    source: PolicySource
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
        found = {"policy": self.source.name, "calls": self.calls, "means": self.means}
        found["chosen"] = self.chosen
        if self.order:
            found["order"] = self.order
        return found


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
    seed: int
    """Of the chance of the policy's exploration."""

    @property
    def mutators(self) -> list[str]:
        """Their names."""
        return [mutator.name for mutator in self.context.rules.mutators]

    @cached_property
    def ordered(self) -> list[str]:
        """The queries in the order in which fits take them."""
        seed = self.context.seed
        return sorted(self.queries, key=lambda query: derive_seed(seed, "fit", query))

    def error(self, why: str) -> RunStoppedError:
        """What is raised where the fit cannot be made."""
        return RunStoppedError(f"{self.name} could not be fitted: {why}")


def fit_policy(kind: str, fitting: Fitting) -> Fit:
    """Fit a policy of a kind: `best_fixed`, `cascade` or `linucb`.

    Raises:
        RunStoppedError: too little could be scored, or a query cannot be embedded.
    """
    fits = {"best_fixed": _fit_best_fixed, "cascade": _fit_cascade, "linucb": _fit_linucb}
    return fits[kind](fitting)


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
    played = []
    for episode in iterate_parallel(pull, pairs, fitting.jobs):
        limit.add(episode.step_errors)
        played.append(episode.result(fitting.name))
    limit.check()
    shape = (-1, len(names))
    answered = np.array([row["success"] for row in played]).reshape(shape)
    # Queries that were scored with each mutator: what failed must not count against one of them.
    scored = np.array([row["status"] == "scored" for row in played]).reshape(shape)
    is_complete = scored.all(axis=1)
    if not is_complete.any():
        raise fitting.error("no query was scored with each mutator")
    table = answered[is_complete].T
    order = cascade_order(table)
    return Fit(
        source=OrderedPolicy(name=fitting.name, order=tuple(order), rewords_original=True),
        calls=sum(row["calls"]["questions"] for row in played),
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
        batch: list[tuple[int, str]] = []
        for action, budget in enumerate(left):
            first = begun[action]
            begun[action] = min(first + budget // context.rules.max_steps, len(queries))
            batch += [(action, query) for query in queries[first : begun[action]]]
        if not batch:
            break
        played = iterate_parallel(play, batch, fitting.jobs)
        for (action, _), episode in zip(batch, played, strict=True):
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
        source=OrderedPolicy(name=fitting.name, order=(best,)),
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


def _fit_linucb(fitting: Fitting) -> Fit:
    """Play whole episodes, 16 at a time, by a bandit that learns after each of these rounds."""
    from evaluation.trained_policy import BanditSource  # torch takes long to import
    from train.bandit import LinearBandit, credit, rule_actions

    names, rules = fitting.mutators, fitting.context.rules
    embeddings = _embedded(fitting)
    model = LinearBandit(embeddings.shape[1], len(names), rule_actions(rules.mutators))
    model.fit_components(embeddings)
    limit = FailureLimit(fitting.max_unscored)
    rewards: dict[str, list[float]] = {}
    left, calls, begun = fitting.calls, 0, 0
    while count := min(ROUND, left // rules.max_steps):
        scored: list[Explored] = []
        play = partial(_explore, fitting, model)
        for episode, explored in iterate_parallel(play, range(begun, begun + count), fitting.jobs):
            questions = episode.calls["questions"]
            calls += questions
            left -= max(questions, 1)
            limit.add(episode.step_errors)
            scored += explored
        begun += count
        if scored:
            observations, actions, transitions = zip(*scored, strict=True)
            earned = [each.reward + credit(each.info) for each in transitions]
            model.learn(np.stack(observations), np.array(actions), np.array(earned))
        for _, action, transition in scored:
            rewards.setdefault(names[action], []).append(transition.reward)
    limit.check()
    if not model.has_learned:
        raise fitting.error("no step was scored")
    means = {name: float(np.mean(rewards[name])) for name in names if name in rewards}
    return Fit(source=BanditSource(fitting.name, model), calls=calls, means=means)


def _explore(
    fitting: Fitting, model: LinearBandit, number: int
) -> tuple[AgentEpisode, list[Explored]]:
    """Play an episode as training does, on a query that is drawn; and its scored steps."""
    from train.bandit import explore

    queries, seed = fitting.ordered, fitting.seed
    query = queries[derive_seed(seed, number, "query") % len(queries)]
    episode = AgentEpisode(fitting.context, query, number=number)
    episode.begin()
    explored = []
    for row in range(fitting.context.rules.max_steps):
        if episode.is_over:
            break
        seen = episode.view().observation
        action = explore(model, "linucb", seen, seed=seed, lane=number, row=row)
        transition = episode.step(action)
        if not transition.info["unscored"]:
            explored.append((seen, action, transition))
    return episode, explored


def _embedded(fitting: Fitting) -> NDArray[np.float32]:
    """The embeddings of the queries, (queries, D)."""
    queries = fitting.ordered
    embeddings = fitting.context.models.embed(queries)
    for query, embedding in zip(queries, embeddings, strict=True):
        if isinstance(embedding, OllamaError):
            raise fitting.error(f"{query!r:.60} was not embedded: {embedding}") from embedding
    return np.stack(embeddings)  # type: ignore[arg-type] # vectors all
