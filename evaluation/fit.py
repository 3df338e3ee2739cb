"""Fits policies on a mission's training queries, with a stated number of questions to the target.

A fit is the same whatever the number of jobs: what is asked at once is decided beforehand, and
learned from in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, compress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from envs.episode import derive_seed
from evaluation.episodes import AgentEpisode, EpisodeContext, ask_as_it_stands
from evaluation.policies import BestScorePolicy, OrderedPolicy, PolicySource, View
from ollama_utils.errors import OllamaError
from ollama_utils.parallel import iterate_parallel
from records.errors import RunStoppedError
from records.failures import FailureLimit
from records.terminal import write_stderr

ROUND = 16
"""Episodes that LinUCB plays before it learns from them."""
T = TypeVar("T")


Fit = tuple[PolicySource, dict[str, Any]]
"""A fitted policy, which learns no more, and what results.json holds of it: `policy`, its name;
`calls`, the questions that were asked; `means`, by mutator the mean return of an episode
(`best_fixed`), or the share of single steps that succeeded (`cascade`), or their mean reward
(`linucb`); `chosen`, the mutator that is played from now on, or None; `order` of a cascade.

With guard queries the first two are sums of both sides' means; an answer to one counts against it.
"""


class Fitting:
    """What a fit may use, and what it has used.

    Args:
        name: of the policy.
        context: the mission's.
        queries: the training queries.
        calls: the most questions to the target, failed attempts left out.
        jobs: the most episodes at once.
        max_unscored: the share of the latest steps that may be unscored.
        seed: of the chance of the policy's exploration.
    """

    def __init__(
        self,
        name: str,
        context: EpisodeContext,
        queries: Sequence[str],
        *,
        calls: int,
        jobs: int,
        max_unscored: float,
        seed: int,
    ) -> None:
        self.name, self.context, self.calls, self.seed = name, context, calls, seed
        self.mutators = [mutator.name for mutator in context.rules.mutators]
        ordered = sorted(queries, key=lambda query: derive_seed(context.seed, "fit", query))
        self.queries = self._in_turn(ordered)
        """In the order in which fits take them; guard queries and others in turn, if there are."""
        self.asked = 0
        """Questions that were asked."""
        self._looks: dict[str, tuple[float, str]] = {}
        """By query without an answer the reward and the label of the reply to it as it stands."""
        self._jobs = jobs
        self.limit = FailureLimit(max_unscored)

    def _in_turn(self, queries: Sequence[str]) -> list[str]:
        """The queries of both sides in turn, as long as there are of both."""
        guards = self.context.rules.guards
        sides = [[each for each in queries if (each in guards) == side] for side in (False, True)]
        pairs = chain.from_iterable(zip(*sides, strict=False))
        return list(dict.fromkeys([*pairs, *queries]))

    def mean(self, values: NDArray[np.float64], queries: Sequence[str]) -> NDArray[np.float64]:
        """The mean of values (..., queries); with guard queries the sum of both sides' means."""
        is_guard = np.array([query in self.context.rules.guards for query in queries])
        sides = [side for side in (~is_guard, is_guard) if side.any()]
        return np.asarray(sum(values[..., side].mean(axis=-1) for side in sides))

    def worth(self, queries: Sequence[str]) -> NDArray[np.float64]:
        """(queries,): the weights of a mean, to which both sides add as much, if there are two."""
        is_guard = np.array([query in self.context.rules.guards for query in queries])
        counts = np.where(is_guard, is_guard.sum(), (~is_guard).sum())
        return np.asarray(1 / np.maximum(counts, 1), np.float64)

    def pays(self, queries: Sequence[str]) -> NDArray[np.float64]:
        """(queries,): what an answer to each is worth."""
        guards, weight = self.context.rules.guards, self.context.models.mission.guard_weight
        return np.array([-weight if query in guards else 1.0 for query in queries])

    def play(
        self, play: Callable[[T], AgentEpisode], items: Sequence[T]
    ) -> Iterator[tuple[T, AgentEpisode]]:
        """Play an episode for each item, side by side; they come back in order."""
        episodes = iterate_parallel(play, items, self._jobs)
        for item, episode in zip(items, episodes, strict=True):
            self.asked += episode.calls["questions"]
            self.limit.add(episode.step_errors)
            yield item, episode

    def look(self) -> None:
        """Where the mission asks first: ask queries as they stand, and keep those without answer.

        As in a training all are asked, as long as the budget then pays for an episode of each
        mutator.

        Raises:
            RunStoppedError: too many could not be asked, or all.
        """
        if not self.context.rules.asks_first:
            return
        least = len(self.mutators) * self.context.rules.max_steps
        asked = self.queries[: max(1, min(self.calls // 2, self.calls - least))]
        known = 0
        for query, episode in self.play(partial(ask_as_it_stands, self.context), asked):
            known += episode.looked is not None
            if episode.looked and not episode.is_over:
                self._looks[query] = episode.looked
        self.limit.check()
        if not known:
            raise self.error("no query could be asked as it stands")
        self.queries, self.calls = self._in_turn([*self._looks]), self.calls - len(asked)

    def begun(self, query: str, number: int = 0) -> AgentEpisode:
        """An episode, for which it is known what the target says to the query as it stands."""
        episode = AgentEpisode(self.context, query, number=number)
        episode.begin(known=self._looks.get(query))
        return episode

    def play_alone(self, most_steps: int, pair: tuple[int, str]) -> AgentEpisode:
        """Play at most so many steps of an episode by one mutator, given with its query."""
        action, query = pair
        episode = self.begun(query)
        episode.play(lambda _view: action, most_steps)
        return episode

    def error(self, why: str) -> RunStoppedError:
        """What is raised where the fit cannot be made."""
        return RunStoppedError(f"{self.name} could not be fitted: {why}")

    def found(
        self,
        make: Callable[[int], Any],
        means: dict[str, float],
        *,
        rewords_original: bool = False,
        **more: object,
    ) -> Fit:
        """The fitted policy; `more` is the rest of what results.json holds of it."""
        source = PolicySource(name=self.name, make=make, rewords_original=rewords_original)
        about = {"policy": self.name, "calls": self.asked, "means": means, "chosen": None}
        return source, about | more


def fit_policy(kind: str, fitting: Fitting) -> Fit:
    """Fit a policy of a kind: `best_fixed`, `cascade` or `linucb`.

    Raises:
        RunStoppedError: too little could be scored, or a query cannot be embedded.
    """
    fits = {"best_fixed": _fit_best_fixed, "cascade": _fit_cascade, "linucb": _fit_linucb}
    fitting.look()
    stop = fitting.context.rules.stop
    is_alone = stop is not None and len(fitting.mutators) == 1
    if is_alone or not fitting.queries:
        name = fitting.mutators[stop or 0]
        why = "there is no other mutator" if is_alone else "no training query needs a rewording"
        write_stderr(f"{fitting.name}: {why}, so it plays {name}")
        return fitting.found(partial(OrderedPolicy, (stop or 0,)), {name: 0.0}, chosen=name)
    return fits[kind](fitting)


def _fit_cascade(fitting: Fitting) -> Fit:
    """Ask as many queries as the budget allows once with each mutator; then find the order."""
    stop = fitting.context.rules.stop
    actions = [action for action in range(len(fitting.mutators)) if action != stop]
    names = [fitting.mutators[action] for action in actions]
    queries = fitting.queries[: fitting.calls // len(names)]
    pairs = [(action, query) for query in queries for action in actions]
    played = fitting.play(partial(fitting.play_alone, 1), pairs)
    rows = [episode.result("") for _, episode in played]
    fitting.limit.check()
    answered = np.array([row["success"] for row in rows]).reshape(-1, len(names))
    scored = np.array([row["status"] == "scored" for row in rows]).reshape(-1, len(names))
    # Queries that were scored with each mutator: what failed must not count against one of them.
    whole = np.asarray(scored.all(axis=1))
    table = answered[whole].T
    if not table.size:
        raise fitting.error("no query was scored with each mutator")
    known = list(compress(queries, whole.tolist()))
    pays = fitting.pays(known)
    order = cascade_order(table, fitting.worth(known) * pays)
    in_turn = [actions[place] for place in order]
    if stop is not None and len(order) < len(names):
        in_turn.append(stop)
    return fitting.found(
        partial(OrderedPolicy, tuple(in_turn or actions[:1])),
        dict(zip(names, fitting.mean(table * pays, known).tolist(), strict=True)),
        rewords_original=True,
        order=[names[place] for place in order],
    )


def cascade_order(
    answered: NDArray[np.bool_], worth: NDArray[np.float64] | None = None
) -> list[int]:
    """The order in which most queries are answered early, found greedily.

    First comes the mutator that answers most queries, then the one that answers most of those that
    are left, and so on; those that answer nothing more follow by how much they answer. Of equals
    the first wins. Where answers to some queries do harm, it ends before what does more harm than
    good.

    Args:
        answered: (mutators, queries), whether the mutator alone gets the query answered.
        worth: (queries,), what each answer is worth [all the same].
    """
    order: list[int] = []
    worth = np.ones(answered.shape[1]) if worth is None else worth
    left = np.ones(answered.shape[1], bool)
    while len(order) < len(answered):
        gains = np.round((answered & left) @ worth, 12)  # equals are equal
        if worth.min() < 0 and np.delete(gains, order).max() <= 0:
            break
        if not gains.any():
            gains = np.round(answered @ worth, 12)
        gains[order] = -np.inf
        order.append(int(np.argmax(gains)))
        left &= ~answered[order[-1]]
    return order


def _paid(episode: AgentEpisode) -> int:
    """What an episode takes of a fit's budget: its scored steps, and 1 where it has none."""
    return max(len(episode.scored_steps()), 1)


def _fit_best_fixed(fitting: Fitting) -> Fit:
    """Play each mutator alone in whole episodes, on the same queries, with equal budgets."""
    names, queries, max_steps = fitting.mutators, fitting.queries, fitting.context.rules.max_steps
    left = [fitting.calls // len(names)] * len(names)
    begun = [0] * len(names)
    returns: list[dict[str, float]] = [{} for _ in names]
    while True:
        # As many episodes of each mutator as its budget pays for, however long they turn out.
        batch: list[tuple[int, str]] = []
        for action, budget in enumerate(left):
            new = queries[begun[action] :][: budget // max_steps]
            begun[action] += len(new)
            batch += [(action, query) for query in new]
        if not batch:
            break
        for (action, query), episode in fitting.play(partial(fitting.play_alone, max_steps), batch):
            left[action] -= _paid(episode)
            result = episode.result("")
            if result["status"] == "scored":
                returns[action][query] = result["return"]
    fitting.limit.check()
    if missing := [name for name, found in zip(names, returns, strict=True) if not found]:
        raise fitting.error(f"no episode of {', '.join(missing)} was scored")
    means = [float(fitting.mean(np.array([*each.values()]), [*each])) for each in returns]
    best = int(np.argmax(means))
    found = dict(zip(names, means, strict=True))
    return fitting.found(partial(OrderedPolicy, (best,)), found, chosen=names[best])


def _fit_linucb(fitting: Fitting) -> Fit:
    """Play whole episodes, 16 at a time, by a bandit that learns after each of these rounds."""
    from train.bandit import LinearBandit, credit, explore, rule_actions  # torch loads slowly

    rules, names = fitting.context.rules, fitting.mutators
    embeddings = _embedded(fitting)
    kinds = rule_actions(rules.mutators)
    model = LinearBandit(embeddings.shape[1], len(names), kinds, rules.stop)
    model.fit_components(embeddings)

    guards = rules.guards
    halves = [[q for q in fitting.queries if (q in guards) == side] for side in (False, True)]
    sides = [side for side in halves if side]

    def play(number: int) -> AgentEpisode:
        """An episode as in training, on a query that is drawn."""
        side = sides[number % len(sides)]
        place = derive_seed(fitting.seed, number, "query") % len(side)
        episode = fitting.begun(side[place], number)
        key = (fitting.seed, number, 0)

        def choose(view: View) -> int:
            return explore(model, "linucb", view.observation, key=key, pending=number % ROUND)

        episode.play(choose)
        return episode

    rewards: dict[str, list[float]] = {}
    left, begun = fitting.calls, 0
    while count := min(ROUND, left // rules.max_steps):
        observations, actions, earned = [], [], []
        for _, episode in fitting.play(play, range(begun, begun + count)):
            left -= _paid(episode)
            for seen, action, transition in episode.scored_steps():
                observations.append(seen)
                actions.append(action)
                earned.append(transition.reward + credit(transition.info))
                rewards.setdefault(names[action], []).append(transition.reward)
        begun += count
        if observations:
            model.learn(np.stack(observations), np.array(actions), np.array(earned))
    means = {name: float(np.mean(rewards[name])) for name in names if name in rewards}
    fitting.limit.check()
    if not model.has_learned:
        raise fitting.error("no step was scored")
    return fitting.found(partial(BestScorePolicy, model), means)


def _embedded(fitting: Fitting) -> NDArray[np.float32]:
    """The embeddings of the queries, (queries, D)."""
    embeddings = fitting.context.models.embed(fitting.queries)
    for query, embedding in zip(fitting.queries, embeddings, strict=True):
        if isinstance(embedding, OllamaError):
            raise fitting.error(f"{query!r:.60} was not embedded: {embedding}") from embedding
    return np.stack(embeddings)  # type: ignore[arg-type] # vectors all
