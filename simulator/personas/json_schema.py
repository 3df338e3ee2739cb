"""Replies in JSON: values in the shape that a request's `format` asks for.

Played are the keywords that schemas of pydantic's models and of mutagym's own requests are made of: `type`,
`enum`, `const`, `properties`, `required`, `additionalProperties`, `items`, `anyOf`, `oneOf`, `$ref`, bounds
of numbers, lengths of texts and lists, and the formats of dates and UUIDs. A keyword that would change what
may be written, and that is not played, is refused; any other has no effect, as in the grammars behind Ollama.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Any, TypeVar

T = TypeVar("T")

Schema = Mapping[str, Any] | bool

_NOT_PLAYED = ("allOf", "multipleOf", "not", "pattern", "patternProperties", "prefixItems", "uniqueItems")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
"""The keywords by which a type is known where a schema names none."""
_FORMATS = {
    "date": "2025-01-01",
    "time": "12:00:00Z",
    "date-time": "2025-01-01T12:00:00Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_NOTHING = object()
"""No wish: any value will do."""
_NO_REFS: frozenset[str] = frozenset()
_RESPONSE = "response"
_MOST_ITEMS = 1024
_MOST_CHARACTERS = 100_000
_MOST_WORK = 2**20
_WORK_A_SCHEMA = 16
"""In the unit of `_MOST_WORK`, which is a keyword looked at or a character written: about a microsecond."""


class SchemaError(ValueError):
    """No value can be written for a schema; the message says why."""


def values_to_json(values: Mapping[str, Any], schema: object) -> str:
    """The values that a schema asks for as JSON; what it asks for beyond them is filled in.

    Args:
        values: by property.
        schema: a JSON schema; one that names no properties, and anything else, takes all values.

    Raises:
        SchemaError: no value was found for the schema.
    """
    if not isinstance(schema, dict):
        return json.dumps(dict(values))
    return json.dumps(_written(dict(values), schema, None))


def text_to_json(text: str, schema: object) -> str:
    """A text as JSON: in the first place for a free text that the schema has, or in `response`.

    Raises:
        SchemaError: no value was found for the schema.
    """
    if not isinstance(schema, dict):
        return json.dumps({_RESPONSE: text})
    return json.dumps(_written(_NOTHING, schema, text))


def _written(wanted: object, schema: Mapping[str, Any], text: str | None) -> object:
    try:
        return _Writer(schema, text).fit(wanted, schema, _NO_REFS)
    except RecursionError:
        raise SchemaError("the schema has no end") from None


class _TooMuchError(SchemaError):
    """No other option is tried."""


class _Writer:
    """Writes a value that a schema asks for.

    A definition is not entered again inside itself without a wanted value to follow, so that a schema
    of nested lists or optional children comes to an end. One that asks for too much is given up: a few
    definitions that name each other twice ask for billions of values.

    Args:
        root: the whole schema, in which references are read.
        text: what the first free text is to be; None for none.
    """

    def __init__(self, root: Schema, text: str | None) -> None:
        self._root = root
        self._text = text
        self._work_left = _MOST_WORK

    def fit(self, wanted: object, schema: Schema, refs: frozenset[str]) -> object:
        """The value under a schema nearest to the wanted one; `refs` are the definitions it stands in."""
        self._spend(_WORK_A_SCHEMA)
        if not isinstance(schema, dict):
            if schema is False:
                raise SchemaError("the schema allows no value at all")
            schema = {}
        self._spend(len(schema) + sum(map(len, _gone_through(schema))))
        for key in _NOT_PLAYED:
            if key in schema:
                raise SchemaError(f"the simulator does not play {key!r}")
        if isinstance(ref := schema.get("$ref"), str):
            return self._referred(wanted, ref, schema, refs)
        for key in ("anyOf", "oneOf"):
            if options := _part(schema, key, list):
                bare = {name: item for name, item in schema.items() if name != key}
                return self._first_that_fits(wanted, options, bare, refs)
        if "const" in schema:
            return self._written_out(schema["const"])
        if allowed := _part(schema, "enum", list):
            return self._written_out(next((value for value in allowed if _same(value, wanted)), allowed[0]))
        return self._typed(wanted, schema, refs)

    def _referred(self, wanted: object, ref: str, schema: Mapping[str, Any], refs: frozenset[str]) -> object:
        """The value under a definition, with what stands beside the reference."""
        if ref in refs:
            raise SchemaError(f"{ref!r} stands in itself without an end")
        rest = {name: item for name, item in schema.items() if name != "$ref"}
        return self.fit(wanted, _merged(_lookup(self._root, ref), rest), refs | {ref})

    def _first_that_fits(
        self, wanted: object, options: list[Schema], bare: Mapping[str, Any], refs: frozenset[str]
    ) -> object:
        """The first option's value that leaves the wish as it is, else the first option's at all."""
        found: list[tuple[object, str | None]] = []
        before, why = self._text, None
        for option in options:
            self._text = before
            try:
                value = self.fit(wanted, _merged(bare, option), refs)
            except _TooMuchError:
                raise
            except SchemaError as error:
                why = why or error
                continue
            found.append((value, self._text))
        if not found:
            raise SchemaError(f"no option fits among {shortened(options)}: {why}")
        value, self._text = next((each for each in found if _same(each[0], wanted)), found[0])
        return value

    def _typed(self, wanted: object, schema: Mapping[str, Any], refs: frozenset[str]) -> object:
        named = _types(schema)
        if not named:
            return self._free_text(schema) if wanted is _NOTHING else wanted
        kind = next((name for name in named if _has_type(wanted, name)), None)
        if kind is None:
            kind = "string" if self._text is not None and "string" in named else named[0]
        if kind == "object":
            return self._object(wanted if isinstance(wanted, dict) else None, schema, refs)
        if kind == "array":
            return self._array(wanted if isinstance(wanted, list) else None, schema, refs)
        if kind == "string":
            return self._string(wanted if isinstance(wanted, str) else None, schema)
        if kind in {"integer", "number"}:
            is_number = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
            return _nearest_number(wanted if is_number else 0, schema, whole=kind == "integer")  # type: ignore[arg-type] # a number
        return (wanted if isinstance(wanted, bool) else False) if kind == "boolean" else None

    def _string(self, wanted: str | None, schema: Mapping[str, Any]) -> str:
        sample = _FORMATS.get(_part(schema, "format", str))
        if sample is not None:
            return sample
        return self._free_text(schema) if wanted is None else self._sized(wanted, schema)

    def _spend(self, work: int) -> None:
        """Count some work.

        Raises:
            _TooMuchError: it is too much altogether.
        """
        self._work_left -= work
        if self._work_left < 0:
            raise _TooMuchError("the schema asks for too much to be written out")

    def _written_out(self, value: object) -> object:
        """A value of the schema's own, whose every copy takes its time."""
        self._spend(len(json.dumps(value)))
        return value

    def _free_text(self, schema: Mapping[str, Any]) -> str:
        """The text, in the first place for one."""
        text, self._text = self._text or "", None
        return self._sized(text, schema)

    def _sized(self, text: str, schema: Mapping[str, Any]) -> str:
        """The text at the length that is allowed."""
        made = _sized(text, schema)
        self._spend(len(made))
        return made

    def _array(
        self, wanted: list[Any] | None, schema: Mapping[str, Any], refs: frozenset[str]
    ) -> list[object]:
        """The wanted items; without a wish those that must be there, and one if it can."""
        least, most = _number(schema, "minItems", 0), _number(schema, "maxItems", math.inf)
        if not least <= min(most, _MOST_ITEMS):
            raise SchemaError(f"no list was found of {least} items, and at most {min(most, _MOST_ITEMS)}")
        count = int(min(max(least, 1 if wanted is None else len(wanted)), most, _MOST_ITEMS))
        made: list[object] = []
        for place in range(count):
            wish = wanted[place] if wanted is not None and place < len(wanted) else _NOTHING
            try:
                made.append(self._inside(wish, schema.get("items", True), refs))
            except _TooMuchError:
                raise
            except SchemaError:
                if place < least:
                    raise
                break
        return made

    def _object(
        self, wanted: dict[str, Any] | None, schema: Mapping[str, Any], refs: frozenset[str]
    ) -> dict[str, object]:
        """The properties that are named, with what is wanted of them; all that is wanted if none is named."""
        named, rest = _part(schema, "properties", dict), schema.get("additionalProperties", True)
        required = dict.fromkeys(name for name in _part(schema, "required", list) if isinstance(name, str))
        names = dict.fromkeys([*named, *required])
        if not names and rest is not False:
            alone = [_RESPONSE] if self._text is not None else []
            names = dict.fromkeys(alone if wanted is None else wanted)
        made = {}
        for name in names:
            wish = _NOTHING if wanted is None or name not in wanted else wanted[name]
            try:
                made[name] = self._inside(wish, named.get(name, rest), refs)
            except _TooMuchError:
                raise
            except SchemaError:
                if name in required:
                    raise
        return made

    def _inside(self, wish: object, schema: Schema, refs: frozenset[str]) -> object:
        """A value inside another; where nothing fits, the text is still there for others."""
        before = self._text
        try:
            return self.fit(wish, schema, refs if wish is _NOTHING else _NO_REFS)
        except SchemaError:
            self._text = before
            raise


def _gone_through(schema: Mapping[str, Any]) -> list[list[Any] | str]:
    """The keywords that are gone through from end to end."""
    return [
        part
        for key in ("enum", "required", "type", "$ref")
        if isinstance(part := schema.get(key), (list, str))
    ]


def _part(schema: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """A keyword's value where it is of its kind, else an empty one."""
    found = schema.get(key)
    return found if isinstance(found, kind) else kind()


def _number(schema: Mapping[str, Any], key: str, default: float) -> float:
    """A keyword's number, or the default without one."""
    found = schema.get(key)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else default


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema allows, that of its other keywords where it names none; [] for any."""
    named = schema.get("type")
    found = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    known = [name for name in found if isinstance(name, str) and name in _PYTHON_TYPES]
    return known or [name for name, keys in _KEYWORDS.items() if any(key in schema for key in keys)][:1]


def _has_type(value: object, name: str) -> bool:
    """Whether a JSON value is of a JSON schema's type."""
    if isinstance(value, bool) or not isinstance(value, _PYTHON_TYPES[name]):
        return isinstance(value, bool) and name == "boolean"
    return name != "integer" or float(value).is_integer()  # type: ignore[arg-type] # a number


def _lookup(root: Schema, ref: str) -> Schema:
    """What a reference such as `#/$defs/node` stands for."""
    found: Any = root
    for step in filter(None, ref.removeprefix("#").split("/")):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    if not ref.startswith("#") or not isinstance(found, (dict, bool)):
        raise SchemaError(f"$ref {ref!r} leads nowhere in the schema")
    return found


def _merged(first: Schema, second: Schema) -> Schema:
    """Both schemas in one; of keywords that both have, the second's count."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second if first is True else first if second is True else False
    return {**first, **second}


def _same(value: object, wanted: object) -> bool:
    """Whether a JSON value is the wanted one; unlike in Python, true is not 1."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _sized(text: str, schema: Mapping[str, Any]) -> str:
    """The text, cut or filled up to the length that is allowed."""
    least = _number(schema, "minLength", 0)
    most = _number(schema, "maxLength", math.inf)
    if not least <= min(most, _MOST_CHARACTERS):
        raise SchemaError(
            f"no text was found of {least} characters, and at most {min(most, _MOST_CHARACTERS)}"
        )
    return text[: int(min(most, len(text)))].ljust(int(least), "x")


def _nearest_number(wanted: float, schema: Mapping[str, Any], *, whole: bool) -> float:
    """The number within the bounds of a schema that is nearest to the wanted one."""
    low, above = _number(schema, "minimum", -math.inf), _number(schema, "exclusiveMinimum", -math.inf)
    high, below = _number(schema, "maximum", math.inf), _number(schema, "exclusiveMaximum", math.inf)
    least, most = max(low, above), min(high, below)
    anchors = [wanted, *(bound for bound in (least, most, (least + most) / 2) if math.isfinite(bound))]
    tries = [*anchors, *(round(anchor) + move for anchor in anchors for move in (-1, 0, 1))]
    numbers = [round(each) if float(each).is_integer() else each for each in tries]
    fitting = [
        number
        for number in numbers
        if low <= number <= high and above < number < below and (not whole or isinstance(number, int))
    ]
    if not fitting:
        raise SchemaError(f"no number was found within the bounds of {shortened(dict(schema))}")
    return min(fitting, key=lambda each: abs(each - wanted))
