"""Which policy a run saves: none that is worse than a fixed choice, as far as can be seen.

A part of the training queries is kept from learning. In the end four policies play them, from the
simplest on: to leave the reply as it is (`noop`), the best fixed mutator, a cascade of mutators,
and what was learned. Saved is the simplest whose mean return is within one standard error of the
best one's (Breiman et al. 1984), by the difference of the two on the same queries. Where guard
queries are learned from, each side counts by its own mean.

To find the fixed policies takes no call: what a mutator does to a query follows by regression from
the run's own steps. They are written as weights of a bandit, so whatever plays a learned policy
plays these, too: a cascade rewords what the last mutator wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.episode import label_of, remembered_reward
from envs.observation import Memory, memory_of_look, observation
from mutators.lexical import noop
from train.bandit import SHARED, BanditPolicy, LinearBandit, rule_actions

if TYPE_CHECKING:
    from envs.episode import Rules
    from envs.queries import Query

Floats = NDArray[np.float64]
LEARNED = "learned"
FEWEST_OF_A_SIDE = 10
"""With fewer groups of kept queries of a side, that get no answer as they stand, nothing can be
told: what was learned is saved."""
NEVER = -9.0
"""The weight of a mutator that a fixed policy does not play."""
AGAIN = -2.0
"""What is added to that of one that was tried, in a cascade."""
RANK = 0.01
"""By how much the next mutator of a cascade is behind."""
CHUNK = 4096
"""Steps that are learned from at once."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy that may be saved."""

    name: str
    order: tuple[int, ...] = ()
    """The actions that it plays in turn, where it is fixed."""
    repeats: bool = False
    """Whether it plays the one action again and again."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What came of the kept queries, by policy, from the simplest on; see `choice_of`."""

    returns: Mapping[str, Floats]
    """(groups,): the mean return of the group's queries; nan where calls failed."""
    is_guard: NDArray[np.bool_]
    """(groups,): whether these are guard queries."""

    def mean(self, returns: Floats) -> float:
        """The mean of a return or of a difference; with guard queries the sum of both sides'."""
        return sum(float(np.nanmean(returns[side])) for side in self._sides)

    def error(self, returns: Floats) -> float:
        """The standard error of that mean."""
        errors = [
            np.nanstd(returns[side], ddof=1) / math.sqrt(max(1, np.isfinite(returns[side]).sum()))
            for side in self._sides
        ]
        return math.hypot(*errors)

    @property
    def _sides(self) -> list[NDArray[np.bool_]]:
        return [side for side in (~self.is_guard, self.is_guard) if side.any()]

    @property
    def best(self) -> str:
        """The policy with the highest mean; of equals the simplest."""
        return max(self.returns, key=lambda name: self.mean(self.returns[name]))

    @property
    def chosen(self) -> str:
        """The simplest that is within one standard error of the best."""
        best = self.returns[self.best]
        behind = {name: best - returns for name, returns in self.returns.items()}
        return next(n for n, each in behind.items() if self.mean(each) <= self.error(each))

    def summary(self) -> dict[str, Any]:
        """What summary.json holds of it."""
        best = self.returns[self.best]
        return {
            "saved": self.chosen,
            "best_on_kept": self.best,
            "kept_groups": len(self.is_guard),
            "kept_returns": {
                name: {
                    "mean": round(self.mean(returns), 4),
                    "behind": round(self.mean(best - returns), 4),
                    "error": round(self.error(best - returns), 4),
                }
                for name, returns in self.returns.items()
            },
        }


def choice_of(
    returns: Mapping[str, Floats], queries: Sequence[Query], *, is_guarded: bool
) -> Choice | None:
    """What follows from the returns of kept queries; None where that is too little to tell.

    Queries of a group, which are alike, count as one. In a run that `is_guarded` both sides have to
    be among them.
    """
    keys = [(query.group, query.is_guard) for query in queries]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    place_of = np.array([places[key] for key in keys])
    means = {
        name: np.array([each[place_of == place].mean() for place in places.values()])
        for name, each in returns.items()
    }
    is_guard = np.array([guard for _, guard in places], np.bool_)
    sides = [~is_guard, is_guard] if is_guarded else [~is_guard]
    for side in sides:
        if any(np.isfinite(each[side]).sum() < FEWEST_OF_A_SIDE for each in means.values()):
            return None
    return Choice(returns=means, is_guard=is_guard)


class Situations:
    """The observations of a run's episodes, from what they remember.

    Args:
        rules: those of its lanes.
        embeddings: of every query.
        looks: by query the reward and the label of the reply to it as it stands.
    """

    def __init__(
        self,
        rules: Rules,
        embeddings: Mapping[str, NDArray[np.float32]],
        looks: Mapping[str, tuple[float, str]],
    ) -> None:
        self.rules, self.embeddings, self.looks = rules, embeddings, looks
        self.actions = {mutator.name: action for action, mutator in enumerate(rules.mutators)}

    def begin(self, query: str) -> Memory:
        """What is remembered when an episode begins."""
        look = self.looks.get(query)
        return memory_of_look(self.rules.stop, *look) if look else Memory()

    def observe(self, query: str, memory: Memory, steps: int) -> NDArray[np.float32]:
        """The observation after so many steps."""
        return observation(
            self.embeddings[query],
            len(self.actions),
            memory,
            steps / self.rules.max_steps,
            self.rules.harmful.get(query, 0.0),
        )

    def learned_from(self, lines: Iterable[Mapping[str, Any]]) -> LinearBandit:
        """A bandit that has learned from all steps of transitions.jsonl."""
        rules, size = self.rules, len(next(iter(self.embeddings.values())))
        model = LinearBandit(size, len(self.actions), rule_actions(rules.mutators), rules.stop)
        model.fit_components(np.stack([*self.embeddings.values()]))
        lanes: dict[int, Memory] = {}
        rows: list[tuple[NDArray[np.float32], int, float]] = []
        for line in lines:
            if line["unscored"] or line["outcome"] == "stopped":
                continue
            query, step = line["original_query"], line["step_number"]
            memory = lanes[line["lane"]] if step else self.begin(query)
            action, reward = self.actions[line["mutator"]], float(line["reward"])
            rows.append((self.observe(query, memory, step), action, reward))
            changed = line["adopted"] and line["mutated_query"] != line["query_before"]
            seen = remembered_reward(line)
            lanes[line["lane"]] = memory.after(action, seen, label_of(line), changed=changed)
            if len(rows) == CHUNK:
                _learn(model, rows)
        _learn(model, rows)
        return model


def _learn(model: LinearBandit, rows: list[tuple[NDArray[np.float32], int, float]]) -> None:
    """Learn from rows, which are taken away."""
    if rows:
        seen, taken, earned = zip(*rows, strict=True)
        model.learn(np.stack(seen), np.array(taken), np.array(earned, np.float64))
        rows.clear()


def candidates(
    model: LinearBandit,
    situations: Situations,
    queries: Sequence[str],
    *,
    step_cost: float,
    guard_weight: float,
) -> list[Candidate]:
    """The fixed policies, by what the model expects on the mean of the training queries.

    A cascade plays next what is expected to earn most on what is then left of the queries, and ends
    where another step costs more than it brings.
    """
    rules = situations.rules
    played = [action for action in range(model.num_actions) if action != rules.stop]
    is_guard = np.array([query in rules.guards for query in queries])
    pays = np.where(is_guard, -guard_weight, 1.0)
    memories = [situations.begin(query) for query in queries]
    # How much each query counts: equally on each side, and less the likelier it is answered.
    left = 1 / np.where(is_guard, max(1, is_guard.sum()), max(1, (~is_guard).sum()))
    order, best = list[int](), 0
    while len(order) < min(len(played), rules.max_steps):
        seen = [
            situations.observe(query, memory, len(order))
            for query, memory in zip(queries, memories, strict=True)
        ]
        expected = np.array([model.expect(each)[0] for each in seen])
        earned = {action: float(left @ expected[:, action]) for action in played}
        untried = {action: each for action, each in earned.items() if action not in order}
        action = max(untried, key=lambda each: untried[each])
        best = best if order else action
        if untried[action] <= 0 and (rules.stop is not None or order):
            break
        order.append(action)
        # An expected reward says how likely an answer is: it pays so much, less the step's cost.
        earned_back, none = expected[:, action] + step_cost, np.zeros(len(queries))
        answered = np.divide(earned_back, pays, out=none, where=pays != 0)
        left *= 1 - np.clip(answered, 0, 1)
        memories = [
            memory.after(action, -step_cost, "refused", changed=True) for memory in memories
        ]
    found = []
    if rules.stop is not None:
        found.append(Candidate(name=noop.name))
    elif noop in rules.mutators:
        asks = (rules.mutators.index(noop),)
        found.append(Candidate(name=noop.name, order=asks, repeats=True))
    if played:
        found.append(Candidate(name="best fixed", order=(best,), repeats=True))
        found.append(Candidate(name="cascade", order=tuple(order)))
    return found


def fixed_policy(
    candidate: Candidate, seen: spaces.Space[Any], num_actions: int, stop: int | None
) -> BanditPolicy:
    """A fixed policy of so many actions, as a bandit whose weights say so; `seen`: observations."""
    policy = BanditPolicy(seen, spaces.Discrete(num_actions), stop=stop)
    model = policy.model
    own = (len(model.means) - SHARED) // model.num_actions
    model.means.zero_()
    if not candidate.repeats:
        model.means[1:3] = AGAIN
    model.means[SHARED::own] = NEVER
    for rank, action in enumerate(candidate.order):
        model.means[SHARED + action * own] = 1 - RANK * rank
    model.solve()
    return policy
