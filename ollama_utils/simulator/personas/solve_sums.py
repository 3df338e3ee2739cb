"""Short stories with numbers, told in the order in which things happen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from ollama_utils.simulator.personas.solution import NUMBER, Solution, in_digits, number_solution

_SENTENCES = re.compile(r"(?<=[.?!])\s+")
_CLAUSES = re.compile(r"[.?!;:](?=\s|$)|,\s|\b(?:and|then|but|before|while)\b", re.IGNORECASE)
_ASKS = re.compile(
    r"\bhow (?:many|much|far|old|long)\b|\bwhat (?:is|are|does|will)\b|\bwhat's\b", re.IGNORECASE
)
_NUMBERS = re.compile(NUMBER)
_NO_COUNT = re.compile(
    r"\b(?:(?:the|those|these|all)\s+2|(?:each|every|which|this|that)\s+1)\b", re.IGNORECASE
)

_LESS = re.compile(
    r"\b(?:giv(?:e|es|ing)|gave|given away|los(?:e|es|t)|eat|eats|ate|eaten|sell|sells|sold|us(?:e|es|ed)|"
    r"spends?|spent|breaks?|broke|broken|leaves?|left|gets? off|got off|takes? (?:away|out|off)|took|taken|"
    r"remove[sd]?|donate[sd]?|lends?|lent|drinks?|drank|drunk|pour(?:s|ed)?|throws?|threw|thrown|cuts? off|"
    r"burst|fl(?:y|ew) away|drop(?:s|ped)?|return(?:s|ed)?|go(?:es)? home|went home|melt(?:s|ed)?|"
    r"wilt(?:s|ed)?|cancel(?:s|led)?|discount|reduced|fewer|less|off|hands? out|younger|cheaper|ties|tied|"
    r"borrow(?:s|ed)?)\b",
    re.IGNORECASE,
)
_GAIN = re.compile(
    r"\b(?:gets?|got|finds?|found|buys?|bought|bakes?|adds?|picks?|makes?|receives?|earns?|grows?|joins?|"
    r"com(?:e|es)|arrives?|runs? in|rains|brings?)\b(?!\s+off\b)",
    re.IGNORECASE,
)
_EACH = re.compile(
    r"\b(?:each|every|per|apiece|times)\b|"
    r"\ban?\s+(?:day|week|month|year|hour|minute|night|morning|evening|kilo|kilogram|metre|piece)\b",
    re.IGNORECASE,
)
_RATE = re.compile(r"(?:\A\s*an?|\b(?:each|every|per|one|an?))\s+([^\W\d_]+)", re.IGNORECASE)
_GROUPS = re.compile(
    rf"({NUMBER})(?:\s+[^\W\d_]+){{1,2}}\s+(?:of|with|that hold)\s+({NUMBER})", re.IGNORECASE
)
_SHARED = re.compile(
    r"\b(?:shared?|shares|splits?|divide[sd]?|among|equally|evenly)\b|"
    r"\b(?:into|in)\s+(?:[^\W\d_]+\s+)?[^\W\d_]+\s+of\s+(?=\d)|"
    r"\b(?:bag|box|tray|team|group|table|packet|vase|row|bundle|van|boat|carton)s?\s+"
    r"(?:holds?|takes?|seats?|fits?)\b",
    re.IGNORECASE,
)
_PAYS = re.compile(r"\b(?:pays?|paid|paying|hands over)\b", re.IGNORECASE)
_DIFFERENCE = re.compile(
    r"\bhow (?:many|much) (?:more|fewer|less|further|farther|longer|older|taller|heavier)\b|\bdifference\b|"
    r"\bhow (?:many|much)\b.*\bneeds?\b|\bstill (?:needs?|missing|to go|have to|has to)\b",
    re.IGNORECASE,
)
_AVERAGE = re.compile(r"\b(?:average|mean)\b", re.IGNORECASE)
_TIMES = {"twice": 2, "double": 2, "triple": 3}
_FACTOR = re.compile(r"\b(?:(twice|double|triple)(\s+as\b)?|half (?:of|the|as|are|is))", re.IGNORECASE)
_PAIR = 2


@dataclass
class _Tally:
    """What a story has come to so far."""

    total: Fraction | None = None
    amounts: list[Fraction] = field(default_factory=list)
    """Every amount as it came, for questions about a difference."""
    rates: set[str] = field(default_factory=set)
    """The things of which the first amount is for one: `hour` in `11 euros per hour`."""
    losing: bool = False
    """Whether the clause before told of a loss: `and 2 for a cake` goes on with it."""

    def add(self, amount: Fraction) -> None:
        self.total = amount if self.total is None else self.total + amount
        self.amounts.append(abs(amount))

    def scale(self, factor: Fraction) -> None:
        if self.total is not None:
            self.total *= factor
            self.amounts[-1] *= factor


def solve_sums(question: str) -> Solution | None:
    """What a story with numbers comes to."""
    text = _NO_COUNT.sub("them", in_digits(question))
    if len(_NUMBERS.findall(text)) + len(_FACTOR.findall(text)) < _PAIR or not _ASKS.search(text):
        return None
    tally = _Tally()
    try:
        for sentence in _SENTENCES.split(text):
            asks = bool(_ASKS.search(sentence))
            for clause in _CLAUSES.split(sentence):
                _hear(tally, clause, asks=asks)
            tally.losing = False
    except ZeroDivisionError:
        return None
    value = _asked(tally, text)
    return None if value is None else number_solution(value, [value + 1, value - 1, value + 10, value - 10])


def _hear(tally: _Tally, clause: str, *, asks: bool) -> None:
    """Take in one clause."""
    begins = tally.total is None
    tally.losing = bool(_LESS.search(clause)) or (tally.losing and not _GAIN.search(clause))
    if (factor := _FACTOR.search(clause)) and not begins:
        _multiply(tally, factor)
    if numbers := [Fraction(found) for found in _NUMBERS.findall(clause)]:
        _count(tally, clause, numbers, asks=asks)
    if begins:
        tally.losing = False
        tally.rates |= {found.lower() for found in _RATE.findall(clause)} if numbers else set()


def _multiply(tally: _Tally, factor: re.Match[str]) -> None:
    """`half of them`: the other half is gone; `twice as many`: those come on top; `double`: all of it."""
    if not factor[1]:
        tally.scale(Fraction(1, 2))
    elif factor[2]:
        tally.add(tally.amounts[-1] * _TIMES[factor[1].lower()])
    else:
        tally.scale(Fraction(_TIMES[factor[1].lower()]))


def _count(tally: _Tally, clause: str, numbers: list[Fraction], *, asks: bool) -> None:
    """Put the numbers of a clause to what there is."""
    grouped = bool(_GROUPS.search(clause))
    amount, joined = numbers[0], len(numbers) >= _PAIR
    if joined and _SHARED.search(clause) and not grouped:
        amount = max(numbers[:_PAIR]) / min(numbers[:_PAIR])
    elif joined and (grouped or asks or _EACH.search(clause)):
        amount = numbers[0] * numbers[1]
    elif joined:
        amount, joined = sum(numbers, Fraction(0)), False
    if tally.total is None:
        tally.add(amount)
    elif _is_counted(clause, tally.rates):
        tally.scale(amount)
        tally.rates.clear()
    elif joined:
        tally.add(-amount if tally.losing else amount)
    elif _PAYS.search(clause):
        tally.total = amount - tally.total
    elif _SHARED.search(clause):
        tally.scale(1 / amount)
    elif _EACH.search(clause) or (asks and not tally.losing):
        tally.scale(amount)
    else:
        tally.add(-amount if tally.losing else amount)


def _is_counted(clause: str, things: set[str]) -> bool:
    """Whether a clause says how many there are of a thing that has a rate."""
    return any(
        re.search(rf"\d(?:\s+[^\W\d_]+)?\s+{thing}(?:e?s)?\b", clause, re.IGNORECASE) for thing in things
    )


def _asked(tally: _Tally, text: str) -> Fraction | None:
    if tally.total is None:
        return None
    if _DIFFERENCE.search(text) and len(tally.amounts) > 1:
        return abs(tally.amounts[0] - sum(tally.amounts[1:]))
    if _AVERAGE.search(text):
        return tally.total / len(tally.amounts)
    return tally.total if tally.total >= 0 else None
