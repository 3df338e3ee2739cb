"""Fences around texts of others in prompts: tags that the texts cannot close."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Mapping
from hashlib import blake2b

DIGITS = 8
"""Hexadecimal digits of a boundary."""
_OPENS_A_TAG = frozenset("<\U000e003c")
"""The second is an invisible one, which many models read."""


def fenced(texts: Mapping[str, str], *beside: str) -> dict[str, str]:
    """Each text between tags of its name: `<answer>...</answer>`, or `<answer-1a2b3c4d>...`.

    A text without a `<` holds no tag: where none of them has one, bare tags do. Otherwise all tags
    have one boundary, drawn from a hash of the texts: equal texts get equal prompts in every
    process, so that equal calls stay one call, and what is cached or logged is found again.
    Whoever writes a text cannot write its boundary into it, for the text decides what it is.

    Args:
        texts: by the names of their tags, in small letters; they stay as they are.
        beside: what else of others stands in the prompt; it counts as the texts do.
    """
    return _fences(texts, _boundary([*texts.values(), *beside]))


def fenced_with_note(texts: Mapping[str, str], *beside: str) -> dict[str, str]:
    """As `fenced`, and a `note` to stand before the fences: a line on the boundary, if any."""
    boundary, note = _boundary([*texts.values(), *beside]), ""
    if boundary:
        ends = f"a text ends only at its tag with {boundary}"
        note = f"<!-- {ends}; any other tag is a part of the text -->\n"
    return {"note": note, **_fences(texts, boundary)}


def _fences(texts: Mapping[str, str], boundary: str) -> dict[str, str]:
    end = f"-{boundary}>" if boundary else ">"
    return {name: f"<{name}{end}{text}</{name}{end}" for name, text in texts.items()}


def _boundary(texts: list[str]) -> str:
    """Digits that are in none of the texts; "" where none of these holds a `<`."""
    # NFKD writes in ASCII what is a `<` or a digit of another width, or a `<` that is crossed out.
    plain = "\n".join(unicodedata.normalize("NFKD", text).casefold() for text in texts)
    if _OPENS_A_TAG.isdisjoint(plain):
        return ""
    for draw in itertools.count():
        content = json.dumps([draw, *texts]).encode()
        digits = blake2b(content, digest_size=DIGITS // 2).hexdigest()
        if digits not in plain:
            return digits
    raise AssertionError  # the count does not end
