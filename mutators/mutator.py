"""What a mutator is: a named way to reword a query, by a model (a prompt) or by rule (the rewording)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Rewording = Callable[[str, Sequence[str], int], str]
"""`(query, earlier, seed) -> str`: the query, earlier rewordings of the same original in this episode
(oldest first), and a seed for any choice that the function makes. The same three arguments always give the
same text."""


@dataclass(frozen=True, kw_only=True)
class Mutator:
    """One way to reword a query."""

    name: str
    """The function's name, as `--mutators` names it."""
    kind: Literal["model", "rule"]
    """`model`: the function returns the whole prompt for the mutator model; `rule`: the rewording."""
    function: Rewording
    doc: str
    """The first line of the function's docstring."""

    def prompt(self, query: str, earlier: Sequence[str], seed: int) -> str:
        """The whole prompt to send to the mutator model.

        Raises:
            ValueError: The mutator rewords by rule: it has no prompt.
            TypeError: A user's function returned something else than text.
        """
        return self._text("model", query, earlier, seed)

    def apply(self, query: str, earlier: Sequence[str], seed: int) -> str:
        """The rewording itself.

        Raises:
            ValueError: The mutator rewords by a model: it has a prompt instead.
            TypeError: A user's function returned something else than text.
        """
        return self._text("rule", query, earlier, seed)

    def _text(self, kind: str, query: str, earlier: Sequence[str], seed: int) -> str:
        if kind != self.kind:
            method = "prompt" if self.kind == "model" else "apply"
            raise ValueError(f"mutator {self.name!r} rewords by {self.kind}: use its .{method}(...)")
        text: object = self.function(query, earlier, seed)
        if not isinstance(text, str):
            raise TypeError(f"mutator {self.name!r} returned {text!r}; expected a str")
        return text


def by_model(function: Rewording) -> Mutator:
    """Decorator: a mutator whose function returns the whole prompt for the mutator model.

    Raises:
        TypeError: The function cannot be called with (query, earlier, seed).
    """
    return _mutator("model", function)


def by_rule(function: Rewording) -> Mutator:
    """Decorator: a mutator whose function returns the rewording itself.

    Raises:
        TypeError: The function cannot be called with (query, earlier, seed).
    """
    return _mutator("rule", function)


def _mutator(kind: Literal["model", "rule"], function: Rewording) -> Mutator:
    signature = inspect.signature(function)
    try:
        signature.bind("query", (), 0)
    except TypeError:
        expected = "expected (query, earlier, seed)"
        raise TypeError(f"{function.__name__}{signature} is no mutator: {expected}") from None
    doc = (inspect.getdoc(function) or "").partition("\n")[0]
    return Mutator(name=function.__name__, kind=kind, function=function, doc=doc)
