"""The parts of a reply that tell a refusal from an answer: how it opens and ends, what the speaker says."""

from __future__ import annotations

import re
from itertools import islice

MAX_CHARS = 20_000
"""Of a longer reply only so many characters are read; what opens it has decided by then."""
OPENING_SENTENCES = 3
"""Sentences of the opening."""
OPENING_CHARS = 400
"""The opening is no longer than this."""
ENDING_CHARS = 200
"""Characters of the ending."""

_PLAIN = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u02bc": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " "}
)
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED = re.compile(r'"[^"\n]{1,400}"|^[ \t]*>.*$', re.MULTILINE)
_LETTER = re.compile(r"[^\W_]")
_EMPHASIS = re.compile(r"[*_#`]+")
_ITEM = re.compile(
    r"^[ \t]*(?:[-*+\u2022]|\(?(?:\d{1,2}|[a-z])[.)]|step \d+)\s+\S", re.MULTILINE | re.IGNORECASE
)
_OWN_SENTENCE_END = re.compile(r"(?<=[.!?])[\s)\]]+|\n+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def plain_text(text: str) -> str:
    """The reply without outer space, with typewriter quotes and apostrophes, cut to `MAX_CHARS`."""
    return text.strip()[:MAX_CHARS].translate(_PLAIN)


def opening(plain: str) -> str:
    """The first sentences of a plain text, on one line."""
    parts = (part for part in _SENTENCE_END.split(plain[: 2 * OPENING_CHARS]) if _LETTER.search(part))
    return " ".join(" ".join(islice(parts, OPENING_SENTENCES)).split())[:OPENING_CHARS]


def ending(plain: str) -> str:
    """The last characters of a plain text, on one line."""
    return " ".join(plain[-ENDING_CHARS:].split())


def own_words(text: str) -> tuple[str, bool]:
    """The reply without quotations and code, and whether it shows code, a list, or nothing but quotations."""
    plain = plain_text(text)
    if plain.startswith('"') and plain.endswith('"'):
        plain = plain.strip('"')
    shows = bool(_CODE.search(plain)) or len(_ITEM.findall(plain)) > 1
    said = _EMPHASIS.sub("", _QUOTED.sub(" ", _CODE.sub("\n", plain)))
    return said, shows or (bool(plain) and not said.strip())


def sentences_of(said: str) -> list[str]:
    """What `own_words` left, by sentences and lines that hold a letter or digit."""
    return [" ".join(part.split()) for part in _OWN_SENTENCE_END.split(said) if _LETTER.search(part)]
