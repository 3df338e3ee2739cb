"""The children of a generation on their way: drafted, told apart, tried; several at a time, in any order.

What becomes of a child depends on the replies alone. Its place among its siblings decides which of two equal
drafts is changed, not which was there first: a child is tried as soon as its draft is there, and becomes
another if a sibling before it turns out to be the same. Nothing asked is lost then: the sibling needs it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from search.genetics.chance import chance
from search.genetics.genome import Genome
from search.genetics.plans import CallPlan
from search.genetics.trial import Evaluated, Trial
from search.genetics.variation import Birth, Draft, Variation


@dataclass(frozen=True, kw_only=True)
class Child:
    """What became of a birth."""

    birth: Birth
    evaluated: Evaluated | None
    """None where it stayed equal to a genome that is known."""
    draft: Draft
    """What the steps of the birth came to."""


class Brood:
    """The drafts of siblings, and the genomes that they become.

    Args:
        births: of the siblings.
        variation: changes a draft that is known already.
        known: the genomes of earlier generations, in a fixed order.
    """

    def __init__(self, births: Sequence[Birth], variation: Variation, known: Iterable[Genome]) -> None:
        self._births, self._variation = births, variation
        self._taken = dict.fromkeys(known)
        self._drafts: dict[int, Genome] = {}
        self._settled: list[Genome | None] = []

    def drafted(self, place: int, genome: Genome) -> None:
        """A draft is there."""
        self._drafts[place] = genome
        while (next_one := len(self._settled)) in self._drafts:
            rng = chance(self._births[next_one].seed, "changed")
            new = self._variation.changed(self._drafts[next_one], self._taken, rng)
            self._settled.append(new)
            if new is not None:
                self._taken[new] = None

    def is_settled(self, place: int) -> bool:
        """Whether all drafts before it are there, and so it stays what it is."""
        return place < len(self._settled)

    def genome(self, place: int) -> Genome | None:
        """What it is as far as is known; None where nothing new was found for it."""
        return self._settled[place] if self.is_settled(place) else self._drafts[place]


class Nursery:
    """The work on a generation's children, for lanes that take whatever is due.

    Args:
        births: of the children.
        variation: makes their drafts.
        known: the genomes of earlier generations, in a fixed order.
        trial: how a genome is tried.
        drafts_ahead: so many drafts are made before any of them is tried.
    """

    def __init__(
        self,
        births: Sequence[Birth],
        variation: Variation,
        known: Iterable[Genome],
        trial: Callable[[Genome], Trial],
        drafts_ahead: int,
    ) -> None:
        self._births, self._variation, self._make_trial = births, variation, trial
        self._brood = Brood(births, variation, known)
        self._drafts_ahead = drafts_ahead
        self._begun = self._tried = 0
        self._ready: list[int] = []
        self._parked: dict[int, Trial] = {}
        self._drafts: dict[int, Draft] = {}
        self._results: dict[int, Evaluated | None] = {}

    def lanes(self) -> list[CallPlan[None]]:
        """As many plans as can ever be of use, for `play_plans`."""
        return [self._lane() for _ in self._births]

    def children(self) -> list[Child]:
        """What became of all births, in their order, when all lanes are through."""
        return [
            Child(birth=birth, evaluated=self._results[place], draft=self._drafts[place])
            for place, birth in enumerate(self._births)
        ]

    def _lane(self) -> CallPlan[None]:
        """Drafts and trials, one after another, while there are any."""
        while True:
            left = self._begun < len(self._births)
            if left and (self._begun - self._tried < self._drafts_ahead or not self._ready):
                yield from self._draft(self._begun)
            elif self._ready:
                yield from self._try(heapq.heappop(self._ready))
            else:
                return

    def _draft(self, place: int) -> CallPlan[None]:
        self._begun += 1
        draft = yield from self._variation.draft(self._births[place])
        self._drafts[place] = draft
        self._brood.drafted(place, draft.genome)
        heapq.heappush(self._ready, place)
        for parked in [other for other in self._parked if self._brood.is_settled(other)]:
            self._close(parked, self._parked.pop(parked))

    def _try(self, place: int) -> CallPlan[None]:
        """Try a child as what it is; it may become another on the way."""
        self._tried += 1
        trial: Trial | None = None
        while (genome := self._brood.genome(place)) is not None:
            if trial is None or trial.genome != genome:
                trial = self._make_trial(genome)
            if trial.is_over:
                break
            yield from trial.go_on()
        if trial is None:
            self._results[place] = None
        elif self._brood.is_settled(place):
            self._close(place, trial)
        else:
            self._parked[place] = trial

    def _close(self, place: int, trial: Trial) -> None:
        """A settled child's trial is over: keep what it came to, or begin anew as another."""
        genome = self._brood.genome(place)
        if genome is not None and genome != trial.genome:
            self._tried -= 1
            heapq.heappush(self._ready, place)
            return
        self._results[place] = trial.result() if genome is not None else None
