"""A population of system prompts that evolves by section; of constant size, and no prompt twice in it.

A prompt has the sections role, task, method, check and format. What it brought is kept by its text, and held
against what others brought for the same question.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mutators.mutator import Mutator
from mutators.system_prompts import INSTRUCTION_MUTATORS, combine_instructions
from scorers.json_replies import Model
from search.candidates import do_all, raise_if_cancelled
from search.genetics.selection import fittest
from search.rewording import Rewriter, reworded

SECTIONS = ("role", "task", "method", "check", "format")
"""In the order in which a prompt has them."""

_LABEL = re.compile(rf"({'|'.join(name.capitalize() for name in SECTIONS)}):[ ]?(.*)", re.DOTALL)
_INDENT = "  "

SECTION_TEXTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "role": (
            "You are a helpful assistant.",
            "You are a patient teacher who works things out before answering.",
            "You are a careful reviewer who looks at everything twice.",
            "You are a scientist who names what is given before drawing a conclusion.",
            "You are a quick expert who needs few words.",
        ),
        "task": (
            "Answer the question.",
            "Read the question to its end, say to yourself what is asked, and answer that.",
            "Solve the problem you are given.",
            "Find out what kind of question it is, and answer it as that kind needs.",
        ),
        "method": (
            "Answer at once.",
            "Think step by step.",
            "List what is given and what is asked, and go from the one to the other.",
            "Handle the items one at a time, in order.",
            "Break it into small parts, and solve each one.",
            "Think of a similar question that you can answer, and go the same way.",
        ),
        "check": (
            "Trust your first thought.",
            "Check your answer before you give it.",
            "Work it out a second way and compare.",
            "Check that every item of the question is in the answer.",
            "Ask yourself whether the answer is plausible.",
        ),
        "format": (
            "Give the answer as one word or number.",
            "End with a line that says 'Answer:' and the answer alone.",
            "Show your work, then give the answer on the last line.",
            "Be brief.",
        ),
    }
)
"""By section: what a mutation by rule puts there; nothing in it is about one task."""


@dataclass(frozen=True, kw_only=True)
class PromptSections:
    """One system prompt in parts; a part may be empty. White space around a part is dropped."""

    role: str = ""
    task: str = ""
    method: str = ""
    check: str = ""
    format: str = ""

    def __post_init__(self) -> None:
        for name in SECTIONS:
            object.__setattr__(self, name, getattr(self, name).strip())

    @classmethod
    def read(cls, prompt: str) -> PromptSections:
        """The sections of a whole prompt; what stands before the first label belongs to the task.

        `PromptSections.read(sections.text) == sections`.
        """
        lines: dict[str, list[str]] = {name: [] for name in SECTIONS}
        here = "task"
        labelled = False
        for line in prompt.split("\n"):
            if label := _LABEL.fullmatch(line):
                here, labelled = label[1].lower(), True
                lines[here].append(label[2])
            else:
                lines[here].append(line.removeprefix(_INDENT) if labelled else line)
        return cls(**{name: "\n".join(lines[name]) for name in SECTIONS})

    @property
    def text(self) -> str:
        """The whole prompt: each section behind its label, further lines of it indented.

        A prompt that has nothing but a task is that task, without a label.
        """
        if self._is_plain:
            return self.task
        return "\n".join(
            f"{name.capitalize()}: {getattr(self, name)}".replace("\n", "\n" + _INDENT)
            for name in SECTIONS
            if getattr(self, name)
        )

    @property
    def _is_plain(self) -> bool:
        others = any(getattr(self, name) for name in SECTIONS if name != "task")
        return not others and not any(_LABEL.fullmatch(line) for line in self.task.split("\n"))


PRIOR_TRIES = 5.0
"""Ranks take each record for as many average tries longer: one lucky try is no record."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A prompt of the population, and what is known of it."""

    sections: PromptSections
    fitness: float | None = None
    """The mean of its rewards; None: never tried. A child inherits none."""
    tries: int = 0
    """How many rewards it had."""
    edge: float = 0.0
    """How much more it brought than was to be expected, as a mean, drawn towards 0 while tries are few: what
    the ranks go by. Questions differ in difficulty, so a reward is best held against those of other prompts
    for the same question."""

    @property
    def prompt(self) -> str:
        """The whole text."""
        return self.sections.text


@dataclass(kw_only=True)
class Record:
    """The rewards of a prompt, summed up."""

    total: float = 0.0
    """The sum of its rewards."""
    expected: float = 0.0
    """The sum of what was to be expected, where that was told."""
    tries: int = 0
    alone: int = 0
    """Tries for which it was not."""

    def add(self, reward: float, expected: float | None) -> None:
        """Add a reward; `expected` is None where nothing was told of what others brought."""
        self.total += reward
        self.tries += 1
        self.expected += expected or 0.0
        self.alone += expected is None

    @property
    def mean(self) -> float | None:
        """The mean of the rewards; None before the first."""
        return self.total / self.tries if self.tries else None

    def edge(self, average: float) -> float:
        """See `Member.edge`; `average` was to be expected where nothing was told."""
        return (self.total - self.expected - self.alone * average) / (self.tries + PRIOR_TRIES)


Reword = Callable[[str, str, Sequence[str], int], str | None]
"""`(section, text, others, seed) -> text`: another text for a section, given that of other prompts; None
where there is none. Called on any thread; the same arguments give the same text."""

TOURNAMENT_SIZE = 3
"""So many members are drawn, and the best of them is a parent."""
MAX_SECTION_CHARS = 800
"""A model's longer text for a section is not used: prompts must not grow for ever."""

_ATTEMPTS = 8
_FILL_ATTEMPTS = 100
_FILLING, _BREEDING = range(2)


class PromptPopulation:
    """Prompts, their rewards, and generations.

    Prompts are ranked by their `edge`. A generation keeps the elites as they are, at its head, the best
    first. Each other place goes to a child:
    a crossover of two parents (each section from either, evenly) or else a copy of one, and then, it may
    be, with one section mutated. A parent wins a tournament of three; a prompt that was never tried counts
    there as average, and is no elite while enough others were tried. A copy that stays unchanged survives
    with its record. What is already in the generation is drawn anew, and where nothing new comes of it the
    best of the old ones stays. Records are kept by text, so a prompt that comes back is known.

    Args:
        prompts: the first ones, whole texts or sections; the rest up to `size` are mutations of them by rule.
        size: how many prompts there are, always.
        elite_size: how many of the best stay unchanged.
        mutation_rate: the chance that a section of a child is mutated.
        crossover_rate: the chance that a child has two parents.
        seed: of all its chance.
        reword: mutates a section by model, in `model_share` of the mutations; None: all by rule.
        model_share: see there.
        pools: by section, what a mutation by rule puts there; it may leave out any section but the task.

    Raises:
        ValueError: a size or rate out of range, a prompt that is blank or there twice, or too few texts to
            fill it.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each thing a user can set
        self,
        prompts: Sequence[str | PromptSections],
        *,
        size: int = 10,
        elite_size: int = 2,
        mutation_rate: float = 0.3,
        crossover_rate: float = 0.5,
        seed: int = 0,
        reword: Reword | None = None,
        model_share: float = 0.5,
        pools: Mapping[str, Sequence[str]] = SECTION_TEXTS,
    ) -> None:
        _check_sizes(size, elite_size)
        rates = {"mutation_rate": mutation_rate, "crossover_rate": crossover_rate, "model_share": model_share}
        _check_rates(rates)
        self.size = size
        self.elite_size = elite_size
        self.generation = 0
        """How often it evolved."""
        self._mutation_rate = mutation_rate
        self._crossover_rate = crossover_rate
        self._seed = seed
        self._reword = reword
        self._model_share = model_share if reword else 0.0
        self._pools = pools
        self._records: dict[str, Record] = {}
        self._all = Record()
        self._sections = self._filled(_read(prompts, size))

    @property
    def prompts(self) -> list[str]:
        """The whole texts, in order."""
        return [sections.text for sections in self._sections]

    @property
    def members(self) -> list[Member]:
        """The prompts with their records, in order."""
        return [self._member(sections) for sections in self._sections]

    @property
    def elites(self) -> list[Member]:
        """Those that the next generation keeps, the best first."""
        return self.ranked[: self.elite_size]

    @property
    def best(self) -> Member:
        """The best by its record, as the elites are ranked."""
        return self.ranked[0]

    def record(self, prompt: str) -> tuple[float | None, int]:
        """The mean of a prompt's rewards, and how many there were, whether it is still here or not."""
        record = self._records.get(prompt, Record())
        return record.mean, record.tries

    def tell(self, prompt: str, reward: float, expected: float | None = None) -> None:
        """Add a reward to a prompt's record.

        Args:
            prompt: the whole text; it need not be here any more.
            reward: any finite number.
            expected: what other prompts brought for the same question; None: the mean of all rewards.

        Raises:
            ValueError: a number is not finite.
        """
        if not math.isfinite(reward) or not math.isfinite(expected or 0.0):
            raise ValueError(f"a prompt's reward must be finite, got {reward!r}, expected {expected!r}")
        for record in (self._records.setdefault(prompt, Record()), self._all):
            record.add(reward, expected)

    def evolve(self, max_workers: int | None = 1) -> None:
        """Go on to the next generation.

        Args:
            max_workers: the most children that are made at once, where a model rewords; None: all.
        """
        self.generation += 1
        kept = {member.prompt: member.sections for member in self.elites}
        drafts = do_all(lambda place: self._child(place, 0), range(self.size - len(kept)), max_workers)
        for place, draft in enumerate(drafts):
            child = draft
            for attempt in range(1, _ATTEMPTS):
                if child.text and child.text not in kept:
                    break
                child = self._child(place, attempt)
            if not child.text or child.text in kept:
                child = next(m.sections for m in self.ranked if m.prompt not in kept)
            kept[child.text] = child
        self._sections = list(kept.values())

    def mutated(
        self, sections: PromptSections, seed: int, model_share: float | None = None
    ) -> PromptSections:
        """The prompt with another text in one of its sections; itself where there is none to be had.

        Args:
            sections: the prompt.
            seed: draws the section and its text.
            model_share: the chance that the model rewords the section; None: the population's.
        """
        chance = np.random.default_rng(seed)
        share = self._model_share if model_share is None else model_share
        if self._reword is not None and chance.random() < share:
            section = str(chance.choice([name for name in SECTIONS if getattr(sections, name)]))
            text = self._reworded(self._reword, section, sections, int(chance.integers(2**31)))
            if text:
                return replace(sections, **{section: text})
        changes = [
            (name, text)
            for name in chance.permutation(list(SECTIONS)).tolist()
            if (text := self._from_pool(name, getattr(sections, name), chance)) is not None
        ]
        return replace(sections, **dict(changes[:1]))

    def _reworded(self, reword: Reword, section: str, sections: PromptSections, seed: int) -> str | None:
        """What the model makes of a section, where that is a new text of a fair length."""
        old: str = getattr(sections, section)
        others = dict.fromkeys(getattr(each, section) for each in self._sections)
        text = reword(section, old, [other for other in others if other and other != old], seed)
        return text if text and text.strip() != old and len(text) <= MAX_SECTION_CHARS else None

    def _from_pool(self, section: str, old: str, chance: np.random.Generator) -> str | None:
        """Another text for a section, or none at all (the task is never left out)."""
        texts = [*self._pools.get(section, ()), *([] if section == "task" else [""])]
        new = [text for text in texts if text != old]
        return new[chance.integers(len(new))] if new else None

    def _child(self, place: int, attempt: int) -> PromptSections:
        """A child for a place in this generation; later attempts ask no model."""
        chance = np.random.default_rng((self._seed, _BREEDING, self.generation, place, attempt))
        child = self._parent(chance)
        if chance.random() < self._crossover_rate:
            other = self._parent(chance)
            takes = chance.random(len(SECTIONS)) < 0.5  # noqa: PLR2004 - each section from either, evenly
            taken = [name for name, take in zip(SECTIONS, takes, strict=True) if take]
            child = replace(child, **{name: getattr(other, name) for name in taken})
        if chance.random() < self._mutation_rate and child.text:
            child = self.mutated(child, int(chance.integers(2**31)), 0.0 if attempt else None)
        return child

    def _parent(self, chance: np.random.Generator) -> PromptSections:
        """The winner of a tournament."""
        entrants = chance.choice(self.size, size=min(TOURNAMENT_SIZE, self.size), replace=False)
        return self._sections[fittest(entrants.tolist(), [member.edge for member in self.members])]

    @property
    def ranked(self) -> list[Member]:
        """All members, the best first; those that were never tried come last."""
        return sorted(self.members, key=lambda member: (member.tries == 0, -member.edge))

    def _member(self, sections: PromptSections) -> Member:
        record = self._records.get(sections.text, Record())
        edge = record.edge(self._all.mean or 0.0)
        return Member(sections=sections, fitness=record.mean, tries=record.tries, edge=edge)

    def _filled(self, given: list[PromptSections]) -> list[PromptSections]:
        """The given prompts, and mutations by rule of these and of each other, up to the size."""
        chance = np.random.default_rng((self._seed, _FILLING))
        filled = {sections.text: sections for sections in given}
        for _ in range(_FILL_ATTEMPTS * self.size):
            if len(filled) == self.size:
                return list(filled.values())
            parent = list(filled.values())[chance.integers(len(filled))]
            child = self.mutated(parent, int(chance.integers(2**31)), 0.0)
            filled.setdefault(child.text, child)
        raise ValueError(
            f"expected {self.size} distinct prompts, could make only {len(filled)} of the {len(given)} "
            "given: give more prompts, or more texts in `pools`"
        )


def _read(prompts: Sequence[str | PromptSections], size: int) -> list[PromptSections]:
    """The sections of the given prompts, which are checked."""
    read = [PromptSections.read(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    texts = [sections.text for sections in read]
    if not texts:
        raise ValueError("a population needs at least one prompt to begin with, got none")
    if not all(texts):
        raise ValueError(f"prompt {texts.index('')} of the population is blank; leave it out")
    if len(texts) > size:
        raise ValueError(
            f"got {len(texts)} prompts, more prompts than size={size}: give fewer, or a larger size"
        )
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise ValueError(f"the population has the prompt {twice[0]!r:.80} twice; give each once")
    return read


def _check_sizes(size: int, elite_size: int) -> None:
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size!r}")
    if not 0 <= elite_size <= size:
        raise ValueError(f"elite_size must be from 0 to the size {size}, got {elite_size!r}")


def _check_rates(rates: Mapping[str, float]) -> None:
    for name, rate in rates.items():
        if not 0 <= rate <= 1:
            raise ValueError(f"{name} must be from 0 to 1, got {rate!r}")


REWORDING_TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True)
class SectionRewording:
    """Rewords a section; stands as `reword` of a `PromptPopulation`."""

    llm: Model
    """Answers the calls."""
    model: str
    """The mutator, as the server lists it."""
    mutators: Sequence[Mutator] = (*INSTRUCTION_MUTATORS, combine_instructions)
    """One of them is drawn by the seed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """More of Ollama's options; `temperature` and `seed` are set here."""

    def __call__(self, section: str, text: str, others: Sequence[str], seed: int) -> str | None:  # noqa: ARG002 - any section
        """The section reworded; None where the call failed, or its reply was cut or empty.

        Raises:
            CallCancelledError: the run was stopped.
            MutatorError: a mutator of the user's raised.
        """
        mutator = random.Random(seed).choice(self.mutators)
        if mutator.kind == "rule":
            return mutator.apply(text, others, seed) or None
        options = {**self.options, "temperature": REWORDING_TEMPERATURE}
        rewriter = Rewriter(model=self.model, options=options)
        completion = raise_if_cancelled(self.llm.generate(rewriter.call(mutator, text, others, seed)))
        return reworded(completion, text) or None
