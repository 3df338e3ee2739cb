"""Reads a persona's TOML tables key by key; whatever is wrong becomes one line that names the key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any


class PersonaError(ValueError):
    """A persona file cannot be used: one line names the key, what was expected and what came."""


class Reader:
    """One table of the file. It remembers which keys were asked for, and `finish` complains of the others.

    Args:
        table: the table as TOML gave it.
        where: its place in the file, for messages, such as `topics.weapons`.
    """

    def __init__(self, table: Mapping[str, Any], where: str = "") -> None:
        self._table = table
        self._asked: set[str] = set()
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def fail(self, key: str, expected: str) -> PersonaError:
        """The error for a key, to be raised."""
        came = repr(self._table[key]) if key in self._table else "nothing"
        return PersonaError(f"{self._place(key)} must be {expected}, got {came}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value:
            raise self.fail(key, "a text")
        return value

    def choice(self, key: str, options: tuple[str, ...], default: str | None = None) -> str:
        """One of the options."""
        value = self._get(key, default)
        if value not in options:
            raise self.fail(key, f"one of {', '.join(options)}")
        return str(value)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A number from `low` to `high`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.fail(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of texts."""
        value = self._get(key, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
            raise self.fail(key, "a list of texts")
        return tuple(value)

    def replacements(self, key: str) -> tuple[str, ...]:
        """A list of at least one text, which may be empty."""
        value = self._get(key, None)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "a list of at least one text")
        return tuple(value)

    def pattern(self, key: str) -> re.Pattern[str]:
        """A regular expression that matches no empty text; capitals do not count."""
        return self._compiled(key, self.text(key))

    def patterns(self, key: str, default: tuple[str, ...] | None = None) -> re.Pattern[str] | None:
        """A list of regular expressions as one; None for an empty list."""
        found = self.texts(key, default)
        for each in found:
            self._compiled(key, each)
        return self._compiled(key, "|".join(f"(?:{each})" for each in found)) if found else None

    def table(self, key: str) -> Reader:
        """A table; an absent one is empty."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, "a table")
        return Reader(value, self._place(key))

    def is_table(self, key: str) -> bool:
        """Whether the key holds a table."""
        return isinstance(self._table.get(key), dict)

    def tables(self) -> Iterator[tuple[str, Reader]]:
        """Every value of this table as a table, by its key."""
        for key in self._table:
            yield key, self.table(key)

    def items(self, key: str) -> list[Reader]:
        """A list of tables that is not empty."""
        value = self._get(key, None)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.fail(key, "a list of tables")
        return [Reader(item, f"{self._place(key)}[{place}]") for place, item in enumerate(value)]

    def keys(self) -> tuple[str, ...]:
        """All keys of the table."""
        return tuple(self._table)

    def expect(self, keys: tuple[str, ...]) -> None:
        """Complain at once of a key that is not among these.

        Raises:
            PersonaError: there is one; the message gives the nearest known key.
        """
        self._asked.update(keys)
        self.finish()

    def finish(self) -> None:
        """Complain of a key that nobody asked for.

        Raises:
            PersonaError: there is one; the message gives the nearest known key.
        """
        for key in self._table:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                hint = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else f"expected one of {', '.join(sorted(self._asked))}"
                )
                raise PersonaError(f"{self._place(key)} is not known: {hint}")

    def _get(self, key: str, default: object) -> Any:  # noqa: ANN401 - TOML holds anything
        self._asked.add(key)
        return self._table.get(key, default)

    def _compiled(self, key: str, pattern: str) -> re.Pattern[str]:
        try:
            compiled = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise self.fail(key, f"made of regular expressions ({pattern!r}: {error})") from None
        if compiled.search(""):
            raise self.fail(key, f"made of regular expressions that match no empty text ({pattern!r} does)")
        return compiled

    def _place(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key
