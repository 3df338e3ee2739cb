"""The mutator: finds the operator that an instruction asks for, and rewrites the query by it.

What an operator does to a query's features is a chance map, which the mutator draws from and
`benchmarks/optimum.py` computes with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from simulator.chance import pick, share_of
from simulator.fences import fence
from simulator.personas.advice import Advice, Edit
from simulator.personas.language import TERSE, Features, Grammar
from simulator.personas.tables import Flag, Share, Table, Text, Texts, wrong
from simulator.personas.wording import Rewording, filled

EVERY_MARK = "*"
"""In a file's `remove`: every mark of style."""
_UNCHANGED = "unchanged"
"""The failure that gives the query back as it is."""
_EXACT = 1e-9


class Effect(Table):
    """One thing a rewrite may do."""

    chance: Share
    """Its share of the rewrites that succeed."""
    add: Texts = ()
    """Marks it adds, in this order."""
    remove: frozenset[Text] = frozenset()
    """Marks it strips first."""
    soften: Flag = False
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


class Operator(Table):
    """A way to rewrite that the mutator knows by its cue."""

    cue: Annotated[Text, AfterValidator(str.lower)]
    """The words with which an instruction for it begins, in small letters."""
    failures: dict[str, Share] = Field(default_factory=dict)
    """The share of rewrites that come to nothing, by what comes instead."""
    effects: Annotated[tuple[Effect, ...], Field(min_length=1)]
    rewordings: Texts = ()
    """Changes of wording that leave the features alone."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if sum(self.failures.values()) >= 1:
            raise wrong("failures", "must add up to less than 1")
        if abs(sum(effect.chance for effect in self.effects) - 1) > _EXACT:
            raise wrong("effects", "must have chances that add up to 1")
        return self

    def with_failures_in_order(self, names: Iterable[str]) -> Operator:
        """The operator with a rate for each failure, in this order whatever the file's: draws go by it."""
        rates = {name: self.failures.get(name, 0.0) for name in names}
        return self.model_copy(update={"failures": rates})

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


_QUERY, _OTHER, _FAILURES = fence("query"), fence("other"), fence("failures")
_PARAGRAPH = re.compile(r"\n\s*\n")


class MutatorWords(Table):
    """What the mutator says around a rewrite, or instead of one."""

    openers: frozenset[Annotated[Text, AfterValidator(str.lower)]]
    """Words that need no capital when something comes before them."""
    dress_rate: Share
    """The share of rewrites that come with words around them."""
    dresses: Texts
    """Templates around `{text}`."""
    failures: dict[str, Texts] = Field(default_factory=dict)
    """Texts by the name of the failure."""

    @property
    def failure_names(self) -> tuple[str, ...]:
        """What a rewrite may come to nothing by."""
        return (_UNCHANGED, *self.failures)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a prompt asks of the mutator."""

    instruction: str
    query: str
    other: str | None
    failures: str = ""
    """Problems that were got wrong under the query's instructions, as they are shown."""


@dataclass(frozen=True, kw_only=True)
class Mutator:
    """Rewrites queries.

    Args:
        grammar: reads and writes features.
        operators: by name; the first takes instructions that none recognises.
        rewordings: by name.
        words: what is said around a rewrite, or instead of one.
        advice: what it knows to say in instructions for a solver; None in a world without one.
    """

    grammar: Grammar
    operators: Mapping[str, Operator]
    rewordings: Mapping[str, Rewording]
    words: MutatorWords
    advice: Advice | None = None

    def find_operator(self, instruction: str) -> Operator | None:
        """The operator whose cue the instruction begins with, the longest cue first."""
        text = instruction.strip().lower()
        fitting = [item for item in self.operators.values() if text.startswith(item.cue)]
        return max(fitting, key=lambda item: len(item.cue), default=None)

    def is_asked(self, prompt: str) -> bool:
        """Whether a prompt has a tagged query under an instruction that an operator recognises."""
        if not _QUERY.search(prompt):
            return False
        task = read_task(prompt)
        return self._edit(task) is not None or self.find_operator(task.instruction) is not None

    def reply(self, prompt: str, digest: bytes, *, shown: bool = False) -> tuple[str, bool]:
        """The reply to a prompt, and whether its instruction was recognised.

        Args:
            prompt: an instruction and a tagged query.
            digest: decides what comes of it.
            shown: whether worked examples came before; then nothing is said around a rewrite.
        """
        task = read_task(prompt)
        edit = self._edit(task)
        operator = self.find_operator(task.instruction)
        if edit is not None:
            text = edit(task.query, task.other, digest)
        else:
            text = self.rewrite(operator or next(iter(self.operators.values())), task, digest)
        if not shown and share_of(digest, "dress") < self.words.dress_rate:
            text = filled(pick(self.words.dresses, digest, "which dress"), {"text": text})
        return text, edit is not None or operator is not None

    def _edit(self, task: Task) -> Edit | None:
        return self.advice.edit(task.instruction, task.failures) if self.advice is not None else None

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
                self.rewordings[name].apply(text, self.words.openers, digest), terse=TERSE in wanted.markers
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
                text = grammar.markers[name].added_to(text, self.words.openers, instruction, digest)
        return grammar.with_terse(text, terse=TERSE in wanted.markers)


def read_task(prompt: str) -> Task:
    """The instruction and the tagged query; without tags the last paragraph is the query."""
    queries = list(_QUERY.finditer(prompt))
    others = list(_OTHER.finditer(prompt))
    failures = _FAILURES.search(prompt)
    if queries:
        return Task(
            instruction=prompt[: queries[-1].start()],
            query=queries[-1]["text"].strip(),
            other=others[-1]["text"].strip() if others else None,
            failures=failures["text"] if failures else "",
        )
    parts = [part.strip() for part in _PARAGRAPH.split(prompt) if part.strip()]
    return Task(instruction=prompt, query=parts[-1] if parts else "", other=None)
