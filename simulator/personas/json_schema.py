"""JSON schemas: what their references mean, and whether a value stands under one.

The keywords are those that become rules of the grammar behind Ollama's `format`; others, and keywords of
the wrong type, say nothing.

Texts that match a regular expression, for schemas with a `pattern`.

Replies in JSON: values in the shape that a schema asks for.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

Schema = Mapping[str, Any] | bool
_TYPES: dict[str, tuple[type, ...]] = {
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
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_EXACT = 1e-9
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")


class SchemaError(ValueError):
    """No value can be written for a schema; the message says why."""


def part(schema: Schema, key: str, kind: type[T]) -> T:
    """A keyword's value where it is of its kind, else an empty one."""
    found = schema.get(key) if isinstance(schema, dict) else None
    return found if isinstance(found, kind) else kind()


def number(schema: Schema, key: str, default: float) -> float:
    """A keyword's number, or the default without one."""
    found = schema.get(key) if isinstance(schema, dict) else None
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else default


def types(schema: Schema) -> list[str]:
    """The types that a schema allows, those its other keywords speak of where it names none; [] for any."""
    named = schema.get("type") if isinstance(schema, dict) else None
    found = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    known = [name for name in found if isinstance(name, str) and name in _TYPES]
    if known or not isinstance(schema, dict):
        return known
    return [name for name, keys in _KEYWORDS.items() if any(key in schema for key in keys)][:1]


def has_type(value: object, name: str) -> bool:
    """Whether a JSON value is of a JSON schema's type."""
    if isinstance(value, bool) or not isinstance(value, _TYPES[name]):
        return isinstance(value, bool) and name == "boolean"
    return name != "integer" or isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def lookup(root: Schema, ref: str) -> Schema:
    """What a reference such as `#/$defs/node` stands for.

    Raises:
        SchemaError: it leads nowhere.
    """
    found: Any = root
    for step in filter(None, ref.removeprefix("#").split("/")):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    if not ref.startswith("#") or not isinstance(found, (dict, bool)):
        raise SchemaError(f"$ref {ref!r} leads nowhere in the schema")
    return found


def merged(first: Schema, second: Schema) -> Schema:
    """A schema that asks for what both ask for; of other keywords that both have, the second's counts."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second if first is True else first if second is True else False
    both = {**first, **second}
    for key in set(first) & set(second):
        if key == "properties":
            ours, theirs = part(first, key, dict), part(second, key, dict)
            both[key] = ours | {name: merged(ours.get(name, True), item) for name, item in theirs.items()}
        elif key == "required":
            both[key] = [*part(first, key, list), *part(second, key, list)]
        elif key in _LOWER:
            both[key] = max(number(first, key, -math.inf), number(second, key, -math.inf))
        elif key in _UPPER:
            both[key] = min(number(first, key, math.inf), number(second, key, math.inf))
    return both


def accepts(schema: Schema, value: object, root: Schema) -> bool:
    """Whether a value stands under a schema whose references are read in `root`."""
    if not isinstance(schema, dict):
        return schema is not False
    if isinstance(schema.get("$ref"), str) and not accepts(lookup(root, schema["$ref"]), value, root):
        return False
    if "const" in schema and not same(value, schema["const"]):
        return False
    allowed, options = part(schema, "enum", list), part(schema, "anyOf", list)
    if allowed and not any(same(value, item) for item in allowed):
        return False
    named = types(schema) if "type" in schema else []
    if named and not any(has_type(value, name) for name in named):
        return False
    fitting = [accepts(item, value, root) for item in part(schema, "oneOf", list)]
    return (
        all(accepts(item, value, root) for item in part(schema, "allOf", list))
        and (not options or any(accepts(item, value, root) for item in options))
        and (not fitting or sum(fitting) == 1)
        and _accepts_inside(schema, value, root)
    )


def same(one: object, other: object) -> bool:
    """Whether two JSON values are equal; unlike in Python, true is not 1."""
    return one == other and json.dumps(one, sort_keys=True).count("true") == json.dumps(
        other, sort_keys=True
    ).count("true")


def accepts_number(schema: Schema, value: float) -> bool:
    """Whether a number keeps the bounds of a schema."""
    step = number(schema, "multipleOf", 0)
    return (
        number(schema, "minimum", -math.inf) <= value <= number(schema, "maximum", math.inf)
        and number(schema, "exclusiveMinimum", -math.inf) < value
        and value < number(schema, "exclusiveMaximum", math.inf)
        and (step <= 0 or abs(math.remainder(value, step)) <= step * _EXACT)
    )


def accepts_text(schema: Schema, text: str) -> bool:
    """Whether a text has the length and the pattern of a schema.

    Raises:
        SchemaError: the pattern is no regular expression.
    """
    if not number(schema, "minLength", 0) <= len(text) <= number(schema, "maxLength", math.inf):
        return False
    pattern = part(schema, "pattern", str)
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise SchemaError(f"pattern {pattern!r} is no regular expression: {error}") from None


def _accepts_inside(schema: Mapping[str, Any], value: object, root: Schema) -> bool:
    if isinstance(value, str):
        return accepts_text(schema, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return accepts_number(schema, value)
    if isinstance(value, list):
        return _accepts_items(schema, value, root)
    return not isinstance(value, dict) or _accepts_properties(schema, value, root)


def _accepts_items(schema: Mapping[str, Any], items: list[Any], root: Schema) -> bool:
    first = part(schema, "prefixItems", list)
    rest = schema.get("items", True)
    return (
        number(schema, "minItems", 0) <= len(items) <= number(schema, "maxItems", math.inf)
        and (schema.get("uniqueItems") is not True or not _repeats(items))
        and all(accepts(each, item, root) for each, item in zip(first, items, strict=False))
        and all(accepts(rest, item, root) for item in items[len(first) :])
    )


def _repeats(items: list[Any]) -> bool:
    return any(same(item, other) for place, item in enumerate(items) for other in items[:place])


def _accepts_properties(schema: Mapping[str, Any], value: Mapping[str, Any], root: Schema) -> bool:
    named = part(schema, "properties", dict)
    rest = schema.get("additionalProperties", True)
    return all(name in value for name in part(schema, "required", list) if isinstance(name, str)) and all(
        accepts(named.get(name, rest), item, root) for name, item in value.items()
    )


_PIECE = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\(\?:|\(\?.|[()|]|[^\\]", re.DOTALL
)
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d+)(,(\d*))?\})\??")
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ASSERTIONS = {"^", "$", r"\b", r"\A", r"\Z"}
_MOST_REPEATS = 256
MOST_CHARACTERS = 100_000
"""The longest text that is made."""


def matching_texts(pattern: str) -> Iterator[str]:
    """Texts made to match a pattern, the shortest first: the first alternative, a plain character.

    Raises:
        SchemaError: the pattern has a part that is not known here, such as a look-ahead.
    """
    for repeats in range(_MOST_REPEATS):
        yield _Composer(pattern, repeats).text()


class _Composer:
    """Reads a pattern from left to right and writes what it asks for.

    Args:
        pattern: the regular expression.
        repeats: how often an open-ended part stands beyond what it must.
    """

    def __init__(self, pattern: str, repeats: int) -> None:
        self._pattern = pattern
        self._repeats = repeats
        self._place = 0

    def text(self) -> str:
        made = self._alternatives()
        if self._place < len(self._pattern):
            raise self._unknown(self._pattern[self._place :])
        return made

    def _alternatives(self) -> str:
        first = self._sequence()
        while self._next_is("|"):
            self._place += 1
            self._sequence()
        return first

    def _sequence(self) -> str:
        made = []
        while self._place < len(self._pattern) and not (self._next_is("|") or self._next_is(")")):
            piece = self._piece()
            count = self._count()
            if len(piece) * count > MOST_CHARACTERS:
                raise SchemaError(f"the pattern {self._pattern!r} asks for over {MOST_CHARACTERS} characters")
            made.append(piece * count)
        return "".join(made)

    def _piece(self) -> str:
        found = _PIECE.match(self._pattern, self._place)
        if found is None:
            raise self._unknown(self._pattern[self._place :])
        self._place = found.end()
        piece = found[0]
        if piece in _ASSERTIONS:
            return ""
        if piece not in {"(", "(?:"}:
            return self._character(piece)
        inner = self._alternatives()
        if not self._next_is(")"):
            raise self._unknown(piece)
        self._place += 1
        return inner

    def _character(self, piece: str) -> str:
        """A plain character that the piece of a pattern stands for."""
        if piece.startswith((r"\x", r"\u")) and piece[2:]:
            return chr(int(f"0x{piece[2:]}", 0))
        probes = string.ascii_letters + string.digits + string.printable + piece
        try:
            return next(probe for probe in probes if re.fullmatch(piece, probe))
        except (StopIteration, re.error):
            raise self._unknown(piece) from None

    def _count(self) -> int:
        found = _QUANTIFIER.match(self._pattern, self._place)
        if found is None:
            return 1
        self._place = found.end()
        sign, low, more, high = found.groups()
        least, most = _BOUNDS[sign] if sign else (int(low), int(high) if high else None if more else int(low))
        return least + self._repeats if most is None else min(least + self._repeats, most)

    def _next_is(self, sign: str) -> bool:
        return self._pattern.startswith(sign, self._place)

    def _unknown(self, piece: str) -> SchemaError:
        return SchemaError(f"no text can be made for {piece!r} in the pattern {self._pattern!r}")


_NOTHING = object()
"""No wish: any value will do."""
_NO_REFS: frozenset[str] = frozenset()
_FORMATS = {
    "date": "2025-01-01",
    "time": "12:00:00Z",
    "date-time": "2025-01-01T12:00:00Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_RESPONSE = "response"
_MOST_TRIES = 1024


def values_to_json(values: Mapping[str, Any], schema: object) -> str:
    """The values that a schema asks for as JSON; what it asks for beyond them is filled in.

    Args:
        values: by property.
        schema: a JSON schema; one that names no properties, and anything else, takes all values.

    Raises:
        SchemaError: no value was found that stands under the schema.
    """
    if not isinstance(schema, dict):
        return json.dumps(dict(values))
    return json.dumps(conform(dict(values), schema))


def text_to_json(text: str, schema: object) -> str:
    """A text as JSON: in the first place for a free text that the schema has, or in `response`.

    Raises:
        SchemaError: no value was found that stands under the schema.
    """
    if not isinstance(schema, dict):
        return json.dumps({_RESPONSE: text})
    return json.dumps(conform_text(text, schema))


def conform_text(text: str, schema: Mapping[str, Any]) -> object:
    """A value under a schema, the text in its first free text and the simplest that may be elsewhere.

    Raises:
        SchemaError: none was found.
    """
    return _conform(_NOTHING, schema, text)


def conform(wanted: object, schema: Mapping[str, Any]) -> object:
    """The value under a schema that is nearest to the wanted one.

    Raises:
        SchemaError: none was found.
    """
    return _conform(wanted, schema, None)


def _conform(wanted: object, schema: Mapping[str, Any], text: str | None) -> object:
    try:
        value = _Writer(schema, text).fit(wanted, schema, _NO_REFS)
        if accepts(schema, value, schema):
            return value
    except RecursionError:
        raise SchemaError("the schema has no end") from None
    raise SchemaError(f"no value was found for the schema; {value!r} does not stand under it")


class _Writer:
    """Writes a value that a schema asks for.

    A definition is not entered again inside itself without a wanted value to follow, so that a schema
    of nested lists or optional children comes to an end.
    """

    def __init__(self, root: Schema, text: str | None) -> None:
        self._root = root
        self._text = text

    def fit(self, wanted: object, schema: Schema, refs: frozenset[str]) -> object:
        """The value under a schema nearest to the wanted one; `refs` are the definitions it stands in."""
        while isinstance(schema, dict) and ("$ref" in schema or "allOf" in schema):
            schema, refs = self._opened(schema, refs)
        if not isinstance(schema, dict):
            if schema is False:
                raise SchemaError("the schema allows no value at all")
            schema = {}
        for key in ("anyOf", "oneOf"):
            if options := part(schema, key, list):
                bare = {name: item for name, item in schema.items() if name != key}
                return self._first_that_fits(wanted, [merged(bare, each) for each in options], schema, refs)
        if "const" in schema or part(schema, "enum", list):
            return self._chosen(wanted, schema)
        return self._typed(wanted, schema, refs)

    def _opened(self, schema: Mapping[str, Any], refs: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """The schema without its reference or its `allOf`, whose parts are merged into it."""
        rest: Schema = {name: item for name, item in schema.items() if name not in {"$ref", "allOf"}}
        if isinstance(ref := schema.get("$ref"), str):
            if ref in refs:
                raise SchemaError(f"{ref!r} stands in itself without an end")
            refs |= {ref}
            rest = merged(lookup(self._root, ref), rest)
        for each in part(schema, "allOf", list):
            opened, refs = self._opened(each, refs) if isinstance(each, dict) else (each, refs)
            rest = merged(rest, opened)
        return rest, refs

    def _tried(self, wanted: object, schema: Schema, refs: frozenset[str]) -> object:
        """As `fit`; where nothing fits, the text is still there for others."""
        before = self._text
        try:
            return self.fit(wanted, schema, refs)
        except SchemaError:
            self._text = before
            raise

    def _first_that_fits(
        self, wanted: object, options: list[Schema], schema: Schema, refs: frozenset[str]
    ) -> object:
        """The first option's value that leaves the wish as it is, else the first option's at all."""
        found: list[tuple[object, str | None]] = []
        before = self._text
        for option in options:
            self._text = before
            try:
                value = self._tried(wanted, option, refs)
            except SchemaError:
                continue
            if accepts(schema, value, self._root):
                found.append((value, self._text))
        if not found:
            raise SchemaError(f"no option fits among {options!r}")
        value, self._text = next((each for each in found if same_wish(each[0], wanted)), found[0])
        return value

    def _chosen(self, wanted: object, schema: Mapping[str, Any]) -> object:
        allowed = [schema["const"]] if "const" in schema else part(schema, "enum", list)
        fitting = [value for value in allowed if accepts(schema, value, self._root)]
        if not fitting:
            raise SchemaError(f"none of {allowed!r} stands under the rest of the schema")
        return next((value for value in fitting if same_wish(value, wanted)), fitting[0])

    def _typed(self, wanted: object, schema: Mapping[str, Any], refs: frozenset[str]) -> object:
        named = types(schema)
        if not named:
            return self._free_text(schema) if wanted is _NOTHING else wanted
        kind = next((name for name in named if wanted is not _NOTHING and has_type(wanted, name)), None)
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
            return nearest_number(wanted if is_number else 0, schema, whole=kind == "integer")  # type: ignore[arg-type]
        return (wanted if isinstance(wanted, bool) else False) if kind == "boolean" else None

    def _free_text(self, schema: Mapping[str, Any]) -> str:
        """The text, for the first who asks."""
        text, self._text = self._text or "", None
        return sized(text, schema)

    def _string(self, wanted: str | None, schema: Mapping[str, Any]) -> str:
        sample = _FORMATS.get(part(schema, "format", str))
        if sample is not None:
            return sample
        if wanted is not None and accepts_text(schema, wanted):
            return wanted
        pattern = part(schema, "pattern", str)
        if not pattern:
            return self._free_text(schema) if wanted is None else sized(wanted, schema)
        if self._text is not None and accepts_text(schema, self._text):
            return self._free_text(schema)
        found = next((text for text in matching_texts(pattern) if accepts_text(schema, text)), None)
        if found is None:
            raise SchemaError(f"no text was found for the pattern {pattern!r}")
        return found

    def _array(
        self, wanted: list[Any] | None, schema: Mapping[str, Any], refs: frozenset[str]
    ) -> list[object]:
        """The wanted items; without a wish those that must be there, and one if it can."""
        first, rest = part(schema, "prefixItems", list), schema.get("items", True)
        least, most = number(schema, "minItems", 0), number(schema, "maxItems", math.inf)
        count = int(min(max(least, len(first), 1 if wanted is None else len(wanted)), most, _MOST_TRIES))
        made: list[object] = []
        for place in range(count):
            wish = wanted[place] if wanted is not None and place < len(wanted) else _NOTHING
            each = first[place] if place < len(first) else rest
            try:
                made.append(self._item(wish, each, made if schema.get("uniqueItems") is True else [], refs))
            except SchemaError:
                if place < least:
                    raise
                break
        return made

    def _item(self, wish: object, schema: Schema, taken: list[object], refs: frozenset[str]) -> object:
        """An item that is not among those taken."""
        inner = refs if wish is _NOTHING else _NO_REFS
        for other in _wishes(wish, part(schema, "enum", list)):
            value = self._tried(other, schema, inner)
            if not any(same(value, each) for each in taken):
                return value
        raise SchemaError(f"no item was found that is not among {taken!r}")

    def _object(
        self, wanted: dict[str, Any] | None, schema: Mapping[str, Any], refs: frozenset[str]
    ) -> dict[str, object]:
        """The properties that are named, with what is wanted of them; all that is wanted if none is named."""
        named, rest = part(schema, "properties", dict), schema.get("additionalProperties", True)
        required = [name for name in part(schema, "required", list) if isinstance(name, str)]
        names = dict.fromkeys([*named, *required])
        if not names and rest is not False:
            alone = [_RESPONSE] if self._text is not None else []
            names = dict.fromkeys(alone if wanted is None else wanted)
        made = {}
        for name in names:
            wish = _NOTHING if wanted is None or name not in wanted else wanted[name]
            try:
                made[name] = self._tried(wish, named.get(name, rest), refs if wish is _NOTHING else _NO_REFS)
            except SchemaError:
                if name in required:
                    raise
        return made


def same_wish(value: object, wanted: object) -> bool:
    """Whether a value is the wanted one."""
    return wanted is not _NOTHING and same(value, wanted)


def sized(text: str, schema: Mapping[str, Any]) -> str:
    """The text, cut or filled up to the length that is allowed."""
    least = int(min(number(schema, "minLength", 0), MOST_CHARACTERS))
    return text[: int(min(number(schema, "maxLength", math.inf), len(text)))].ljust(least, "x")


def nearest_number(wanted: float, schema: Mapping[str, Any], *, whole: bool) -> float:
    """The number within the bounds of a schema that is nearest to the wanted one.

    Raises:
        SchemaError: none was found.
    """
    low = max(number(schema, "minimum", -math.inf), number(schema, "exclusiveMinimum", -math.inf))
    high = min(number(schema, "maximum", math.inf), number(schema, "exclusiveMaximum", math.inf))
    step = number(schema, "multipleOf", 0) or 1
    anchors = [wanted, *(bound for bound in (low, high, (low + high) / 2) if math.isfinite(bound))]
    places = [place for anchor in anchors if math.isfinite(place := anchor / step)]
    tries = [*anchors, *(round(place + move) * step for place in places for move in (-1, 0, 1))]
    numbers = [round(each) if float(each).is_integer() else each for each in tries]
    fitting = [n for n in numbers if accepts_number(schema, n) and (not whole or isinstance(n, int))]
    if not fitting:
        raise SchemaError(f"no number was found within the bounds of {dict(schema)!r}")
    return min(fitting, key=lambda each: abs(each - wanted))


def _wishes(wish: object, allowed: list[Any]) -> Iterator[object]:
    """The wish, then what may stand in its place."""
    yield wish
    yield from allowed
    for place in range(_MOST_TRIES):
        yield from (place, str(place), bool(place % 2), None)
