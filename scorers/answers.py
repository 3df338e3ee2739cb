"""The final answer in a model's reply, and whether it is the right one."""

from __future__ import annotations

import math
import re

_MARKED = re.compile(r"\banswer(?:[ \t]+is\b[ \t]*:?|[*_`]*[ \t]*:)", re.IGNORECASE)
_DRESS = " \t\r\n*_`\"'\u201c\u201d\u2018\u2019"
_ENDS = ".!;,:"
_LATEX = re.compile(r"\\(?:boxed|text)\{([^{}]*)\}")
_NUMBER = re.compile(
    r"(?:[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[-+\u2212]?\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE
)
_BETWEEN = re.compile(r"\s*(?:,\s*(?:and\s+)?|;|\n|>|\u2192|->|\|)\s*")
_ITEM_MARK = re.compile(r"^(?:[-*\u2022]|\(?\d+[.)])\s+")
_LEAD = re.compile(
    r"^(?:(?:it|this|that|they)\s+(?:is|was|are|will be)\s+)?(?:(?:on|the|an?)\s+)?", re.IGNORECASE
)
_EXACT = 1e-9


def final_answer(reply: str) -> str:
    """The answer that a reply ends on, without markdown, quotes and full stop.

    It stands after the last "Answer:" or "answer is"; where neither is found it is the last line. A list that
    goes on over several lines is kept whole. Empty where the reply says nothing.
    """
    text = _LATEX.sub(r"\1", reply).replace("$", "")
    marks = list(_MARKED.finditer(text))
    for mark in reversed(marks):
        if after := _undressed(text[mark.end() :]):
            return _undressed(after if _ITEM_MARK.match(after) else after.splitlines()[0])
    lines = [line for line in map(_undressed, text.splitlines()) if line]
    return lines[-1] if lines else ""


def is_right(reply: str, answer: str) -> bool:
    """Whether a reply's final answer is the expected one.

    Numbers compare as numbers, whatever words stand beside a single one (1,200 g = 1200.0); words without
    capitals, article and full stop; lists item by item, in their order.
    """
    said = final_answer(reply)
    if (wanted := _number(answer)) is not None:
        found = _number(said)
        return found is not None and math.isclose(found, wanted, rel_tol=_EXACT, abs_tol=_EXACT)
    return bool(said) and _items(said) == _items(answer)


def _undressed(text: str) -> str:
    """The text without dress at both ends, and without the marks that end a sentence."""
    before = None
    while before != text:
        before, text = text, text.strip(_DRESS).rstrip(_ENDS)
    return text


def _number(text: str) -> float | None:
    """The one number of a text; None where there is none, or more than one, or it ends a word, as in B12."""
    found = list(_NUMBER.finditer(text))
    if len(found) != 1 or text[: found[0].start()][-1:].isalpha():
        return None
    return float(found[0].group().replace(",", "").replace("\u2212", "-"))


def _items(text: str) -> list[str]:
    """The parts of a list, or a list of one."""
    return [item for item in map(_word, _BETWEEN.split(text.strip())) if item]


def _word(text: str) -> str:
    return " ".join(_LEAD.sub("", _undressed(_ITEM_MARK.sub("", text.strip()))).casefold().split())
