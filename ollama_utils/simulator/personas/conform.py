"""Replies in JSON: values in the shape that a schema asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_SIMPLEST: dict[object, object] = {
    "string": "",
    "integer": 0,
    "number": 0,
    "boolean": False,
    "array": [],
    "object": {},
}


def values_to_json(values: Mapping[str, Any], schema: object) -> str:
    """The values that a schema asks for as JSON; what it asks for beyond them is filled in.

    Args:
        values: by property.
        schema: a JSON schema; one that names no properties, and anything else, takes all values.
    """
    return json.dumps(_fitting(dict(values), schema))


def text_to_json(text: str, schema: object) -> str:
    """A text as JSON: itself, or in the first property for a string, or in `response` without one."""
    if _is_free_text(schema):
        return json.dumps(text)
    properties = _part(schema, "properties", dict)
    texts = [name for name, part in properties.items() if _is_free_text(part)]
    return values_to_json({texts[0] if texts else "response": text}, schema)


def _fitting(value: object, schema: object) -> object:
    """The value if it may stand under a simple schema, else the simplest that may."""
    if not isinstance(schema, dict):
        return value
    if options := _part(schema, "anyOf", list) or _part(schema, "oneOf", list):
        return _fitting(value, options[0])
    if allowed := [schema["const"]] if "const" in schema else _part(schema, "enum", list):
        return value if value in allowed else allowed[0]
    properties = _part(schema, "properties", dict)
    names = [*properties, *(name for name in _part(schema, "required", list) if isinstance(name, str))]
    if names:
        known = value if isinstance(value, dict) else {}
        return {name: _fitting(known.get(name), properties.get(name)) for name in names}
    simplest = schema.get("minimum", _SIMPLEST.get(str(schema.get("type"))))
    return value if simplest is None or _kind(value) is _kind(simplest) else simplest


def _kind(value: object) -> type:
    """The type of a JSON value, one for all numbers."""
    return float if type(value) is int else type(value)


def _is_free_text(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string" and not {"enum", "const"} & set(schema)


def _part(schema: object, key: str, kind: type[T]) -> T:
    """A keyword's value where it is of its kind, else an empty one."""
    part = schema.get(key) if isinstance(schema, dict) else None
    return part if isinstance(part, kind) else kind()
