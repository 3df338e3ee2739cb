"""System prompts with their records, which evolve while a flow answers queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mutators.system_prompts import WrongAnswer
from search.candidates import in_parallel
from search.chance import seed_of
from search.rewording import Breeder

FILL_ROUNDS = 4
"""A first population that is not full after so many rounds of mutations begins as it is."""
PRIOR_TRIES = 5.0
"""An edge is drawn towards 0 as by so many average tries: one lucky try is no record."""
FAILURES_KEPT = 20
"""Wrong replies under a prompt, the last ones."""


@dataclass(kw_only=True)
class Member:
    """A prompt and its record."""

    prompt: str
    tries: int = 0
    """How many rewards it had."""
    total: float = 0.0
    """Their sum."""
    gains: float = 0.0
    """The sum of how far they were above what was to be expected for the same query."""

    @property
    def fitness(self) -> float | None:
        """The mean reward; None before the first."""
        return self.total / self.tries if self.tries else None

    @property
    def edge(self) -> float:
        """The mean gain, drawn towards 0 while tries are few: what ranks go by.

        Queries differ in difficulty, so a reward says more beside the others for the same query.
        """
        return self.gains / (self.tries + PRIOR_TRIES)


class PromptPopulation:
    """System prompts with their records, no two equal; ranked by their edge.

    Args:
        prompts: the first ones.
        size: how many there are once it is full.
        elite_size: how many of the best a generation keeps.
        breeder: makes new prompts.
        seed: of all its chance.

    Raises:
        ValueError: no prompt, a blank one, or a size that does not fit.
    """

    def __init__(
        self,
        prompts: Sequence[str],
        *,
        size: int = 20,
        elite_size: int = 4,
        breeder: Breeder,
        seed: int = 0,
    ) -> None:
        self.prompts = list(dict.fromkeys(prompt.strip() for prompt in prompts))
        if not self.prompts or not all(self.prompts):
            raise ValueError(f"expected at least one prompt and no blank one, got {prompts!r:.80}")
        if len(self.prompts) > size or not 0 <= elite_size < size:
            raise ValueError(
                f"population_size is {size}, elite_size is {elite_size}; expected a larger "
                f"population than elite, and room for the {len(self.prompts)} prompts given"
            )
        self.generation = 0
        """How often it evolved."""
        self._size, self._elite_size, self._seed = size, elite_size, seed
        self._breeder, self._is_filled = breeder, False
        self._records: dict[str, Member] = {}
        self._all = Member(prompt="")
        self._failures: dict[str, list[WrongAnswer]] = {}

    @property
    def members(self) -> list[Member]:
        """The prompts with their records, the best first, those that were never tried last."""
        known = [self._records.get(prompt, Member(prompt=prompt)) for prompt in self.prompts]
        return sorted(known, key=lambda member: (member.tries == 0, -member.edge))

    def record(
        self, prompt: str, reward: float, others: float | None, failure: WrongAnswer | None = None
    ) -> None:
        """Add a reward to a prompt's record.

        Args:
            prompt: it need not be in the population any more.
            reward: any number.
            others: the mean reward of other candidates for the same query; None: there was none,
                and the mean of all rewards so far was to be expected.
            failure: a wrong reply, which may be shown to a mutator.
        """
        expected = (self._all.fitness or 0.0) if others is None else others
        for member in (self._records.setdefault(prompt, Member(prompt=prompt)), self._all):
            member.tries += 1
            member.total += reward
            member.gains += reward - expected
        if failure is not None:
            failures = [*self._failures.get(prompt, ()), failure]
            self._failures[prompt] = failures[-FAILURES_KEPT:]

    def fill(self, max_workers: int | None = 1) -> None:
        """Mutate the first prompts until there are enough; later calls do nothing."""
        for turn in range(0 if self._is_filled else FILL_ROUNDS):
            jobs = [
                (self.prompts[k % len(self.prompts)], seed_of(self._seed, "fill", turn, k))
                for k in range(self._size - len(self.prompts))
            ]
            made = in_parallel(lambda job: self._breeder.mutation(*job).text, jobs, max_workers)
            self.prompts = list(dict.fromkeys([*self.prompts, *made]))
        self._is_filled = True

    def evolve(self, max_workers: int | None = 1) -> None:
        """Keep the elite, and breed the others; where children are equal the next best stay."""
        self.generation += 1
        texts = [member.prompt for member in self.members]
        edges = [member.edge for member in self.members]
        seeds = [
            seed_of(self._seed, "child", self.generation, k)
            for k in range(self._size - self._elite_size)
        ]
        children = in_parallel(
            lambda seed: self._breeder.child(texts, edges, seed, self._failures).text,
            seeds,
            max_workers,
        )
        distinct = dict.fromkeys([*texts[: self._elite_size], *children, *texts])
        self.prompts = list(distinct)[: self._size]
