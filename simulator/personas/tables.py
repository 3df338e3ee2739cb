"""The tables of a persona file: the types of their values, and what is said of a wrong one.

Every table is a pydantic model with the keys of the TOML file. A mistake becomes one line that names the key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

_WRONG_KEY = "wrong_key"
_EXPECTED = {
    "string_type": "must be a text",
    "string_too_short": "must be a text that is not empty",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "frozen_set_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "too_short": "must not be empty",
}
"""What is said of pydantic's types of errors where its own words name Python's types."""


class PersonaError(ValueError):
    """A persona file cannot be used: one line names the key, what was expected and what came."""


class Table(BaseModel):
    """A table of the file; a key that it does not have is refused, with the nearest one as a hint."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:  # noqa: ANN401 - TOML holds anything
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for key in value if isinstance(value, dict) else ():
            if key not in known:
                raise wrong(key, f"is not known: {nearest(key, known)}")
        return value


def wrong(key: str, expected: str) -> PydanticCustomError:
    """The error of a table's validator that one of its keys has a wrong value."""
    return PydanticCustomError(_WRONG_KEY, "{key} {expected}", {"key": key, "expected": expected})


def nearest(key: str, known: Collection[str]) -> str:
    """A hint for a key that is not known."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known))}"


def check_keys(place: str, keys: Collection[str], known: Collection[str]) -> None:
    """Refuse a key of a table whose keys are names from another part of the file.

    Raises:
        PersonaError: one is not known; the message gives the nearest known one.
    """
    for key in keys:
        if key not in known:
            raise PersonaError(f"{place}.{key} is not known: {nearest(key, known)}")


def check_names(place: str, names: Collection[str], known: Collection[str]) -> None:
    """Refuse a list with a name that another part of the file lacks.

    Raises:
        PersonaError: there is one.
    """
    if unknown := sorted(set(names) - set(known)):
        raise PersonaError(f"{place} must be a list of names out of {', '.join(known)}, got {unknown}")


def as_persona_error(error: ValidationError) -> PersonaError:
    """The first mistake that pydantic found, in one line."""
    first = error.errors(include_url=False)[0]
    place = ""
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else str(step)
    if first["type"] == "missing":
        return PersonaError(f"{place} is missing")
    if first["type"] == _WRONG_KEY:
        return PersonaError(f"{place}.{first['msg']}" if place else first["msg"])
    expected = _EXPECTED.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    came = "" if isinstance(first["input"], dict) else f", got {first['input']!r}"
    return PersonaError(f"{place} {expected.replace('Input should', 'must')}{came}")


def _compiled(pattern: object) -> re.Pattern[str]:
    """A regular expression that matches no empty text; capitals do not count."""
    if not isinstance(pattern, str):
        raise ValueError("must be a regular expression")  # noqa: TRY004 - pydantic takes ValueError
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"must be made of regular expressions ({pattern!r}: {error})") from None
    if compiled.search(""):
        raise ValueError(f"must be made of regular expressions that match no empty text ({pattern!r} does)")
    return compiled


def _all_compiled(patterns: object) -> re.Pattern[str] | None:
    """A list of regular expressions as one; None for an empty list."""
    if not isinstance(patterns, list):
        raise ValueError("must be a list of regular expressions")  # noqa: TRY004 - as above
    for each in patterns:
        _compiled(each)
    return _compiled("|".join(f"(?:{each})" for each in patterns)) if patterns else None


def _checked_pattern(pattern: str) -> str:
    _compiled(pattern)
    return pattern


Text = Annotated[str, Field(min_length=1)]
Texts = tuple[Text, ...]
SomeTexts = Annotated[Texts, Field(min_length=1)]
"""At least one text."""
PatternText = Annotated[Text, AfterValidator(_checked_pattern)]
"""A regular expression as a text."""
Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]
Patterns = Annotated[re.Pattern[str] | None, BeforeValidator(_all_compiled)]
"""A list of regular expressions, as one that matches what any of them does; None for an empty list."""
Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
"""A probability."""
Weight = Annotated[float, Field(strict=True, ge=-1, le=1)]
"""What is added to a probability."""
Points = Annotated[float, Field(strict=True, ge=-1000, le=1000)]
"""What is added to the suspicion of a target."""
