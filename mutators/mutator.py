"""What a mutator is: a named way to reword a query, by a model (a prompt) or by rule (the text)."""

from __future__ import annotations

import inspect
import itertools
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from ollama_utils.types import Prompt, is_text

MutatorFunction = Callable[[str, Sequence[str], int], str | Prompt]
"""`(query, earlier, seed) -> str`, or, for a model, a `Prompt`: the query, earlier rewordings of
the same original in this episode (oldest first), and a seed for any choice that the function makes.
The same three arguments always give the same text."""


class MutatorError(ValueError):
    """A mutator's function raised, or returned no text; the message names it, its file and why."""


@dataclass(frozen=True, kw_only=True)
class Mutator:
    """One way to reword a query."""

    name: str
    """The function's name, as `--mutators` names it."""
    kind: Literal["model", "rule"]
    """`model`: the function returns the prompt for the mutator model; `rule`: the rewording."""
    function: MutatorFunction
    file: str
    """The file that defines the function."""
    then: Mutator | None = None
    """A second mutator, which makes the rewording of the model's text: that is its query, and the
    query itself is the last of its `earlier`."""

    @property
    def calls(self) -> int:
        """How many calls of the mutator model a rewording takes at most."""
        return (self.kind == "model") + (self.then.calls if self.then else 0)

    def prompt(self, query: str, earlier: Sequence[str], seed: int) -> Prompt:
        """What to send to the mutator model; a function's str is the user's turn.

        Raises:
            MutatorError: the function raised, or returned anything but a text to send.
        """
        made = self._call(query, earlier, seed)
        prompt = made if isinstance(made, Prompt) else Prompt(text=self._checked(made))
        for text in (prompt.text, prompt.system or "", *itertools.chain(*prompt.examples)):
            self._checked(text)
        return prompt if prompt.text.strip() else self._fail("returned a blank prompt")

    def apply(self, query: str, earlier: Sequence[str], seed: int) -> str:
        """The rewording itself; empty where the function returned blanks only.

        Raises:
            MutatorError: the function raised, or returned anything but a text.
        """
        text = self._checked(self._call(query, earlier, seed))
        return text if text.strip() else ""

    def _call(self, query: str, earlier: Sequence[str], seed: int) -> object:
        try:
            return self.function(query, earlier, seed)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's code raises
            self._fail(f"raised {type(error).__name__}: {error}", error)

    def _checked(self, text: object) -> str:
        """A text that can be sent."""
        if not isinstance(text, str) or not is_text(text):
            self._fail(f"returned {reprlib.repr(text)}; expected a str of valid Unicode")
        return text

    def _fail(self, why: str, cause: BaseException | None = None) -> NoReturn:
        why = " ".join(why.split())
        raise MutatorError(f"mutator {self.name!r} of {self.file} {why}") from cause


def by_model(function: MutatorFunction) -> Mutator:
    """Decorator: a mutator whose function returns the prompt for the mutator model.

    Raises:
        TypeError: it is no plain def that can be called with (query, earlier, seed).
    """
    return _mutator("model", function)


def by_rule(function: MutatorFunction) -> Mutator:
    """Decorator: a mutator whose function returns the rewording itself; see `by_model`."""
    return _mutator("rule", function)


def _mutator(kind: Literal["model", "rule"], function: MutatorFunction) -> Mutator:
    try:
        inspect.signature(function).bind("query", (), 0)
        is_plain = inspect.isfunction(function) and not inspect.iscoroutinefunction(function)
    except (TypeError, ValueError):
        is_plain = False
    if not is_plain:
        expected = "expected a plain def of (query, earlier, seed)"
        raise TypeError(f"{function!r} is no mutator: {expected}")
    file = function.__code__.co_filename
    return Mutator(name=function.__name__, kind=kind, function=function, file=file)
