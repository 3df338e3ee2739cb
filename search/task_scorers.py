"""A user's own functions, named as `FILE.py:NAME`: the scorer of a task, an evaluation."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mutators.user_file import run_file
from search.policies.nearest import nearest
from search.scores import score_of

if TYPE_CHECKING:
    from search.task import Problem


def load_scorer(spec: str) -> Checked:
    """The function that `FILE.py:NAME` names, with every value checked to be a number from 0 to 1.

    Raises:
        ValueError: no such file or function, it fails while it is imported, it is an async def, or it cannot
            be called with (problem, reply).
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
        ValueError: no such file or function, it fails while it is imported, it is an async def, or it cannot
            be called so.
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
    told = ", ".join(arguments)
    if any(map(_is_async, (function, getattr(function, "__call__", None)))):  # noqa: B004 - an object's method
        raise ValueError(f"{what} {spec!r} is an async def; expected a plain def ({told}) -> float")
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        raise ValueError(f"{spec!r} is no {what}; expected a function ({told}) -> float") from None
    return cast("Callable[..., Any]", function)


def reason_of(spec: str, error: BaseException) -> str:
    """What was raised, in one line, and in which line of the file of `FILE.py:NAME`, where it was there."""
    told = " ".join(f"{type(error).__name__}: {error}".split())
    file = Path(spec.rpartition(":")[0]).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
    return f"{told} (line {lines[-1]})" if lines else told


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

    def __call__(self, problem: Problem, reply: str) -> float:
        """What a reply is worth.

        Raises:
            ScorerError: the function raised, or returned anything but a number from 0 to 1.
        """
        try:
            value = self._function(problem, reply)
        except (Exception, SystemExit) as error:
            raise self._error(f"failed: {reason_of(self.spec, error)}", problem) from error
        score = score_of(value)
        if score is None:
            raise self._error(f"returned {value!r:.60}", problem)
        return score

    def _error(self, what: str, problem: Problem) -> ScorerError:
        place = f"problem {problem.id!r:.60}: {' '.join(problem.question.split())!r:.60}"
        return ScorerError(f"scorer {self.spec!r} {what}; expected a number from 0 to 1 ({place})")


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
