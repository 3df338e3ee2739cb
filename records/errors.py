"""Errors that a command prints as one line, and functions that help to word them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """What the user can mend; its message says what was expected, what came and what to do."""


class RunStoppedError(Exception):
    """The run stopped itself, and what it has is saved; the message says why."""


class GateNotMetError(Exception):
    """A bound that the user set is not kept; the message says which. The report is written."""


class WrappedError(Exception):
    """Adds to an error where it was raised; a command prints its `__cause__`, the error itself."""


@contextmanager
def as_user_error(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into the user's: within `with`, or in a function it decorates.

    Raises:
        UserError: in place of one, with its message.
    """
    try:
        yield
    except kinds as error:
        raise UserError(str(error)) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names nearest to it, or all where none is near: the end of an error message."""
    names = list(known)
    if not names:
        return "there is none"
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"


def describe(error: BaseException) -> str:
    """An error's class and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
