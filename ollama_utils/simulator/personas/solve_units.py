"""Conversion of units."""

from __future__ import annotations

import re
from fractions import Fraction

from ollama_utils.simulator.personas.solution import NUMBER, Solution, in_digits, number_solution

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
_NAMES = "|".join(f"(?P<u{place}>{names})" for place, names in enumerate(_UNITS))
_VALUES = tuple(_UNITS.values())
_MENTION = re.compile(
    rf"(?:(?P<half>half an?\s+)|(?P<quarter>(?:a )?quarter of an?\s+)|(?P<number>{NUMBER})"
    rf"(?P<more>\s+and a half)?[\s-]*|(?P<one>(?:\ban?\s+)))?(?<![^\W\d_])(?:{_NAMES})(?!\w)",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:how many|how much|how long|how far|how heavy|what|convert|express|write|give|change|turn)\b",
    re.IGNORECASE,
)
_ATTACHED = re.compile(r"(?<=\d)(?=(?:mm|cm|km|m|mg|kg|g|ml|cl|dl|l)\b)", re.IGNORECASE)

Amount = Fraction | None
"""None where a unit is named without a number."""


def solve_units(question: str) -> Solution | None:
    """An amount in another unit of its sort."""
    text = _ATTACHED.sub(" ", in_digits(question))
    if not _ASKS.search(text):
        return None
    mentions = [_mention(found) for found in _MENTION.finditer(text)]
    given = [(amount, unit) for amount, unit in mentions if amount is not None]
    known = {unit for _, unit in given}
    asked = [unit for amount, unit in mentions if amount is None and (len(known) > 1 or unit not in known)]
    if not given or not asked or len(re.findall(NUMBER, text)) > len(given):
        return None
    target = asked[-1]
    if {_VALUES[unit][0] for unit in known} != {_VALUES[target][0]}:
        return None
    value = _converted(given, target)
    return number_solution(value, [value * 10, value / 10, value + 1, value * 100])


def _mention(found: re.Match[str]) -> tuple[Amount, int]:
    """The amount and the number of its unit; `a mile` is one only where it is not what is asked for."""
    unit = next(place for place in range(len(_VALUES)) if found[f"u{place}"])
    if found["number"]:
        return Fraction(found["number"]) + (Fraction(1, 2) if found["more"] else 0), unit
    if found["half"] or found["quarter"]:
        return Fraction(1, 2 if found["half"] else 4), unit
    return (Fraction(1) if found["one"] else None), unit


def _converted(given: list[tuple[Fraction, int]], target: int) -> Fraction:
    if _VALUES[target][0] == "heat":
        degrees = given[0][0]
        return degrees * 9 / 5 + 32 if _VALUES[target][1] == "F" else (degrees - 32) * 5 / 9
    whole = sum((amount * Fraction(_VALUES[unit][1]) for amount, unit in given), Fraction(0))
    return whole / Fraction(_VALUES[target][1])
