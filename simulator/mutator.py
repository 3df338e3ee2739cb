"""The mutator: finds the operator that an instruction asks for, and rewords the query by it.

What an operator does to a query's features is a table of chances (`Operator.outcomes`), which the
mutator draws from and from which the best policy of a world is computed.
"""

from __future__ import annotations

import re

from simulator.chance import pick, share_of
from simulator.prompts import Task
from simulator.world import World, ended, filled, tokenise, unended
from simulator.world_file import TERSE, Operator

_FAILURES = ("unchanged", "apology", "chatter", "stray")
_EMPTY_WORDS = frozenset(
    tokenise(
        "a an and are as ask asks be can few for i in it its let not of one only or out query same "
        "say that the their they this to two use what who with word words you your"
    )
)
"""Words that do not decide between phrases."""


def find_operator(world: World, instruction: str) -> Operator | None:
    """The operator whose cue the instruction begins with, the longest cue first."""
    text = instruction.strip().lower()
    fitting = [each for each in world.file.mutator.operators.values() if text.startswith(each.cue)]
    return max(fitting, key=lambda each: len(each.cue), default=None)


def reword(world: World, task: Task, digest: bytes) -> str:
    """The query reworded, or what comes in its place.

    The first operator takes an instruction that none knows.
    """
    rules = world.file.mutator
    operator = find_operator(world, task.instruction) or next(iter(rules.operators.values()))
    share = share_of(digest, "outcome")
    for name, chance in zip(_FAILURES, operator.failures, strict=True):
        if share < chance:
            return task.query if name == "unchanged" else pick(getattr(rules, name), digest, name)
        share -= chance
    soften = share < operator.soften * (1 - sum(operator.failures))
    return apply(world, operator, task, digest, soften=soften)


def dressed(world: World, text: str, digest: bytes) -> str:
    """A rewording with words around it, which a model adds that was shown no example."""
    rules = world.file.mutator
    if share_of(digest, "dress") >= rules.dress_rate:
        return text
    return filled(pick(rules.dresses, digest, "which dress"), {"text": text})


def apply(world: World, operator: Operator, task: Task, digest: bytes, *, soften: bool) -> str:
    """The query after an operator: its features are exactly those that the operator names.

    A change of wording that would disturb the features is left out; should the operator itself not
    come out as it must (a text made of nothing but phrases), the query stays as it is.
    """
    wanted = operator.applied(world.read(task.query), soften=soften)
    text = task.query
    if task.other is not None and world.read(task.other) == world.read(task.query):
        text = task.other
    if soften:
        text = world.soften(text)
    for name in world.file.marks:
        if name not in wanted.marks and world.has_mark(text, name):
            text = world.stripped(text, name)
    if operator.add and operator.add != TERSE and not world.has_mark(text, operator.add):
        text = _with_mark(world, text, operator.add, task.instruction, digest)
    text = unended(text) if TERSE in wanted.marks else ended(text)
    if operator.reword:
        other = _by_rule(world.file.mutator.rewordings[operator.reword], text, digest)
        other = unended(other) if TERSE in wanted.marks else ended(other)
        if world.read(other) == wanted:
            text = other
    return text if world.read(text) == wanted else task.query


def _with_mark(world: World, text: str, name: str, instruction: str, digest: bytes) -> str:
    """The text with a mark, in the phrase that shares most words with the instruction."""
    mark = world.file.marks[name]
    asked = set(tokenise(instruction.partition(". ")[0])) - _EMPTY_WORDS

    def fit(phrase: str) -> tuple[int, float]:
        return len(asked.intersection(tokenise(phrase))), share_of(digest, phrase)

    phrase = max(mark.before + mark.after, key=fit)
    return f"{phrase} {text}" if phrase in mark.before else f"{ended(text)} {phrase}"


def _by_rule(rules: tuple[tuple[str, ...], ...], text: str, digest: bytes) -> str:
    """The text after the first rule that fits; what stood first keeps its capital."""
    for pattern, *options in rules:
        if found := re.search(pattern, text, re.IGNORECASE):
            changes = [
                each for each in map(found.expand, options) if each.lower() != found[0].lower()
            ]
            if changes:
                change = pick(changes, digest, pattern)
                changed = text[: found.start()] + change + text[found.end() :]
                return changed[:1].upper() + changed[1:]
    return text
