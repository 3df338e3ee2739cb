"""How a child differs from its parents: reworded by a model, or changed by rule.

The operators on instructions are mutators (`mutators/system_prompts.py`); those on examples stand here. One
mutator is made for each child anew: it adds what the problems call for that the child's parent got wrong. A
model that fails, or is cut, or answers with nothing new, is replaced by a rule: a child is never lost to a
server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from random import Random

from mutators.mutator import Mutator
from mutators.system_prompts import WrongAnswer, specialize_instructions
from search.chance import chance, seed_of
from search.genetics.fitness import CallPlan, ScoredCall, asked_twice
from search.genetics.genome import Example, Genome
from search.rewording import Rewriter, reworded

MAX_CHARS = 4_000
"""Longer instructions are not taken from a model: it ran on."""
SPECIALIZE = "specialize_instructions"
"""The step that shows the model what the first parent got wrong."""
_TRIES = 12
"""How often a genome that is known already is changed by rule."""


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How a child is made, decided before anything is asked."""

    parents: tuple[Genome, ...]
    """One, or two where a step joins them."""
    steps: tuple[str, ...] = ()
    """The operators, in order; none gives the first parent itself."""
    seed: int = 0
    """Of every choice that is made on the way."""
    failures: tuple[WrongAnswer, ...] = ()
    """What the first parent got wrong; empty where that is not known, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A child before it is made different from all others."""

    genome: Genome
    asked: int
    """How many steps the model was asked for."""
    failed: int
    """How many of these a rule took because the model could not be asked."""
    error: str = ""
    """Why the last of these could not be asked; "" where all could."""


class Variation:
    """The operators of a search.

    Args:
        mutators: of one text's instructions.
        crossovers: of two; the other stands in `earlier[0]`.
        examples: what may be shown as worked examples.
        max_examples: the most in a genome.
        failures_shown: the most failures that the model is shown to specialize a prompt; 0: it never does.
        rewriter: the model of the mutators that ask one.

    Raises:
        ValueError: two operators have one name, or there is no mutator.
    """

    def __init__(
        self,
        *,
        mutators: tuple[Mutator, ...],
        crossovers: tuple[Mutator, ...],
        rewriter: Rewriter,
        examples: tuple[Example, ...] = (),
        max_examples: int = 0,
        failures_shown: int = 0,
    ) -> None:
        self._failures_shown = failures_shown
        self._examples, self._max_examples, self._rewriter = examples, max_examples, rewriter
        by_example: dict[str, Callable[[Genome, Random], Genome]] = (
            {"add_example": self._add, "drop_example": self._drop, "swap_example": self._swap}
            if examples and max_examples
            else {}
        )
        if not mutators:
            raise ValueError("no mutator of instructions; expected at least one")
        by_failure = (SPECIALIZE,) if failures_shown else ()
        names = [*(mutator.name for mutator in (*mutators, *crossovers)), *by_failure, *by_example]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"operator {name!r} is named twice; name each one once")
        self._mutators = {mutator.name: mutator for mutator in (*mutators, *crossovers)}
        self._by_example = by_example
        self.mutations = (*(mutator.name for mutator in mutators), *by_failure, *by_example)
        """The names of the steps that change one genome."""
        self.crossings = tuple(mutator.name for mutator in crossovers)
        """The names of the steps that join two."""

    def draft(self, spec: ChildSpec) -> CallPlan[Draft]:
        """The draft of a child, after the steps of its spec."""
        genome, asked, errors = spec.parents[0], 0, list[str]()
        for place, step in enumerate(spec.steps):
            rng = chance(spec.seed, step, place)
            if step in self._by_example:
                genome = self._by_example[step](genome, rng)
                continue
            other = spec.parents[1] if step in self.crossings else None
            if other is not None:
                genome = replace(genome, examples=self._joined(genome, other, rng))
            seed = seed_of(spec.seed, step, place, "told")
            shown = self._shown(spec.failures, rng) if step == SPECIALIZE else ()
            mutator = specialize_instructions(shown) if step == SPECIALIZE else self._mutators[step]
            text, error = yield from self._text(mutator, genome, other, seed)
            if any(failure.question in text and failure.question not in genome.prompt for failure in shown):
                text = ""  # it would be scored on a problem that it quotes
            asked += mutator.kind == "model"
            errors += [error] if error else []
            if text:
                genome = replace(genome, instructions=text)
            else:
                genome = self._by_rule(genome, [parent for parent in spec.parents if parent != genome], rng)
        return Draft(genome=genome, asked=asked, failed=len(errors), error=errors[-1] if errors else "")

    def changed(self, genome: Genome, known: Collection[Genome], rng: Random) -> Genome | None:
        """The genome where it is new; else one made from it by rule that is, or None after twelve tries.

        Args:
            genome: to start from.
            known: in an order that is always the same, for one of them may lend its words.
            rng: the only source of chance.
        """
        others: list[Genome] | None = None
        for _ in range(_TRIES):
            if genome not in known:
                return genome
            others = list(known) if others is None else others
            genome = self._by_rule(genome, others, rng)
        return genome if genome not in known else None

    def _text(
        self, mutator: Mutator, genome: Genome, other: Genome | None, seed: int
    ) -> CallPlan[tuple[str, str]]:
        """New instructions, empty where there are none, and why the model could not be asked, else empty."""
        earlier = () if other is None else (other.instructions,)
        if mutator.kind == "rule":
            return _if_new(mutator.apply(genome.instructions, earlier, seed), genome), ""
        call = self._rewriter.call(mutator, genome.instructions, earlier, seed)
        (answer,) = yield from asked_twice([ScoredCall(call)])
        reply = answer.completion
        if reply.error is not None:
            return "", str(reply.error) or type(reply.error).__name__
        return _if_new(reworded(reply, genome.instructions), genome), ""

    def _shown(self, failures: Sequence[WrongAnswer], rng: Random) -> list[WrongAnswer]:
        """Some of the failures, in their order."""
        count = min(self._failures_shown, len(failures))
        return [failures[place] for place in sorted(rng.sample(range(len(failures)), count))]

    def _by_rule(self, genome: Genome, others: list[Genome], rng: Random) -> Genome:
        """The genome after a rule that changes it, tried in an order drawn by chance."""
        names = [name for name, mutator in self._mutators.items() if mutator.kind == "rule"]
        names += self._by_example
        rng.shuffle(names)
        for name in names:
            if name in self._by_example:
                after = self._by_example[name](genome, rng)
            elif name in self.crossings and not others:
                continue
            else:
                earlier = (rng.choice(others).instructions,) if name in self.crossings else ()
                text = self._mutators[name].apply(genome.instructions, earlier, rng.randrange(2**31))
                after = replace(genome, instructions=_if_new(text, genome) or genome.instructions)
            if after != genome:
                return after
        return genome

    def _joined(self, genome: Genome, other: Genome, rng: Random) -> tuple[Example, ...]:
        """Some of the examples of two parents."""
        both = dict.fromkeys((*genome.examples, *other.examples))
        kept = [example for example in both if rng.random() < 0.5]  # noqa: PLR2004 - a fair coin
        return tuple(kept[: self._max_examples])

    def _add(self, genome: Genome, rng: Random) -> Genome:
        """One more example; where there is room for none, another in the place of one."""
        left = [example for example in self._examples if example not in genome.examples]
        if not left:
            return genome
        if len(genome.examples) >= self._max_examples:
            return self._swap(genome, rng)
        return replace(genome, examples=(*genome.examples, rng.choice(left)))

    def _drop(self, genome: Genome, rng: Random) -> Genome:
        if not genome.examples:
            return genome
        place = rng.randrange(len(genome.examples))
        return replace(genome, examples=genome.examples[:place] + genome.examples[place + 1 :])

    def _swap(self, genome: Genome, rng: Random) -> Genome:
        left = [example for example in self._examples if example not in genome.examples]
        if not left or not genome.examples:
            return genome
        place = rng.randrange(len(genome.examples))
        shown = (*genome.examples[:place], rng.choice(left), *genome.examples[place + 1 :])
        return replace(genome, examples=shown)


def _if_new(text: str, genome: Genome) -> str:
    """The text where it can be new instructions, else nothing."""
    text = text.strip()
    return text if text != genome.instructions and len(text) <= MAX_CHARS else ""
