"""A reply as tokens: what a model thinks, then what it says, and where it must end.

A reply is counted as as many tokens as the server's setting draws for it, so its text is divided evenly into
that many pieces. A text shorter than its count has empty ones among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["thought", "word", "call"]
"""What a token belongs to: the thinking, the words of the reply, or the call of a tool."""


class Token(NamedTuple):
    """A piece of a reply."""

    text: str
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is left of a reply, and why it ends there."""

    tokens: tuple[Token, ...]
    """What is shown: without a stop sequence, and without what comes after it."""
    count: int
    """The tokens that were generated; those of a stop sequence count."""
    reason: Literal["stop", "length"]


def split(text: str, count: int, kind: Kind) -> list[Token]:
    """The text in `count` pieces of nearly equal length."""
    bounds = [place * len(text) // count for place in range(count + 1)]
    return [Token(text[bounds[place] : bounds[place + 1]], kind) for place in range(count)]


def end(tokens: Sequence[Token], limit: int | None, stops: Sequence[str]) -> Ending:
    """The reply up to the first stop sequence, and of at most `limit` tokens (None is no limit)."""
    kept = tuple(tokens[:limit])
    text = "".join(token.text for token in kept)
    found = [(place, place + len(stop)) for stop in stops if (place := text.find(stop)) >= 0]
    if found:
        shown, generated = min(found)
        before = _before(kept, generated)
        return Ending(tokens=_before(kept, shown), count=len(before), reason="stop")
    return Ending(tokens=kept, count=len(kept), reason="stop" if len(kept) == len(tokens) else "length")


def _before(tokens: Sequence[Token], length: int) -> tuple[Token, ...]:
    """The tokens of the first `length` characters, the last of them cut there."""
    left = length
    found = []
    for token in tokens:
        if left <= 0:
            break
        found.append(Token(token.text[:left], token.kind))
        left -= len(token.text)
    return tuple(found)
