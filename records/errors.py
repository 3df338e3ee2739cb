"""Errors that a command shows as one line, and the end of the message about an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """The user can mend it: what was expected, what came, what to do. Exit code 2."""


class RunStoppedError(Exception):
    """The run stopped itself, saved: why. Exit code 1."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names nearest to it, or all of them where none is near: the end of an error message."""
    names = list(known)
    if not names:
        return "there is none"
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"
