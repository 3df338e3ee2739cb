"""Texts reworded by mutators, and populations bred by them: the genetics of all searches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from mutators.cleaning import clean
from mutators.mutator import Mutator
from mutators.system_prompts import (
    INSTRUCTION_CROSSOVERS,
    INSTRUCTION_MUTATORS,
    WrongAnswer,
    specialize_instructions,
)
from ollama_utils.errors import CallCancelledError
from ollama_utils.parallel import in_parallel
from ollama_utils.types import Call, Completion
from search.chance import chance, seed_of
from search.evolution_config import MOST_STEPS, EvolutionConfig

MAX_CHARS = 4_000
"""A longer text is not taken from a model: it ran on."""
PRIOR_TRIES = 5.0
"""An edge is drawn towards 0 as by so many average tries: one lucky try is no record."""
FAILURES_KEPT = 20
"""Wrong replies under a prompt, the last ones."""
FAILURE_CHARS = 400
"""Of a wrong reply a mutator sees the end: its answer stands there."""
Generate = Callable[[Call], Completion]
"""Sends a call, as `Dispatcher.generate` does: a failure stands in the reply's `error`."""
Ranked = tuple[str, float, Sequence[WrongAnswer]]
"""A text with its fitness, and what a model got wrong under it."""


def reword(
    generate: Generate,
    template: Call,
    mutator: Mutator,
    text: str,
    earlier: Sequence[str] = (),
    seed: int = 0,
) -> tuple[str, list[Completion]]:
    """Another wording of a text, empty where there is none, and the replies that it took.

    `template` names the model that rewords, with its options; `earlier` are other texts, which the
    operator may use; the seed is that of the call and of the operator's chance.

    Raises:
        MutatorError: the mutator's function raised, or returned no prompt.
    """
    if mutator.kind == "rule":
        return mutator.apply(text, earlier, seed), []
    prompt = mutator.prompt(text, earlier, seed)
    reply = generate(
        replace(
            template,
            prompt=prompt.text,
            system=prompt.system,
            examples=prompt.examples,
            options={**template.options, **prompt.options, "seed": seed},
            think=prompt.think,
            role="mutator",
        )
    )
    is_whole = not (reply.error or reply.truncated or reply.filtered)
    new = clean(reply.text, text) if is_whole else ""
    if not new or mutator.then is None:
        return new, [reply]
    last, replies = reword(generate, template, mutator.then, new, (*earlier, text), seed)
    return last, [reply, *replies]


def raise_if_cancelled(reply: Completion) -> Completion:
    """The reply; raises CallCancelledError where the call failed as the search was stopped."""
    if isinstance(reply.error, CallCancelledError):
        raise CallCancelledError(str(reply.error))
    return reply


@dataclass(frozen=True, kw_only=True)
class Child:
    """A text, and how it was made; it is its parent's where every rewording failed."""

    text: str
    parents: tuple[str, ...] = ()
    steps: tuple[Mutator, ...] = ()
    """The operators, in order."""
    errors: tuple[str, ...] = ()
    """Why calls to the model that rewords failed, one each."""


@dataclass(frozen=True, kw_only=True)
class Breeder:
    """Makes the texts of a generation: tournament, crossover, mutation.

    A rewording that failed, was cut off, or is no new text changes nothing. All chance is drawn
    from the child's own seed, so equal arguments and replies make equal children.

    Raises:
        ValueError: there is no mutator.
    """

    generate: Generate
    template: Call
    """Names the model that rewords, with its options."""
    seeds: Sequence[str]
    """The texts to begin with."""
    rules: EvolutionConfig
    """Its seed, rates, size of a tournament and number of failures that are shown count."""
    mutators: Sequence[Mutator] = INSTRUCTION_MUTATORS
    """Operators on one text."""
    crossovers: Sequence[Mutator] = INSTRUCTION_CROSSOVERS
    """Operators on two; without any, no child has two parents."""

    def __post_init__(self) -> None:
        if not self.mutators:
            raise ValueError("no mutator; expected at least one")

    def breed(self, generation: int, index: int, population: Sequence[Ranked]) -> Child:
        """The child of this index in a generation.

        The first generation, 0, has the seeds, then seeds after one to three mutators, for few
        texts are one rewording away from a seed. Later ones are bred from the population; of equals
        in a tournament the first wins.

        Raises:
            CallCancelledError: the search was stopped.
            MutatorError: an operator of the user's raised.
        """
        seed = seed_of(self.rules.seed, "birth", generation, index)
        rng = chance(seed, "parents")
        if generation == 0:
            text = self.seeds[index % len(self.seeds)]
            count = 1 + index % MOST_STEPS if index >= len(self.seeds) else 0
            return self._make((text,), [self._mutator((), rng) for _ in range(count)], seed, ())

        def winner() -> Ranked:
            entrants = [rng.randrange(len(population)) for _ in range(self.rules.tournament_size)]
            return population[max(entrants, key=lambda each: (population[each][1], -each))]

        (one, _, failures), (other, *_) = winner(), winner()
        can_cross = bool(self.crossovers) and one != other
        crossed = can_cross and rng.random() < self.rules.crossover_rate
        steps = [rng.choice(self.crossovers)] if crossed else []
        if not crossed or rng.random() < self.rules.mutation_rate:
            steps.append(self._mutator(failures, rng))
        return self._make((one, other) if crossed else (one,), steps, seed, failures)

    def _mutator(self, failures: Sequence[WrongAnswer], rng: Random) -> Mutator:
        """One of the mutators, among them the one that is shown failures, if there are some."""
        shown = rng.sample(failures, min(len(failures), self.rules.failures_shown))
        return rng.choice([*self.mutators, *([specialize_instructions(shown)] if shown else [])])

    def _make(
        self,
        parents: tuple[str, ...],
        steps: Sequence[Mutator],
        seed: int,
        failures: Sequence[WrongAnswer],
    ) -> Child:
        text, errors = parents[0], []
        for index, mutator in enumerate(steps):
            key = seed_of(seed, mutator.name, index)
            new, replies = reword(self.generate, self.template, mutator, text, parents[1:], key)
            errors += [str(raise_if_cancelled(each).error) for each in replies if each.error]
            # A text that quotes a problem that it is to be scored on is not taken.
            quotes = any(each.question in new and each.question not in text for each in failures)
            if new.strip() and len(new) <= MAX_CHARS and not quotes:
                text = new.strip()
        ancestors = parents if steps else ()
        return Child(text=text, parents=ancestors, steps=tuple(steps), errors=tuple(errors))


@dataclass(kw_only=True)
class Member:
    """A prompt and its record: how many rewards it had, and their sum."""

    prompt: str
    tries: int = 0
    total: float = 0.0
    gains: float = 0.0
    """The sum of how far they were above what was to be expected for the same query."""
    failures: deque[WrongAnswer] = field(default_factory=lambda: deque(maxlen=FAILURES_KEPT))

    @property
    def fitness(self) -> float | None:
        """The mean reward; None before the first."""
        return self.total / self.tries if self.tries else None

    @property
    def edge(self) -> float:
        """The mean gain, drawn towards 0 while tries are few: members are ranked by it.

        Queries differ in difficulty, so a reward says more beside the others for the same query.
        """
        return self.gains / (self.tries + PRIOR_TRIES)


class PromptPopulation:
    """System prompts with their records, no two equal, which evolve while they are in use.

    Raises ValueError if there is no seed prompt or a blank one, or a size does not fit.
    """

    def __init__(self, breeder: Breeder, *, size: int, elite_size: int) -> None:
        self.prompts = list(breeder.seeds)
        if not self.prompts or not all(map(str.strip, self.prompts)):
            raise ValueError(f"expected a prompt and no blank one, got {self.prompts!r:.80}")
        if len(self.prompts) > size or not 0 <= elite_size < size:
            raise ValueError(
                f"population_size is {size}, elite_size is {elite_size}; expected a larger "
                f"population than elite, and room for the {len(self.prompts)} prompts given"
            )
        self.generation = -1
        """How often it evolved; -1 before the first population is made."""
        self._breeder, self._size, self._elite_size = breeder, size, elite_size
        self._records: dict[str, Member] = {}
        self._all = Member(prompt="")

    @property
    def members(self) -> list[Member]:
        """The prompts with their records, the best first, those that were never tried last."""
        known = [self._records.get(prompt, Member(prompt=prompt)) for prompt in self.prompts]
        return sorted(known, key=lambda member: (member.tries == 0, -member.edge))

    def record(
        self, prompt: str, reward: float, others: float | None, failure: WrongAnswer | None = None
    ) -> None:
        """Add a reward to a prompt's record, even if it is not in the population any more.

        `others` is the mean reward of other candidates for the same query; without any, the mean of
        all rewards so far was to be expected. `failure` is a wrong reply, for the mutators.
        """
        expected = (self._all.fitness or 0.0) if others is None else others
        own = self._records.setdefault(prompt, Member(prompt=prompt))
        for member in (own, self._all):
            member.tries += 1
            member.total += reward
            member.gains += reward - expected
        if failure is not None:
            own.failures.append(failure)

    def fill(self, max_workers: int | None = 1) -> None:
        """Make the first population; later calls do nothing."""
        if self.generation < 0:
            self.evolve(max_workers)

    def evolve(self, max_workers: int | None = 1) -> None:
        """Keep the elite, and breed the others; where children are equal the next best stay."""
        generation, members = self.generation + 1, self.members
        elites = self._elite_size if generation else 0
        ranked = [(each.prompt, each.edge, tuple(each.failures)) for each in members]
        children = in_parallel(
            lambda index: self._breeder.breed(generation, index, ranked).text,
            range(self._size - elites),
            max_workers,
        )
        texts = [each.prompt for each in members]
        self.prompts = list(dict.fromkeys([*texts[:elites], *children, *texts]))[: self._size]
        self.generation = generation
