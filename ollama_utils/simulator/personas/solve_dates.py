"""Weekdays and lengths of time on the calendar."""

from __future__ import annotations

import calendar
import re
from datetime import date
from fractions import Fraction

from ollama_utils.simulator.personas.solution import NUMBER, Solution, in_digits, number_solution

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
