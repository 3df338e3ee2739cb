"""Counting letters and sorting words."""

from __future__ import annotations

import re
from fractions import Fraction

from ollama_utils.simulator.personas.solution import Solution, number_solution

_COUNTING = re.compile(r"\b(?:how many|how often|count|number of)\b", re.IGNORECASE)
_LETTER = re.compile(
    r"\b(?:letter|character)s?\s+[\"'\u201c\u2018]?([a-z])\b|"
    r"[\"'\u201c\u2018]([a-z])[\"'\u201d\u2019]|"
    r"\b([a-z])['\u2019]s\b(?=.*\b(?:in|does|are|has|contain)\b)|\bevery\s+([a-z])\s+in\b",
    re.IGNORECASE,
)
_SORTS = {"vowel": set("aeiou"), "consonant": set("bcdfghjklmnpqrstvwxyz")}
_SORT = re.compile(r"\b(vowel|consonant)s?\b", re.IGNORECASE)
_ANY_LETTER = re.compile(
    r"\b(?:how many|number of|count (?:all )?(?:the )?)\s*(?:letters|characters)\b", re.IGNORECASE
)
_QUOTED = re.compile(
    r"[\"\u201c\u2018]([^\"\u201c\u201d\u2018\u2019]{2,})[\"\u201d\u2019]|(?<!\w)'([^']{2,})'(?!\w)"
)
_NAMED = re.compile(
    r"\b(?:word|name|noun|verb|adjective|town|city|country)\s+(?:of\s+)?(?!(?:contain|have|has|the|is)\b)([a-z]{2,})\b",
    re.IGNORECASE,
)
_INSIDE = re.compile(r"\b(?:in|of|does)\s+([a-z]{3,})(?:\s+(?:have|contain))?\s*[?.]?\s*$", re.IGNORECASE)

_ITEM = r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*"
_LIST = re.compile(rf"({_ITEM}(?:,\s+{_ITEM})+,?\s+(?:and|or)\s+{_ITEM}|{_ITEM}(?:,\s+{_ITEM}){{2,}})")
_ALPHABET = re.compile(
    r"\balphabet|\bdictionary\b|\ba (?:to|through) z\b|\bz to a\b|\bphone ?book\b", re.IGNORECASE
)
_LENGTH = re.compile(r"\blength\b|\bshortest\b|\blongest\b|\bhow long\b|\bnumber of letters\b", re.IGNORECASE)
_BACKWARDS = re.compile(
    r"\breverse|\bbackwards?\b|\bz to a\b|\bdescending\b|\blongest (?:word )?first\b|"
    r"\bfrom (?:the )?longest\b|\blongest to\b",
    re.IGNORECASE,
)
_PLACES = {"first": 0, "second": 1, "third": 2, "last": -1}
_PLACE = re.compile(r"\bwhich\b[^:.?]*?\b(first|second|third|last)\b", re.IGNORECASE)


def solve_letters(question: str) -> Solution | None:
    """How often a letter, or a sort of letters, stands in a word or phrase."""
    if not _COUNTING.search(question):
        return None
    text = _text_in(question)
    wanted = _wanted(question)
    if not text or wanted is None:
        return None
    count = Fraction(sum(letter in wanted for letter in text.lower()))
    return number_solution(count, [count + 1, count - 1, count + 2])


def _wanted(question: str) -> set[str] | None:
    """The letters that are counted."""
    if found := _SORT.search(question):
        return _SORTS[found[1].lower()]
    if found := _LETTER.search(question):
        return {next(filter(None, found.groups())).lower()}
    return set("abcdefghijklmnopqrstuvwxyz") if _ANY_LETTER.search(question) else None


def _text_in(question: str) -> str:
    """What is looked at: what is quoted, or named as a word, or comes last."""
    if quoted := [next(filter(None, found)) for found in _QUOTED.findall(question)]:
        return str(max(quoted, key=len))
    for pattern in (_NAMED, _INSIDE):
        if found := pattern.search(question):
            return found[1]
    return ""


def solve_sorting(question: str) -> Solution | None:
    """Words in the order that is asked for, or the one in a place of it."""
    by_length = bool(_LENGTH.search(question))
    if not by_length and not _ALPHABET.search(question):
        return None
    lists = [re.split(r",\s+(?:and\s+|or\s+)?|\s+(?:and|or)\s+", found) for found in _LIST.findall(question)]
    if not lists:
        return None
    items = max(lists, key=len)
    key = len if by_length else str.casefold
    ordered = sorted(items, key=key, reverse=bool(_BACKWARDS.search(question)))
    if found := _PLACE.search(question):
        place = ordered[_PLACES[found[1].lower()]]
        return Solution(place, tuple(item for item in ordered if item != place))
    return Solution(", ".join(ordered), _misplaced(ordered, items))


def _misplaced(ordered: list[str], given: list[str]) -> tuple[str, ...]:
    """The orders with two neighbours swapped, and the one that was given."""
    swapped = [
        [*ordered[:place], ordered[place + 1], ordered[place], *ordered[place + 2 :]]
        for place in range(len(ordered) - 1)
    ]
    wrong = dict.fromkeys(", ".join(each) for each in [*swapped, given])
    return tuple(each for each in wrong if each != ", ".join(ordered))
