"""JSON schemas: what their references mean, and whether a value stands under one.

The keywords are those that become rules of the grammar behind Ollama's `format`; others, and keywords of
the wrong type, say nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
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
