"""Replies in JSON: an object with the properties that a schema asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def values_to_json(values: Mapping[str, Any], schema: object) -> str:
    """The values that a schema asks for as a JSON object; what it asks for beyond them is filled in.

    Args:
        values: by property.
        schema: a JSON schema with `properties`; anything else takes all values.
    """
    properties = _properties(schema)
    if properties is None:
        return json.dumps(dict(values))
    return json.dumps({name: values.get(name, _any_value(part)) for name, part in properties.items()})


def text_to_json(text: str, schema: object) -> str:
    """A text as a JSON object: in the first property for a string, or in `response` where there is none."""
    texts = [name for name, part in (_properties(schema) or {}).items() if _is_free_text(part)]
    return values_to_json({texts[0] if texts else "response": text}, schema)


def _properties(schema: object) -> Mapping[str, object] | None:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else None


def _is_free_text(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string" and not schema.get("enum")


def _any_value(schema: object) -> object:
    """A value that fits a simple schema."""
    if not isinstance(schema, dict):
        return None
    if schema.get("enum"):
        return schema["enum"][0]
    simple = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
    return schema.get("minimum", simple.get(str(schema.get("type"))))
