"""A user's own functions, named as `FILE.py:NAME`: the scorer of a task, an evaluation."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from mutators.user_file import run_file
from search.policies.nearest import nearest


def load_scorer(spec: str) -> Callable[[Any, str], float]:
    """The function that `FILE.py:NAME` names, with every value checked to be a number from 0 to 1.

    Raises:
        ValueError: no such file or function, it fails while it is imported, or it cannot be called with
            (problem, reply).
    """
    return Checked(spec, load_function(spec, "scorer", ("problem", "reply"), example="mine.py:grade"))


def load_function(spec: str, what: str, arguments: Sequence[str], *, example: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names.

    Args:
        spec: how it is named.
        what: it is, for messages.
        arguments: it is called with these, in this order.
        example: of such a name, for messages.

    Raises:
        ValueError: no such file or function, it fails while it is imported, or it cannot be called so.
    """
    path, colon, name = spec.rpartition(":")
    file = Path(path)
    if not colon or not name.isidentifier() or not file.is_file():
        raise ValueError(f"{what} {spec!r} cannot be found; expected FILE.py:NAME, as in {example}")
    module = run_file(file.resolve(), "scorers", shown=str(file))
    function = getattr(module, name, None)
    if not callable(function):
        own = [each for each, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{path} has no function {name!r}; {nearest(name, own)}")  # noqa: TRY004 - a name, not a type
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        told = ", ".join(arguments)
        raise ValueError(f"{spec!r} is no {what}; expected a function ({told}) -> float") from None
    return cast("Callable[..., Any]", function)


class ScorerError(ValueError):
    """A user's scorer raised, or returned what is no number from 0 to 1."""


class Checked:
    """A user's scorer whose values are checked.

    Args:
        spec: how it was named, for messages.
        function: the user's own.
    """

    def __init__(self, spec: str, function: Callable[[Any, str], Any]) -> None:
        self.spec = spec
        self._function = function

    def __call__(self, problem: object, reply: str) -> float:
        """What a reply is worth.

        Raises:
            ScorerError: the function raised, or returned anything but a number from 0 to 1.
        """
        try:
            value = float(self._function(problem, reply))
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ScorerError(f"scorer {self.spec!r} failed: {reason}") from error
        if not 0 <= value <= 1 or math.isnan(value):
            raise ScorerError(f"scorer {self.spec!r} returned {value!r}; expected a number from 0 to 1")
        return value
