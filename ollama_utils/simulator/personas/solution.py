"""What a problem comes to, and the mistakes that are easily made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

_TEENS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: value for value, word in enumerate(_TEENS.split())} | {
    word: value * 10 for value, word in enumerate(_TENS.split(), 2)
}
_WORD = re.compile(
    rf"\b(?:(?:(?P<count>{'|'.join(_WORDS)}|an?)\s+)?(?P<group>dozen|hundred)|(?P<word>{'|'.join(_WORDS)}))\b",
    re.IGNORECASE,
)
_GROUPS = {"dozen": 12, "hundred": 100}
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_DIGITS = 4
NUMBER = r"(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)"
"""A number in digits, as `in_digits` leaves it."""


@dataclass(frozen=True)
class Solution:
    """A right answer and wrong ones, at least one."""

    answer: str
    wrong: tuple[str, ...]


def in_digits(text: str) -> str:
    """A text with its numbers in plain digits: `two`, `a dozen` and `1,200` as `2`, `12` and `1200`."""
    return _WORD.sub(_digits, _THOUSANDS.sub("", text))


def _digits(found: re.Match[str]) -> str:
    if found["word"]:
        return str(_WORDS[found["word"].lower()])
    return str(_WORDS.get((found["count"] or "").lower(), 1) * _GROUPS[found["group"].lower()])


def shown(value: Fraction) -> str:
    """A number as people write it, with at most four digits after the point."""
    if value.denominator == 1:
        return str(value.numerator)
    rounded = round(Decimal(value.numerator) / Decimal(value.denominator), _DIGITS)
    return f"{rounded:f}".rstrip("0").rstrip(".")


def number_solution(value: Fraction, slips: Iterable[Fraction]) -> Solution:
    """The solution whose answer is a number; slips that are below 0, or the number itself, do not count."""
    answer = shown(value)
    wrong = dict.fromkeys(shown(slip) for slip in slips if slip >= 0)
    return Solution(answer, tuple(slip for slip in wrong if slip != answer) or (shown(value + 1),))
