"""Everyday problems worked out by code: what the simulated solver knows before it decides to err.

Each kind of problem (sums in short stories, letters in words, words in order, weekdays and days between
dates, units) has a function that reads a question by patterns and returns the answer, with mistakes that are
easily made, or None for a question of another kind. `solve` tries them in turn.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

_TEENS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBER_WORDS = {word: value for value, word in enumerate(_TEENS.split())} | {
    word: value * 10 for value, word in enumerate(_TENS.split(), 2)
}
_NUMBER_WORD = re.compile(
    rf"\b(?:(?:(?P<count>{'|'.join(_NUMBER_WORDS)}|an?)\s+)?(?P<group>dozen|hundred)|(?P<word>{'|'.join(_NUMBER_WORDS)}))\b",
    re.IGNORECASE,
)
_GROUP_SIZES = {"dozen": 12, "hundred": 100}
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_MOST_DECIMALS = 4
NUMBER = r"(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)"
"""A number in digits, as `in_digits` leaves it."""


@dataclass(frozen=True)
class Solution:
    """A right answer and wrong ones, at least one."""

    answer: str
    wrong: tuple[str, ...]


def in_digits(text: str) -> str:
    """A text with its numbers in plain digits: `two`, `a dozen` and `1,200` as `2`, `12` and `1200`."""
    return _NUMBER_WORD.sub(_as_digits, _THOUSANDS.sub("", text))


def _as_digits(found: re.Match[str]) -> str:
    if found["word"]:
        return str(_NUMBER_WORDS[found["word"].lower()])
    return str(_NUMBER_WORDS.get((found["count"] or "").lower(), 1) * _GROUP_SIZES[found["group"].lower()])


def shown(value: Fraction) -> str:
    """A number as people write it, with at most four digits after the point."""
    if value.denominator == 1:
        return str(value.numerator)
    rounded = round(Decimal(value.numerator) / Decimal(value.denominator), _MOST_DECIMALS)
    return f"{rounded:f}".rstrip("0").rstrip(".")


def number_solution(value: Fraction, slips: Iterable[Fraction]) -> Solution:
    """The solution whose answer is a number; slips that are below 0, or the number itself, do not count."""
    answer = shown(value)
    wrong = dict.fromkeys(shown(slip) for slip in slips if slip >= 0)
    return Solution(answer, tuple(slip for slip in wrong if slip != answer) or (shown(value + 1),))


# ------------------------------------------------------------------------------------------ weekdays and days

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = tuple(calendar.month_name)[1:]
_MONTH = rf"(?:{'|'.join(_MONTHS)})"
_DATE = re.compile(
    rf"\b(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month>{_MONTH})|"
    rf"(?P<month2>{_MONTH})\s+(?:the\s+)?(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?(?!\d))(?:,?\s+(?P<year>\d{{4}})\b)?|"
    r"\b(?P<year3>\d{4})-(?P<month3>\d\d)-(?P<day3>\d\d)\b|"
    r"\bthe\s+(?P<bare>\d{1,2})(?:st|nd|rd|th)\b|\bthe\s+(?P<word>first)\b",
    re.IGNORECASE,
)
_MONTH_ALONE = re.compile(rf"\b({_MONTH})\b(?:\s+(?:of\s+)?(\d{{4}}))?", re.IGNORECASE)
_WEEKDAY = re.compile(rf"\b({'|'.join(_DAYS)})s?\b", re.IGNORECASE)
_ASKS_DAY = re.compile(
    r"\b(?:what|which|on what|on which)\s+(?:week)?day\b|\bday of the week\b|\bweekday\b", re.IGNORECASE
)
_HOW_MANY_DAYS = re.compile(r"\bhow many (?:days|nights)\b|\bnumber of days\b", re.IGNORECASE)
_SPAN = re.compile(rf"({NUMBER})\s+(day|week|fortnight)s?\b", re.IGNORECASE)
_BACK = re.compile(r"\b(?:ago|before|earlier|back)\b", re.IGNORECASE)
_AROUND = {"yesterday": 1, "tomorrow": -1}
_SPANS = {"day": 1, "week": 7, "fortnight": 14}
_ANY_YEAR = 2023
"""The year of dates without one: not a leap year."""
_ANY_MONTH = 5
"""One of 31 days, for dates that are a day alone."""


def solve_dates(question: str) -> Solution | None:
    """A weekday, the days between two dates, or the days of a month."""
    text = in_digits(question)
    try:
        dates = _dates(text)
    except ValueError:  # 30 February
        return None
    if _ASKS_DAY.search(text):
        return _weekday(text, dates)
    if _HOW_MANY_DAYS.search(text):
        return _days(text, dates)
    return None


def _weekday(text: str, dates: list[date]) -> Solution | None:
    named = _WEEKDAY.search(text)
    if named is None:
        return _day_solution(dates[0].weekday()) if len(dates) == 1 and _year_known(text) else None
    day = [each.lower() for each in _DAYS].index(named[1].lower())
    if len(dates) > 1:
        # The date that stands nearer to the weekday is the one that falls on it.
        known, asked = _known_first(text, dates, named.start())
        return _day_solution(day + (asked - known).days)
    spans = _SPAN.findall(text)
    if not spans:
        return None
    shift = sum(int(float(count)) * _SPANS[unit.lower()] for count, unit in spans)
    start = day + next((move for word, move in _AROUND.items() if f"{word} " in text.lower()), 0)
    return _day_solution(start - shift if _BACK.search(text) else start + shift)


def _known_first(text: str, dates: list[date], place: int) -> tuple[date, date]:
    distances = [abs(found.start() - place) for found in _DATE.finditer(text)]
    return (dates[0], dates[1]) if distances[0] <= distances[1] else (dates[1], dates[0])


def _days(text: str, dates: list[date]) -> Solution | None:
    if len(dates) == 2:  # noqa: PLR2004 - from one to the other
        count = abs((dates[1] - dates[0]).days)
        if re.search(
            r"\b(?:inclusive|including both|both (?:days )?(?:included|count))", text, re.IGNORECASE
        ):
            count += 1
        return number_solution(Fraction(count), [Fraction(count + move) for move in (1, -1, 2)])
    months = _MONTH_ALONE.findall(text)
    if dates or not months:
        return None
    length = sum(
        calendar.monthrange(int(year or _ANY_YEAR), _month(name))[1] for name, year in dict.fromkeys(months)
    )
    return number_solution(Fraction(length), [Fraction(length + move) for move in (-1, 1)])


def _day_solution(day: int) -> Solution:
    return Solution(_DAYS[day % 7], tuple(_DAYS[(day + move) % 7] for move in (1, -1, 2)))


def _dates(text: str) -> list[date]:
    """The dates of a text; those that leave out their year, or month, take it from another."""
    found = list(_DATE.finditer(text))
    years = [int(each["year"] or each["year3"]) for each in found if each["year"] or each["year3"]]
    year = years[-1] if years else _ANY_YEAR
    dates = []
    month = next((_month_of(each) for each in found if _month_of(each)), _ANY_MONTH)
    for each in found:
        day = int(each["day"] or each["day2"] or each["day3"] or each["bare"] or 1)
        own = int(each["year"] or each["year3"] or year)
        dates.append(date(own, _month_of(each) or month, day))
    return dates


def _month_of(found: re.Match[str]) -> int:
    if found["month3"]:
        return int(found["month3"])
    name = found["month"] or found["month2"]
    return _month(name) if name else 0


def _month(name: str) -> int:
    return _MONTHS.index(name.capitalize()) + 1


def _year_known(text: str) -> bool:
    return any(found["year"] or found["year3"] for found in _DATE.finditer(text))


# -------------------------------------------------------------------------------------------- sums in stories

_SENTENCES = re.compile(r"(?<=[.?!])\s+")
_CLAUSES = re.compile(r"[.?!;:](?=\s|$)|,\s|\b(?:and|then|but|before|while)\b", re.IGNORECASE)
_ASKS_SUM = re.compile(
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
_NUMBERS_OF_GROUPS = re.compile(
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
_FACTORS = {"twice": 2, "double": 2, "triple": 3}
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
    """Whether the clause before was about a loss: `and 2 for a cake` goes on with it."""

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
    if len(_NUMBERS.findall(text)) + len(_FACTOR.findall(text)) < _PAIR or not _ASKS_SUM.search(text):
        return None
    tally = _Tally()
    try:
        for sentence in _SENTENCES.split(text):
            asks = bool(_ASKS_SUM.search(sentence))
            for clause in _CLAUSES.split(sentence):
                _read_clause(tally, clause, asks=asks)
            tally.losing = False
    except ZeroDivisionError:
        return None
    value = _result(tally, text)
    return None if value is None else number_solution(value, [value + 1, value - 1, value + 10, value - 10])


def _read_clause(tally: _Tally, clause: str, *, asks: bool) -> None:
    """Read one clause into the tally."""
    begins = tally.total is None
    tally.losing = bool(_LESS.search(clause)) or (tally.losing and not _GAIN.search(clause))
    if (factor := _FACTOR.search(clause)) and not begins:
        _multiply(tally, factor)
    if numbers := [Fraction(found) for found in _NUMBERS.findall(clause)]:
        _add_numbers(tally, clause, numbers, asks=asks)
    if begins:
        tally.losing = False
        tally.rates |= {found.lower() for found in _RATE.findall(clause)} if numbers else set()


def _multiply(tally: _Tally, factor: re.Match[str]) -> None:
    """`half of them`: the other half is gone; `twice as many`: those come on top; `double`: all of it."""
    if not factor[1]:
        tally.scale(Fraction(1, 2))
    elif factor[2]:
        tally.add(tally.amounts[-1] * _FACTORS[factor[1].lower()])
    else:
        tally.scale(Fraction(_FACTORS[factor[1].lower()]))


def _add_numbers(tally: _Tally, clause: str, numbers: list[Fraction], *, asks: bool) -> None:
    """Join the numbers of a clause with what there is."""
    grouped = bool(_NUMBERS_OF_GROUPS.search(clause))
    amount, joined = numbers[0], len(numbers) >= _PAIR
    if joined and _SHARED.search(clause) and not grouped:
        amount = max(numbers[:_PAIR]) / min(numbers[:_PAIR])
    elif joined and (grouped or asks or _EACH.search(clause)):
        amount = numbers[0] * numbers[1]
    elif joined:
        amount, joined = sum(numbers, Fraction(0)), False
    if tally.total is None:
        tally.add(amount)
    elif _counts_a_rate(clause, tally.rates):
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


def _counts_a_rate(clause: str, things: set[str]) -> bool:
    """Whether a clause says how many there are of a thing that has a rate."""
    return any(
        re.search(rf"\d(?:\s+[^\W\d_]+)?\s+{thing}(?:e?s)?\b", clause, re.IGNORECASE) for thing in things
    )


def _result(tally: _Tally, text: str) -> Fraction | None:
    if tally.total is None:
        return None
    if _DIFFERENCE.search(text) and len(tally.amounts) > 1:
        return abs(tally.amounts[0] - sum(tally.amounts[1:]))
    if _AVERAGE.search(text):
        return tally.total / len(tally.amounts)
    return tally.total if tally.total >= 0 else None


# ------------------------------------------------------------------------------------------------------ units

_UNITS: dict[str, tuple[str, str]] = {
    # Pattern of its names: what it measures, and how many of the first unit of that sort it is.
    r"millimet(?:re|er)s?|mm": ("length", "0.001"),
    r"centimet(?:re|er)s?|cm": ("length", "0.01"),
    r"kilomet(?:re|er)s?|km": ("length", "1000"),
    r"met(?:re|er)s?|m": ("length", "1"),
    r"inch(?:es)?": ("length", "0.0254"),
    r"feet|foot|ft": ("length", "0.3048"),
    r"yards?": ("length", "0.9144"),
    r"miles?": ("length", "1609.344"),
    r"milligrams?|mg": ("weight", "0.001"),
    r"kilograms?|kilos?|kg": ("weight", "1000"),
    r"tonnes?": ("weight", "1000000"),
    r"grams?|g": ("weight", "1"),
    r"pounds?|lbs?": ("weight", "453.59237"),
    r"ounces?|oz": ("weight", "28.349523125"),
    r"millilit(?:re|er)s?|ml": ("volume", "0.001"),
    r"centilit(?:re|er)s?|cl": ("volume", "0.01"),
    r"decilit(?:re|er)s?|dl": ("volume", "0.1"),
    r"lit(?:re|er)s?|l": ("volume", "1"),
    r"gallons?": ("liquid", "128"),
    r"quarts?": ("liquid", "32"),
    r"pints?": ("liquid", "16"),
    r"cups?": ("liquid", "8"),
    r"tablespoons?": ("liquid", "0.5"),
    r"teaspoons?": ("liquid", "1/6"),
    r"seconds|(?<=\ba )second": ("time", "1"),
    r"minutes?": ("time", "60"),
    r"hours?": ("time", "3600"),
    r"days?": ("time", "86400"),
    r"weeks?": ("time", "604800"),
    r"degrees? (?:fahrenheit)|(?:degrees? )?fahrenheit|\u00b0\s?f": ("heat", "F"),
    r"degrees? (?:celsius)|(?:degrees? )?celsius|\u00b0\s?c": ("heat", "C"),
}
_UNIT_NAMES = "|".join(f"(?P<u{place}>{names})" for place, names in enumerate(_UNITS))
_UNIT_VALUES = tuple(_UNITS.values())
_AMOUNT_AND_UNIT = re.compile(
    rf"(?:(?P<half>half an?\s+)|(?P<quarter>(?:a )?quarter of an?\s+)|(?P<number>{NUMBER})"
    rf"(?P<more>\s+and a half)?[\s-]*|(?P<one>(?:\ban?\s+)))?(?<![^\W\d_])(?:{_UNIT_NAMES})(?!\w)",
    re.IGNORECASE,
)
_ASKS_UNITS = re.compile(
    r"\b(?:how many|how much|how long|how far|how heavy|what|convert|express|write|give|change|turn)\b",
    re.IGNORECASE,
)
_ATTACHED = re.compile(r"(?<=\d)(?=(?:mm|cm|km|m|mg|kg|g|ml|cl|dl|l)\b)", re.IGNORECASE)

Amount = Fraction | None
"""None where a unit is named without a number."""


def solve_units(question: str) -> Solution | None:
    """An amount in another unit of its sort."""
    text = _ATTACHED.sub(" ", in_digits(question))
    if not _ASKS_UNITS.search(text):
        return None
    mentions = [_amount_and_unit(found) for found in _AMOUNT_AND_UNIT.finditer(text)]
    given = [(amount, unit) for amount, unit in mentions if amount is not None]
    known = {unit for _, unit in given}
    asked = [unit for amount, unit in mentions if amount is None and (len(known) > 1 or unit not in known)]
    if not given or not asked or len(re.findall(NUMBER, text)) > len(given):
        return None
    target = asked[-1]
    if {_UNIT_VALUES[unit][0] for unit in known} != {_UNIT_VALUES[target][0]}:
        return None
    value = _converted(given, target)
    return number_solution(value, [value * 10, value / 10, value + 1, value * 100])


def _amount_and_unit(found: re.Match[str]) -> tuple[Amount, int]:
    """The amount and the number of its unit; `a mile` is one only where it is not what is asked for."""
    unit = next(place for place in range(len(_UNIT_VALUES)) if found[f"u{place}"])
    if found["number"]:
        return Fraction(found["number"]) + (Fraction(1, 2) if found["more"] else 0), unit
    if found["half"] or found["quarter"]:
        return Fraction(1, 2 if found["half"] else 4), unit
    return (Fraction(1) if found["one"] else None), unit


def _converted(given: list[tuple[Fraction, int]], target: int) -> Fraction:
    if _UNIT_VALUES[target][0] == "heat":
        degrees = given[0][0]
        return degrees * 9 / 5 + 32 if _UNIT_VALUES[target][1] == "F" else (degrees - 32) * 5 / 9
    whole = sum((amount * Fraction(_UNIT_VALUES[unit][1]) for amount, unit in given), Fraction(0))
    return whole / Fraction(_UNIT_VALUES[target][1])


# ---------------------------------------------------------------------------------------------------- letters

_COUNTING = re.compile(r"\b(?:how many|how often|count|number of)\b", re.IGNORECASE)
_LETTER = re.compile(
    r"\b(?:letter|character)s?\s+[\"'\u201c\u2018]?([a-z])\b|"
    r"[\"'\u201c\u2018]([a-z])[\"'\u201d\u2019]|"
    r"\b([a-z])['\u2019]s\b(?=.*\b(?:in|does|are|has|contain)\b)|\bevery\s+([a-z])\s+in\b",
    re.IGNORECASE,
)
_LETTER_CLASSES = {"vowel": set("aeiou"), "consonant": set("bcdfghjklmnpqrstvwxyz")}
_LETTER_CLASS = re.compile(r"\b(vowel|consonant)s?\b", re.IGNORECASE)
_ANY_LETTER = re.compile(
    r"\b(?:how many|number of|count (?:all )?(?:the )?)\s*(?:letters|characters)\b", re.IGNORECASE
)
_QUOTED = re.compile(
    r"[\"\u201c\u2018]([^\"\u201c\u201d\u2018\u2019]{2,})[\"\u201d\u2019]|(?<!\w)'([^']{2,})'(?!\w)"
)
_NAMED_WORD = re.compile(
    r"\b(?:word|name|noun|verb|adjective|town|city|country)\s+(?:of\s+)?(?!(?:contain|have|has|the|is)\b)([a-z]{2,})\b",
    re.IGNORECASE,
)
_LAST_WORD = re.compile(r"\b(?:in|of|does)\s+([a-z]{3,})(?:\s+(?:have|contain))?\s*[?.]?\s*$", re.IGNORECASE)


def solve_letters(question: str) -> Solution | None:
    """How often a letter, or a sort of letters, stands in a word or phrase."""
    if not _COUNTING.search(question):
        return None
    text = _searched_text(question)
    wanted = _counted_letters(question)
    if not text or wanted is None:
        return None
    count = Fraction(sum(letter in wanted for letter in text.lower()))
    return number_solution(count, [count + 1, count - 1, count + 2])


def _counted_letters(question: str) -> set[str] | None:
    """The letters that are counted."""
    if found := _LETTER_CLASS.search(question):
        return _LETTER_CLASSES[found[1].lower()]
    if found := _LETTER.search(question):
        return {next(filter(None, found.groups())).lower()}
    return set("abcdefghijklmnopqrstuvwxyz") if _ANY_LETTER.search(question) else None


def _searched_text(question: str) -> str:
    """What is looked at: what is quoted, or named as a word, or comes last."""
    if quoted := [next(filter(None, found)) for found in _QUOTED.findall(question)]:
        return str(max(quoted, key=len))
    for pattern in (_NAMED_WORD, _LAST_WORD):
        if found := pattern.search(question):
            return found[1]
    return ""


# --------------------------------------------------------------------------------------------- words in order

_LISTED_WORD = r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*"
_WORD_LIST = re.compile(
    rf"({_LISTED_WORD}(?:,\s+{_LISTED_WORD})+,?\s+(?:and|or)\s+{_LISTED_WORD}|{_LISTED_WORD}(?:,\s+{_LISTED_WORD}){{2,}})"
)
_ALPHABET = re.compile(
    r"\balphabet|\bdictionary\b|\ba (?:to|through) z\b|\bz to a\b|\bphone ?book\b", re.IGNORECASE
)
_LENGTH = re.compile(r"\blength\b|\bshortest\b|\blongest\b|\bhow long\b|\bnumber of letters\b", re.IGNORECASE)
_BACKWARDS = re.compile(
    r"\breverse|\bbackwards?\b|\bz to a\b|\bdescending\b|\blongest (?:word )?first\b|"
    r"\bfrom (?:the )?longest\b|\blongest to\b",
    re.IGNORECASE,
)
_POSITIONS = {"first": 0, "second": 1, "third": 2, "last": -1}
_POSITION = re.compile(r"\bwhich\b[^:.?]*?\b(first|second|third|last)\b", re.IGNORECASE)


def solve_sorting(question: str) -> Solution | None:
    """Words in the order that is asked for, or the one in a place of it."""
    by_length = bool(_LENGTH.search(question))
    if not by_length and not _ALPHABET.search(question):
        return None
    lists = [
        re.split(r",\s+(?:and\s+|or\s+)?|\s+(?:and|or)\s+", found) for found in _WORD_LIST.findall(question)
    ]
    if not lists:
        return None
    items = max(lists, key=len)
    key = len if by_length else str.casefold
    ordered = sorted(items, key=key, reverse=bool(_BACKWARDS.search(question)))
    if found := _POSITION.search(question):
        place = ordered[_POSITIONS[found[1].lower()]]
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


# -------------------------------------------------------------------------------------------------- all kinds

_SOLVERS = {
    "sorting": solve_sorting,
    "letters": solve_letters,
    "calendar": solve_dates,
    "units": solve_units,
    "arithmetic": solve_sums,
}
"""The kinds in the order in which they are tried: a story with numbers is taken for a sum last."""

KINDS = tuple(_SOLVERS)
_MOST_CHARACTERS = 2_000
"""A longer text is no everyday problem."""


@lru_cache(maxsize=8192)
def solve(question: str) -> tuple[str, Solution] | None:
    """The kind of a problem and its solution; None for a text that is none of them."""
    if len(question) > _MOST_CHARACTERS:
        return None
    for kind, solver in _SOLVERS.items():
        if (solution := solver(question)) is not None:
            return kind, solution
    return None
