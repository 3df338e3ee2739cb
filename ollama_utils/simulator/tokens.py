"""A reply as tokens: what a model thinks, then what it says, and where it must end.

A reply is counted as as many tokens as the server's setting draws for it, so each part's text is divided
evenly into that many pieces. A text shorter than its count has empty ones among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["thought", "word", "call"]
"""What a token belongs to: the thinking, the words of the reply, or the call of a tool."""


class Token(NamedTuple):
    """A piece of a reply."""

    text: str
    kind: Kind


@dataclass(frozen=True)
class Part:
    """A stretch of a reply of one kind."""

    text: str
    kind: Kind
    count: int
    """Into how many tokens the text is divided."""

    def until(self, place: int) -> int:
        """How many characters come before the token at a place."""
        return place * len(self.text) // self.count

    def begun(self, length: int) -> int:
        """How many tokens begin in the first `length` characters."""
        if length >= len(self.text):
            return self.count
        return -(-length * self.count // len(self.text))


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is left of a reply, and why it ends there."""

    parts: Sequence[Part]
    length: int
    """The characters that are shown: those before a stop sequence, and within the limit."""
    shown: int
    """The tokens that are shown, the last of them cut."""
    count: int
    """The tokens that were generated; those of a stop sequence count."""
    reason: Literal["stop", "length"]

    def text(self, *kinds: Kind) -> str:
        """What is shown of the parts of some kinds."""
        left, found = self.length, []
        for part in self.parts:
            if part.kind in kinds:
                found.append(part.text[:left])
            left = max(0, left - len(part.text))
        return "".join(found)

    def tokens(self) -> Iterator[Token]:
        """The tokens that are shown."""
        left, places = self.length, self.shown
        for part in self.parts:
            for place in range(min(part.count, places)):
                text = part.text[part.until(place) : part.until(place + 1)][:left]
                left -= len(text)
                yield Token(text, part.kind)
            places = max(0, places - part.count)


def end(parts: Sequence[Part], limit: int | None, stops: Sequence[str]) -> Ending:
    """The reply up to the first stop sequence, and of at most `limit` tokens (None is no limit)."""
    total = sum(part.count for part in parts)
    count = total if limit is None else min(limit, total)
    length = _characters(parts, count)
    if stops:
        text = "".join(part.text for part in parts)[:length]
        if found := [(at, at + len(stop)) for stop in stops if (at := text.find(stop)) >= 0]:
            shown, generated = min(found)
            return Ending(
                parts=parts,
                length=shown,
                shown=_tokens(parts, shown),
                count=min(count, _tokens(parts, generated)),
                reason="stop",
            )
    return Ending(
        parts=parts, length=length, shown=count, count=count, reason="stop" if count == total else "length"
    )


def _characters(parts: Sequence[Part], count: int) -> int:
    """How many characters the first `count` tokens have."""
    length = 0
    for part in parts:
        length += part.until(min(count, part.count))
        count = max(0, count - part.count)
    return length


def _tokens(parts: Sequence[Part], length: int) -> int:
    """How many tokens begin in the first `length` characters."""
    count = 0
    for part in parts:
        if length > 0:
            count += part.begun(length)
        length -= len(part.text)
    return count
