"""Texts reworded by mutators, and texts bred from texts: what evolution and optimization share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mutators.cleaning import clean
from mutators.mutator import Mutator
from mutators.system_prompts import (
    INSTRUCTION_CROSSOVERS,
    INSTRUCTION_MUTATORS,
    WrongAnswer,
    specialize_instructions,
)
from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Call, Completion
from search.chance import chance, seed_of

MAX_CHARS = 4_000
"""A longer text is not taken from a model: it ran on."""


@dataclass(frozen=True, kw_only=True)
class Rewriter:
    """The model that rewords."""

    model: str
    """As the server lists it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ollama's options; each call has a seed of its own beside them."""

    def call(self, mutator: Mutator, text: str, earlier: Sequence[str], seed: int) -> Call:
        """What asks the model for another wording of a text.

        Raises:
            MutatorError: the mutator's function raised, or returned no prompt.
        """
        prompt = mutator.prompt(text, earlier, seed)
        return Call(
            model=self.model,
            prompt=prompt.text,
            system=prompt.system,
            examples=prompt.examples,
            options={**self.options, **prompt.options, "seed": seed},
            think=prompt.think,
            role="mutator",
        )

    def reword(
        self,
        generate: Callable[[Call], Completion],
        mutator: Mutator,
        text: str,
        earlier: Sequence[str],
        seed: int,
    ) -> tuple[str, list[Completion]]:
        """Another wording of a text, empty where there is none, and the replies that it took."""
        if mutator.kind == "rule":
            return mutator.apply(text, earlier, seed), []
        reply = generate(self.call(mutator, text, earlier, seed))
        new = reworded(reply, text)
        if not new or mutator.then is None:
            return new, [reply]
        last, replies = self.reword(generate, mutator.then, new, (*earlier, text), seed)
        return last, [reply, *replies]


def reworded(reply: Completion, text: str) -> str:
    """The other wording of a text in a reply; empty where that failed, was cut, or has none."""
    return "" if reply.error or reply.truncated else clean(reply.text, text)


def raise_if_cancelled(reply: Completion) -> Completion:
    """The reply, unless the call failed because the search was stopped: there is no going on then.

    Raises:
        CallCancelledError: it did.
    """
    if isinstance(reply.error, CallCancelledError):
        raise CallCancelledError(str(reply.error))
    return reply


@dataclass(frozen=True, kw_only=True)
class Child:
    """A text, and how it was made."""

    text: str
    parents: tuple[str, ...]
    """One, or two where it was crossed; `text` equals the first where every rewording failed."""
    steps: tuple[str, ...] = ()
    """The operators' names, in order."""
    asked: int = 0
    """How many of them asked a model."""
    errors: tuple[str, ...] = ()
    """Why calls to that model failed, one each."""


@dataclass(frozen=True, kw_only=True)
class Breeder:
    """Makes a text from one or two of a population: tournament, crossover, mutation.

    A rewording that failed, was cut, or is no new text changes nothing. Equal arguments and replies
    make equal children: all chance is drawn from the child's own seed.

    Raises:
        ValueError: there is no mutator.
    """

    generate: Callable[[Call], Completion]
    """Sends a call, as `Dispatcher.generate` does: a failure stands in the reply's `error`."""
    rewriter: Rewriter
    mutators: Sequence[Mutator] = INSTRUCTION_MUTATORS
    """Operators on one text."""
    crossovers: Sequence[Mutator] = INSTRUCTION_CROSSOVERS
    """Operators on two; without any, no child has two parents."""
    crossover_rate: float = 0.8
    """The share of children made from two parents; the others are always mutated."""
    mutation_rate: float = 0.2
    """The share of crossed children that are mutated as well."""
    tournament_size: int = 3
    """A parent is the best of so many, drawn with replacement."""
    failures_shown: int = 0
    """The most failures of a parent that a model is shown to specialize it; 0: it never is."""

    def __post_init__(self) -> None:
        if not self.mutators:
            raise ValueError("no mutator; expected at least one")

    def child(
        self,
        texts: Sequence[str],
        fitnesses: Sequence[float],
        seed: int,
        failures: Mapping[str, Sequence[WrongAnswer]] | None = None,
    ) -> Child:
        """A child of a population.

        Args:
            texts: N texts, at least one.
            fitnesses: N numbers; of equals the first text wins.
            seed: of this child's chance.
            failures: what a model got wrong under each text, where that is known.

        Raises:
            CallCancelledError: the search was stopped.
            MutatorError: an operator of the user's raised.
        """
        rng = chance(seed, "parents")

        def winner() -> str:
            entrants = [rng.randrange(len(texts)) for _ in range(self.tournament_size)]
            return texts[max(entrants, key=lambda place: (fitnesses[place], -place))]

        one, other = winner(), winner()
        crossed = bool(self.crossovers) and one != other and rng.random() < self.crossover_rate
        shown = (failures or {}).get(one, ())
        steps = [rng.choice(self.crossovers)] if crossed else []
        if not crossed or rng.random() < self.mutation_rate:
            steps.append(self._mutator(shown, rng))
        return self._made((one, other) if crossed else (one,), steps, seed, shown)

    def mutation(self, text: str, seed: int, steps: int = 1) -> Child:
        """A text after so many mutators.

        Raises:
            CallCancelledError: the search was stopped.
            MutatorError: a mutator of the user's raised.
        """
        rng = chance(seed, "mutators")
        return self._made((text,), [self._mutator((), rng) for _ in range(steps)], seed, ())

    def _mutator(self, failures: Sequence[WrongAnswer], rng: Random) -> Mutator:
        """One of the mutators, among them the one that is shown failures, if there are some."""
        shown = rng.sample(failures, min(len(failures), self.failures_shown))
        return rng.choice([*self.mutators, *([specialize_instructions(shown)] if shown else [])])

    def _made(
        self,
        parents: tuple[str, ...],
        steps: Sequence[Mutator],
        seed: int,
        failures: Sequence[WrongAnswer],
    ) -> Child:
        text, errors = parents[0], []

        def send(call: Call) -> Completion:
            return raise_if_cancelled(self.generate(call))

        for place, mutator in enumerate(steps):
            step_seed = seed_of(seed, mutator.name, place)
            new, replies = self.rewriter.reword(send, mutator, text, parents[1:], step_seed)
            errors += [str(reply.error) for reply in replies if reply.error]
            # A text that quotes a problem that it is to be scored on is not taken.
            quotes = any(each.question in new and each.question not in text for each in failures)
            if new.strip() and len(new) <= MAX_CHARS and not quotes:
                text = new.strip()
        return Child(
            text=text,
            parents=parents,
            steps=tuple(mutator.name for mutator in steps),
            asked=sum(mutator.kind == "model" for mutator in steps),
            errors=tuple(errors),
        )
