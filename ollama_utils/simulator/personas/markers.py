"""Marks of style: clauses that a rewrite adds or strips, recognised wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ollama_utils.simulator.chance import share_of
from ollama_utils.simulator.personas.lexicon import tokenise
from ollama_utils.simulator.personas.surface import capitalised, ended, lowered, tidied

_EMPTY_WORDS = frozenset(
    tokenise(
        "a an and are as ask asks be can few for i in it its let not of one only or out query same say that "
        "the their they this to two use what who with word words you your"
    )
)
"""Words that do not decide between phrases."""


@dataclass(frozen=True, kw_only=True)
class Swap:
    """Another way to mark a style: an opening replaced by another, which can be turned back."""

    pattern: re.Pattern[str]
    to: str
    back: str


@dataclass(frozen=True, kw_only=True)
class Marker:
    """One mark of style.

    `before` and `after` are the phrases that a rewrite puts in front of the query or behind it; `pattern`
    recognises them and what people write to the same effect.
    """

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    pattern: re.Pattern[str] | None
    swap: Swap | None

    def is_in(self, text: str) -> bool:
        """Whether the text carries the mark."""
        return bool(self.pattern and self.pattern.search(text)) or self._swapped_in(text)

    def removed_from(self, text: str) -> str:
        """The text without the mark; the text itself when nothing else would be left."""
        bare = text
        if self.swap and self._swapped_in(bare):
            back = self.swap.back
            bare = _exactly(self.swap.to).sub(lambda m: _cased_as(m[0], back), bare)
        while self.pattern and self.pattern.search(bare):
            bare = tidied(self.pattern.sub(" ", bare))
        return bare or text

    def added_to(self, text: str, openers: frozenset[str], instruction: str, digest: bytes) -> str:
        """The text with the mark, in the words that fit the instruction best.

        Args:
            text: a query without the mark.
            openers: words that need no capital when something comes before them.
            instruction: what the mutator was told; `as a teacher` prefers a phrase with a teacher.
            digest: decides between phrases that fit equally.
        """
        if self.swap and self.swap.pattern.search(text):
            to = self.swap.to
            return self.swap.pattern.sub(lambda m: _cased_as(m[0], to), text, count=1)
        phrase = _best(self.before + self.after, instruction, digest)
        if phrase in self.before:
            return f"{phrase} {lowered(text, openers)}"
        return f"{ended(text)} {phrase}"

    def _swapped_in(self, text: str) -> bool:
        return self.swap is not None and _exactly(self.swap.to).search(text) is not None


def marker_pattern(phrases: Sequence[str], natural: Sequence[str]) -> re.Pattern[str] | None:
    """What recognises a mark: its own phrases, the longest first, and patterns for people's words."""
    own = [_spaced(phrase) for phrase in sorted(phrases, key=len, reverse=True)]
    alternatives = [*own, *(f"(?:{pattern})" for pattern in natural)]
    return re.compile("|".join(alternatives), re.IGNORECASE) if alternatives else None


def _spaced(phrase: str) -> str:
    return r"\s+".join(map(re.escape, phrase.split()))


@cache
def _exactly(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"\b{_spaced(phrase)}\b", re.IGNORECASE)


def _cased_as(found: str, phrase: str) -> str:
    return capitalised(phrase) if found[0].isupper() else phrase[0].lower() + phrase[1:]


def _best(phrases: tuple[str, ...], instruction: str, digest: bytes) -> str:
    told = set(tokenise(instruction.partition(". ")[0])) - _EMPTY_WORDS
    return max(
        phrases, key=lambda phrase: (len(told.intersection(tokenise(phrase))), share_of(digest, phrase))
    )
