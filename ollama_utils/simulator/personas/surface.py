"""The surface of a sentence: capitals, spaces and the mark at its end."""

from __future__ import annotations

import re

_ENDED = re.compile(r"[.?!\u2026][\"'\u201d\u2019)\]]*\s*\Z")
_END = re.compile(r"[.?!\u2026]+(?=[\"'\u201d\u2019)\]]*\s*\Z)")
_QUESTION = re.compile(
    r"\b(?:how|what|which|why|where|when|who|whom|whose|is|are|was|were|am|do|does|did|can|could|may|might|must|will|"
    r"would|should|has|have|had)\b",
    re.IGNORECASE,
)
_FIRST_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_SPACES = re.compile(r"\s+")
_SPACE_BEFORE = re.compile(r"\s+([,.;:?!])")
_DOUBLE = re.compile(r"[,;:]+\s*([,.;:?!])|([.?!])\s*[,;:.]+(?=\s|\Z)")
_LEADING = re.compile(r"\A[\s,.;:!?-]+")


def is_ended(text: str) -> bool:
    """Whether the text ends with a full stop, a question or an exclamation mark."""
    return _ENDED.search(text) is not None


def ended(text: str) -> str:
    """The text with a mark at its end: `?` for a question, else `.`."""
    if is_ended(text):
        return text
    last = re.split(r"[.?!;:]\s+", text)[-1]
    return text.rstrip(" ,;:") + ("?" if _QUESTION.match(last) else ".")


def unended(text: str) -> str:
    """The text without the mark at its end."""
    return _END.sub("", text).rstrip(" ,;:")


def lowered(text: str, openers: frozenset[str]) -> str:
    """The text to follow a comma: its first word small when it is one of the openers."""
    first = _FIRST_WORD.match(text)
    return text[0].lower() + text[1:] if first and first[0].lower() in openers else text


def capitalised(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def tidied(text: str) -> str:
    """A sentence after a part was cut out of it: spaces and marks as they should be, a capital first."""
    text = _SPACE_BEFORE.sub(r"\1", _SPACES.sub(" ", text).strip())
    text = _DOUBLE.sub(lambda match: match[1] or match[2], _LEADING.sub("", text))
    return capitalised(text.rstrip(" ,;:"))
