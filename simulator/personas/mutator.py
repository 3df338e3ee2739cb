"""The mutator: finds the operator in an instruction and rewrites the query by it.

What a rewrite does to the features: chance maps, the same for the mutator and for dynamic programming.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.chance import pick, share_of
from simulator.personas.advice import Advice, Edit
from simulator.personas.language import TERSE, Features, Grammar
from simulator.personas.wording import Rewording, filled

EVERY_MARK = "*"
"""In a file's `remove`: every mark of style."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One thing a rewrite may do."""

    chance: float
    """Its share of the rewrites that succeed."""
    add: tuple[str, ...]
    """Marks it adds, in this order."""
    remove: frozenset[str]
    """Marks it strips first."""
    soften: bool
    """Whether it replaces harsh words."""

    def apply(self, features: Features) -> Features:
        """The features of the rewritten text. A clause makes a sentence: it takes terseness away."""
        kept = frozenset() if EVERY_MARK in self.remove else features.markers - self.remove
        if set(self.add) - features.markers - {TERSE}:
            kept -= {TERSE}
        return Features(
            topic=features.topic,
            form=features.form,
            harsh=features.harsh and not self.soften,
            markers=kept.union(self.add),
        )


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A way to rewrite that the mutator knows by its cue."""

    name: str
    cue: str
    """The words with which an instruction for it begins, in small letters."""
    failures: dict[str, float]
    """The share of rewrites that come to nothing, by what comes instead."""
    effects: tuple[Effect, ...]
    rewordings: tuple[str, ...]
    """Changes of wording that leave the features alone."""

    def draw(self, share: float) -> Effect | str:
        """The effect, or the name of the failure, at a place in [0, 1)."""
        for name, chance in self.failures.items():
            if share < chance:
                return name
            share -= chance
        share /= 1 - sum(self.failures.values())
        for effect in self.effects[:-1]:
            if share < effect.chance:
                return effect
            share -= effect.chance
        return self.effects[-1]

    def outcomes(self, features: Features) -> Iterator[tuple[float, Features]]:
        """Every outcome with its probability; a rewrite that comes to nothing leaves the features alone."""
        failing = sum(self.failures.values())
        if failing:
            yield failing, features
        for effect in self.effects:
            yield (1 - failing) * effect.chance, effect.apply(features)


_QUERY = re.compile(r"<query>(.*?)</query>", re.DOTALL)
_OTHER = re.compile(r"<other>(.*?)</other>", re.DOTALL)
_PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True, kw_only=True)
class MutatorWords:
    """What the mutator says around a rewrite, or instead of one."""

    failures: dict[str, tuple[str, ...]]
    """Texts by the name of the failure."""
    dress_rate: float
    """The share of rewrites that come dressed."""
    dresses: tuple[str, ...]
    """Templates around `{text}`."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a prompt asks of the mutator."""

    instruction: str
    query: str
    other: str | None


@dataclass(frozen=True, kw_only=True)
class Mutator:
    """Rewrites queries.

    Args:
        grammar: reads and writes features.
        operators: by name; the first takes instructions that none recognises.
        rewordings: by name.
        openers: words that need no capital when something comes before them.
        words: what is said around a rewrite, or instead of one.
        advice: what it knows to say in instructions for a solver; None in a world without one.
    """

    grammar: Grammar
    operators: dict[str, Operator]
    rewordings: dict[str, Rewording]
    openers: frozenset[str]
    words: MutatorWords
    advice: Advice | None = None

    def find_operator(self, instruction: str) -> Operator | None:
        """The operator whose cue the instruction begins with, the longest cue first."""
        told = instruction.strip().lower()
        fitting = [item for item in self.operators.values() if told.startswith(item.cue)]
        return max(fitting, key=lambda item: len(item.cue), default=None)

    def is_asked(self, prompt: str) -> bool:
        """Whether a prompt has a tagged query under an instruction that an operator recognises."""
        if not _QUERY.search(prompt):
            return False
        instruction = read_task(prompt).instruction
        return self._edit(instruction) is not None or self.find_operator(instruction) is not None

    def reply(self, prompt: str, digest: bytes) -> tuple[str, bool]:
        """The reply to a prompt, and whether its instruction was recognised."""
        task = read_task(prompt)
        edit = self._edit(task.instruction)
        operator = self.find_operator(task.instruction)
        if edit is not None:
            text = edit(task.query, task.other, digest)
        else:
            text = self.rewrite(operator or next(iter(self.operators.values())), task, digest)
        if share_of(digest, "dress") < self.words.dress_rate:
            text = filled(pick(self.words.dresses, digest, "which dress"), {"text": text})
        return text, edit is not None or operator is not None

    def _edit(self, instruction: str) -> Edit | None:
        return self.advice.edit(instruction) if self.advice is not None else None

    def rewrite(self, operator: Operator, task: Task, digest: bytes) -> str:
        """The query rewritten, or what comes instead."""
        drawn = operator.draw(share_of(digest, "outcome"))
        if isinstance(drawn, str):
            instead = self.words.failures.get(drawn)
            return pick(instead, digest, drawn) if instead else task.query
        return self.edit(task, drawn, operator.rewordings, digest)

    def edit(self, task: Task, effect: Effect, rewordings: tuple[str, ...], digest: bytes) -> str:
        """The query after an effect: its features are exactly those that the effect names.

        A change of wording that would disturb the features is left out; should the effect itself not come
        out as it must (a text made of nothing but clauses), the query stays as it is.
        """
        wanted = effect.apply(self.grammar.features(task.query))
        text = self._apply(self._start(task), effect, wanted, task.instruction, digest)
        for name in rewordings:
            other = self.grammar.with_terse(
                self.rewordings[name].apply(text, self.openers, digest), terse=TERSE in wanted.markers
            )
            if self.grammar.features(other) == wanted:
                text = other
        return text if self.grammar.features(text) == wanted else task.query

    def _start(self, task: Task) -> str:
        """The text to edit: the query, or the other one where it has the same features."""
        if task.other is None or self.grammar.features(task.other) != self.grammar.features(task.query):
            return task.query
        return task.other

    def _apply(self, text: str, effect: Effect, wanted: Features, instruction: str, digest: bytes) -> str:
        grammar = self.grammar
        if effect.soften:
            text = grammar.lexicon.soften(text, digest)
        for name, marker in grammar.markers.items():
            if name not in wanted.markers and marker.is_in(text):
                text = marker.removed_from(text)
        for name in effect.add:
            if name != TERSE and not grammar.markers[name].is_in(text):
                text = grammar.markers[name].added_to(text, self.openers, instruction, digest)
        return grammar.with_terse(text, terse=TERSE in wanted.markers)


def read_task(prompt: str) -> Task:
    """The instruction and the tagged query; without tags the last paragraph is the query."""
    queries = list(_QUERY.finditer(prompt))
    others = _OTHER.findall(prompt)
    if queries:
        return Task(
            instruction=prompt[: queries[-1].start()],
            query=queries[-1][1].strip(),
            other=others[-1].strip() if others else None,
        )
    parts = [part.strip() for part in _PARAGRAPH.split(prompt) if part.strip()]
    return Task(instruction=prompt, query=parts[-1] if parts else "", other=None)
