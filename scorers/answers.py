"""The final answer in a model's reply, and whether it is the right one."""

from __future__ import annotations

import math
import re
from itertools import islice

_MARKED = re.compile(r"\banswer(?:[ \t]+is\b[ \t]*:?|[*_`]*[ \t]*:)", re.IGNORECASE)
_DRESS = " \t\r\n*_`\"'\u201c\u201d\u2018\u2019"
_ENDS = ".!;,:"
_LATEX = re.compile(r"\\(?:boxed|text)\{([^{}]*)\}")
_NUMBER = re.compile(
    r"(?:[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[-+\u2212]?\.\d+)(?:e[-+]?\d+)?",
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"^(?:st|nd|rd|th)\b", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:,\s*(?:and\s+)?|;|\n|>|\u2192|->|\|)\s*")
_ITEM_MARK = re.compile(r"^(?:[-*\u2022]|\(?\d+[.)])\s+")
_LEAD = re.compile(
    r"^(?:(?:it|this|that|they)\s+(?:is|was|are|will be)\s+)?(?:(?:on|the|an?)\s+)?", re.IGNORECASE
)
_CLAUSE_END = re.compile(r"[,.:;!?\n]")
_DENIED = re.compile(
    r"\b(?:not|never|cannot)\b|n['\u2019]t\b|\u2260|\b(?:minus|negative|than)\s*$", re.IGNORECASE
)
_SIGNS = "%\u2030\u00b0\u20ac\u00a3\u00a5\u20b9\u00a2"
_AFTER = _DRESS + _ENDS + _SIGNS + "()[]{}"
_BEFORE = _AFTER + "#=~\u2248-+\u2022"
_FILLERS = frozenset(
    ("it", "this", "that", "is", "was", "the", "of", "on", "at", "about", "exactly", "roughly")
)
_SPOT = "0"
_EXACT = 1e-9


def final_answer(reply: str) -> str:
    """The answer that a reply ends on, without markdown, quotes and full stop.

    It stands after the last "Answer:" or "answer is"; where neither is found it is the last line. A
    list that goes on over several lines is kept whole. Empty where the reply says nothing.
    """
    text = _plain(reply)
    marks = list(_MARKED.finditer(text))
    for mark in reversed(marks):
        if after := _undressed(text[mark.end() :]):
            return _undressed(after if _ITEM_MARK.match(after) else after.splitlines()[0])
    return next(filter(None, map(_undressed, reversed(text.splitlines()))), "")


def is_right(reply: str, answer: str) -> bool:
    """Whether a reply's final answer is the expected one.

    What is expected says how it compares:

    - One number and no word (1200.0, 75%, €5, 15th): the reply has that one number, and may have
      words beside it (1,200 g), but none before it that denies or moves it (not, minus, more than).
      A sign may be a word or be left out (75 percent, 75), but may not be another sign (75°). A
      dollar sign counts for nothing, for TeX has it around sums.
    - One number and words (15 April, Gate 3, 5 km): the same number and the same words, none more;
      April 15 and the 15th of April are 15 April.
    - Else, as words, without capitals, article and full stop.

    Words compare as lists, item by item, in their order. Whole numbers are the same to the digit
    (the first 15 of a long one), others to nine digits.
    """
    said, wanted = final_answer(reply), _plain(answer)
    number = _number(wanted)
    if number is None:
        return bool(said) and _items(said) == _items(wanted)
    found = _number(said)
    if found is None or not _equal(found, number):
        return False
    signs = {*_SIGNS} & {*wanted}
    if signs and {*_SIGNS} & {*said} - signs:
        return False
    words = _beside(number)
    return _beside(found) == words if any(each for _, each in words) else not _denied(found)


def _plain(text: str) -> str:
    """The text without what TeX has around numbers."""
    return _LATEX.sub(r"\1", text).replace("$", "")


def _undressed(text: str) -> str:
    """The text without dress at both ends, and without the marks that end a sentence."""
    return text.lstrip(_DRESS).rstrip(_DRESS + _ENDS)


def _number(text: str) -> re.Match[str] | None:
    """The one number of a text; None where there are others, or it ends a word, as in B12."""
    found = list(islice(_NUMBER.finditer(text), 2))
    if len(found) != 1 or text[: found[0].start()][-1:].isalpha():
        return None
    return found[0]


def _equal(*numbers: re.Match[str]) -> bool:
    one, other = (float(each.group().replace(",", "").replace("\u2212", "-")) for each in numbers)
    if one.is_integer() and other.is_integer():
        return one == other
    return math.isclose(one, other, rel_tol=_EXACT, abs_tol=_EXACT)


def _beside(number: re.Match[str]) -> list[tuple[bool, list[str]]]:
    """The items of a number's text: whether the number is in it, and its words in their order."""
    after = _ORDINAL.sub("", number.string[number.end() :], count=1)
    # In the number's place stands a digit, the only one that is left.
    spotted = f"{number.string[: number.start()]} {_SPOT} {after}"
    items = filter(None, map(_words, _BETWEEN.split(spotted)))
    return [(_SPOT in words, [word for word in words if word != _SPOT]) for words in items]


def _words(item: str) -> list[str]:
    """Its words without capitals, signs and the points of a.m.; fillers are none."""
    bare = (
        word.lstrip(_BEFORE).rstrip(_AFTER) for word in item.replace(".", "").casefold().split()
    )
    words = [word for word in bare if word and word not in _FILLERS]
    # An article leads to a number and a word; beside a number alone it is a name: A 3.
    return words[1:] if words[2:] and words[0] in {"a", "an"} else words


def _denied(number: re.Match[str]) -> bool:
    """Whether the clause that leads to a number takes it back, or makes another of it."""
    return _DENIED.search(_CLAUSE_END.split(number.string[: number.start()])[-1]) is not None


def _items(text: str) -> list[str]:
    """The parts of a list, or a list of one."""
    parts = [
        _LEAD.sub("", _undressed(_ITEM_MARK.sub("", part.strip())))
        for part in _BETWEEN.split(text.strip())
    ]
    return [" ".join(part.casefold().split()) for part in parts if part]
