"""Texts that match a regular expression, for schemas with a `pattern`."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from ollama_utils.simulator.personas.json_schema import SchemaError

_PIECE = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\(\?:|\(\?.|[()|]|[^\\]", re.DOTALL
)
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d+)(,(\d*))?\})\??")
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ASSERTIONS = {"^", "$", r"\b", r"\A", r"\Z"}
_MOST_REPEATS = 256
MOST_CHARACTERS = 100_000
"""The longest text that is made."""


def matching_texts(pattern: str) -> Iterator[str]:
    """Texts made to match a pattern, the shortest first: the first alternative, a plain character.

    Raises:
        SchemaError: the pattern has a part that is not known here, such as a look-ahead.
    """
    for repeats in range(_MOST_REPEATS):
        yield _Composer(pattern, repeats).text()


class _Composer:
    """Reads a pattern from left to right and writes what it asks for.

    Args:
        pattern: the regular expression.
        repeats: how often an open-ended part stands beyond what it must.
    """

    def __init__(self, pattern: str, repeats: int) -> None:
        self._pattern = pattern
        self._repeats = repeats
        self._place = 0

    def text(self) -> str:
        made = self._alternatives()
        if self._place < len(self._pattern):
            raise self._unknown(self._pattern[self._place :])
        return made

    def _alternatives(self) -> str:
        first = self._sequence()
        while self._next_is("|"):
            self._place += 1
            self._sequence()
        return first

    def _sequence(self) -> str:
        made = []
        while self._place < len(self._pattern) and not (self._next_is("|") or self._next_is(")")):
            piece = self._piece()
            count = self._count()
            if len(piece) * count > MOST_CHARACTERS:
                raise SchemaError(f"the pattern {self._pattern!r} asks for over {MOST_CHARACTERS} characters")
            made.append(piece * count)
        return "".join(made)

    def _piece(self) -> str:
        found = _PIECE.match(self._pattern, self._place)
        if found is None:
            raise self._unknown(self._pattern[self._place :])
        self._place = found.end()
        piece = found[0]
        if piece in _ASSERTIONS:
            return ""
        if piece not in {"(", "(?:"}:
            return self._character(piece)
        inner = self._alternatives()
        if not self._next_is(")"):
            raise self._unknown(piece)
        self._place += 1
        return inner

    def _character(self, piece: str) -> str:
        """A plain character that the piece of a pattern stands for."""
        if piece.startswith((r"\x", r"\u")) and piece[2:]:
            return chr(int(f"0x{piece[2:]}", 0))
        probes = string.ascii_letters + string.digits + string.printable + piece
        try:
            return next(probe for probe in probes if re.fullmatch(piece, probe))
        except (StopIteration, re.error):
            raise self._unknown(piece) from None

    def _count(self) -> int:
        found = _QUANTIFIER.match(self._pattern, self._place)
        if found is None:
            return 1
        self._place = found.end()
        sign, low, more, high = found.groups()
        least, most = _BOUNDS[sign] if sign else (int(low), int(high) if high else None if more else int(low))
        return least + self._repeats if most is None else min(least + self._repeats, most)

    def _next_is(self, sign: str) -> bool:
        return self._pattern.startswith(sign, self._place)

    def _unknown(self, piece: str) -> SchemaError:
        return SchemaError(f"no text can be made for {piece!r} in the pattern {self._pattern!r}")
