"""Errors that a command shows as one line, and what to say of a name that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class UserError(Exception):
    """The user can mend it: what was expected, what came, what to do. Exit code 2."""


class RunStoppedError(Exception):
    """The run stopped itself, saved: why. Exit code 1."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names nearest to it, or all of them where none is near: the end of an error message."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"


class ParallelError(Exception):
    """Some items failed; the results of the others are here.

    Args:
        results: one result an item, in order; None where it failed.
        failures: what each failed item raised, by its index.
    """

    def __init__(self, results: Sequence[Any], failures: Mapping[int, BaseException]) -> None:
        self.results = list(results)
        self.failures = dict(failures)
        first = min(self.failures)
        super().__init__(
            f"{len(self.failures)} of {len(self.results)} items failed; "
            f"the first, item {first}: {self.failures[first]!r}"
        )
