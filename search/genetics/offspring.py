"""A generation's children on their way: drafted, made different from each other, tried; many at a time.

What becomes of a child depends on the replies alone, never on their order. Its place among its siblings
decides which of two equal drafts is changed, not which was there first: a child is tried as soon as its draft
is there, and becomes another if a sibling before it turns out to be the same. No call is lost then, for the
sibling needs its reply.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from search.chance import chance
from search.genetics.fitness import CallPlan, Evaluated, Trial
from search.genetics.genome import Genome
from search.genetics.variation import ChildSpec, Draft, Variation


@dataclass(frozen=True, kw_only=True)
class Child:
    """What became of a child."""

    spec: ChildSpec
    evaluated: Evaluated | None
    """None where it stayed equal to a genome that is known."""
    draft: Draft
    """What the steps of its spec came to."""


class Offspring:
    """The work on a generation's children, as plans that each take whatever is due.

    Args:
        specs: how the children are made.
        variation: makes their drafts, and changes one that is known already.
        known: the genomes of earlier generations, in a fixed order.
        trial: how a genome is tried.
        drafts_ahead: so many drafts are made before any of them is tried.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        variation: Variation,
        known: Iterable[Genome],
        trial: Callable[[Genome], Trial],
        drafts_ahead: int,
    ) -> None:
        self._specs, self._variation, self._make_trial = specs, variation, trial
        self._drafts_ahead = drafts_ahead
        self._known = dict.fromkeys(known)
        """Those that no later child may equal, in a fixed order."""
        self._begun = self._tried = 0
        self._drafts: dict[int, Draft] = {}
        self._settled: list[Genome | None] = []
        """What the first children are for good: all drafts before them are there. None: nothing new."""
        self._ready: list[int] = []
        """A heap: the children that are drafted and wait to be tried."""
        self._tried_early: dict[int, Trial] = {}
        """Finished trials of children that are not settled."""
        self._results: dict[int, Evaluated | None] = {}

    def plans(self) -> list[CallPlan[None]]:
        """As many plans as can ever be of use, to be played side by side."""
        return [self._take_what_is_due() for _ in self._specs]

    def children(self) -> list[Child]:
        """What became of all children, in their order, when all plans are through."""
        return [
            Child(spec=spec, evaluated=self._results[place], draft=self._drafts[place])
            for place, spec in enumerate(self._specs)
        ]

    def _take_what_is_due(self) -> CallPlan[None]:
        """Drafts and trials, one after another, while there are any."""
        while True:
            left = self._begun < len(self._specs)
            if left and (self._begun - self._tried < self._drafts_ahead or not self._ready):
                yield from self._draft(self._begun)
            elif self._ready:
                yield from self._try(heapq.heappop(self._ready))
            else:
                return

    def _draft(self, place: int) -> CallPlan[None]:
        self._begun += 1
        self._drafts[place] = yield from self._variation.draft(self._specs[place])
        self._settle()
        heapq.heappush(self._ready, place)
        for early in [other for other in self._tried_early if other < len(self._settled)]:
            self._close(early, self._tried_early.pop(early))

    def _settle(self) -> None:
        """Decide what the next children are for good, as far as the drafts are there without a gap."""
        while (place := len(self._settled)) in self._drafts:
            rng = chance(self._specs[place].seed, "changed")
            genome = self._variation.changed(self._drafts[place].genome, self._known, rng)
            self._settled.append(genome)
            if genome is not None:
                self._known[genome] = None

    def _genome(self, place: int) -> Genome | None:
        """What a child is as far as is known; None where nothing new was found for it."""
        return self._settled[place] if place < len(self._settled) else self._drafts[place].genome

    def _try(self, place: int) -> CallPlan[None]:
        """Try a child as what it is; it may become another on the way."""
        self._tried += 1
        trial: Trial | None = None
        while (genome := self._genome(place)) is not None:
            if trial is None or trial.genome != genome:
                trial = self._make_trial(genome)
            if trial.is_over:
                break
            yield from trial.go_on()
        if trial is None:
            self._results[place] = None
        elif place < len(self._settled):
            self._close(place, trial)
        else:
            self._tried_early[place] = trial

    def _close(self, place: int, trial: Trial) -> None:
        """The trial of a settled child is over: keep its result, or try the child again as another."""
        genome = self._genome(place)
        if genome is not None and genome != trial.genome:
            self._tried -= 1
            heapq.heappush(self._ready, place)
            return
        self._results[place] = trial.result() if genome is not None else None
