"""Fits policies on a mission's training queries, with a stated number of questions to the target.

What a fit comes to does not depend on how many jobs there are: a bandit's pulls go in rows of always as many,
which are chosen in their order and told in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from envs.episode import derive_seed
from evaluation.episodes import Ground, Player
from evaluation.jobs import Jobs
from evaluation.policies.bandits import Bandit, BestFixed
from evaluation.policies.policy import PolicySource
from records.errors import RunStoppedError
from records.failures import StepLimit

LANES = 16
"""Pulls of a bandit that are made side by side."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a policy is fitted on, and with how much."""

    ground: Ground
    """The mission."""
    queries: Sequence[str]
    """Its training queries."""
    calls: int
    """The most questions to the target."""
    max_unscored: float
    """The fit stops once more than this share of recent steps could not be scored."""


class Fit(ABC):
    """What all ways to fit share.

    Args:
        name: what the policy is called.
        terms: what it is fitted on.
        jobs: where plans run.
    """

    def __init__(self, name: str, terms: Terms, jobs: Jobs) -> None:
        self.name = name
        self.calls = 0
        """Questions asked so far."""
        self._ground = terms.ground
        self._queries = sorted(terms.queries, key=lambda query: derive_seed(terms.ground.seed, "fit", query))
        self._jobs = jobs
        self._limit = StepLimit(terms.max_unscored)
        self._names = [mutator.name for mutator in terms.ground.rules.mutators]
        self._sums: dict[int, float] = defaultdict(float)
        self._counts: Counter[int] = Counter()
        self._ended: Callable[[], None] = lambda: None

    def start(self, ended: Callable[[], None]) -> None:
        """Begin; the fit goes on by itself, and calls `ended` when it is done."""
        self._ended = ended
        self._go_on()

    def source(self) -> PolicySource:
        """The policy that was found, frozen.

        Raises:
            RunStoppedError: too little could be scored to find one.
        """
        try:
            return self._frozen()
        except ValueError as error:
            raise RunStoppedError(f"{self.name} could not be fitted: {error}") from error

    def result(self) -> dict[str, Any]:
        """What the fit found, as it stands in results.json."""
        action = getattr(self.source(), "action", None)
        return {
            "policy": self.name,
            "calls": self.calls,
            "means": {
                name: self._sums[arm] / self._counts[arm]
                for arm, name in enumerate(self._names)
                if self._counts[arm]
            },
            "chosen": None if action is None else self._names[action],
        }

    def _note(self, arm: int, value: float) -> None:
        self._sums[arm] += value
        self._counts[arm] += 1

    @abstractmethod
    def _frozen(self) -> PolicySource:
        """The policy found; ValueError where too little is known."""

    @abstractmethod
    def _go_on(self) -> None:
        """Play what comes next, or end."""


class BanditFit(Fit):
    """Fits a bandit pull by pull: a pull rewords a query as it stands and asks it, and pays 1 for success.

    The k-th pull of an arm on a query has the same seeds for every bandit, so what one has asked is known to
    the others.

    Args:
        name: what the policy is called.
        terms: what it is fitted on.
        jobs: where plans run.
        bandit: what learns.
    """

    def __init__(self, name: str, terms: Terms, jobs: Jobs, bandit: Bandit) -> None:
        super().__init__(name, terms, jobs)
        self._bandit = bandit
        self._left = terms.calls
        self._next_query = cycle(self._queries)
        self._pulls: Counter[tuple[str, int]] = Counter()

    def _frozen(self) -> PolicySource:
        return self._bandit.frozen()

    def _go_on(self) -> None:
        """One row: as many pulls as the budget allows, chosen in turn, side by side."""
        arms = [self._bandit.ask() for _ in range(min(LANES, self._left))]
        if not arms:
            self._ended()
            return
        players = [self._player(next(self._next_query), arm) for arm in arms]
        pulls = [partial(_pull, player, arm) for player, arm in zip(players, arms, strict=True)]
        self._jobs.together(pulls, lambda _pulled: self._tell(players, arms))

    def _player(self, query: str, arm: int) -> Player:
        number = self._pulls[query, arm]
        self._pulls[query, arm] += 1
        return Player(self._ground, query, number=number)

    def _tell(self, players: Sequence[Player], arms: Sequence[int]) -> None:
        for player, arm in zip(players, arms, strict=True):
            self.calls += player.calls["questions"]
            self._left -= 1  # a rewrite that fails asks nothing, and is paid for all the same: fits end
            self._limit.add(player.attempts)
            for transition in player.transitions:
                if not transition.info["unscored"]:
                    success = float(transition.info["success"])
                    self._bandit.tell(arm, success)
                    self._note(arm, success)
        self._go_on()


def _pull(player: Player, arm: int) -> None:
    """One step from the query as it stands; none where the episode could not begin."""
    player.begin()
    if not player.is_over:
        player.step(arm)


class BestFixedFit(Fit):
    """Plays each mutator alone in whole episodes, on the same queries, with equal budgets."""

    def __init__(self, name: str, terms: Terms, jobs: Jobs) -> None:
        super().__init__(name, terms, jobs)
        self._found = BestFixed(len(self._names))
        self._left = [terms.calls // len(self._names)] * len(self._names)
        self._begun = [0] * len(self._names)

    def _frozen(self) -> PolicySource:
        return self._found.frozen()

    def _go_on(self) -> None:
        """As many episodes of each mutator as its budget pays for, however long they turn out."""
        max_steps = self._ground.rules.max_steps
        paid = [(arm, left // max_steps) for arm, left in enumerate(self._left)]
        wave = [(arm, self._player(arm)) for arm, episodes in paid for _ in range(episodes)]
        if not wave:
            self._ended()
            return
        episodes = [partial(_episode, player, arm) for arm, player in wave]
        self._jobs.together(episodes, lambda _played: self._tell(wave))

    def _player(self, arm: int) -> Player:
        """The mutator's next episode."""
        number = self._begun[arm]
        self._begun[arm] += 1
        lap, place = divmod(number, len(self._queries))
        return Player(self._ground, self._queries[place], number=lap)

    def _tell(self, wave: Sequence[tuple[int, Player]]) -> None:
        for arm, player in wave:
            result = player.result(self.name)
            questions = result["calls"]["questions"]
            self.calls += questions
            self._left[arm] -= max(questions, 1)
            self._limit.add(player.attempts)
            if result["status"] == "scored":
                self._found.tell(arm, result["return"])
                self._note(arm, result["return"])
        self._go_on()


def _episode(player: Player, arm: int) -> None:
    """A whole episode of one mutator."""
    player.begin()
    while not player.is_over:
        player.step(arm)
