"""Replies in the shape of a JSON schema, whatever the schema."""

from __future__ import annotations

import enum
import json
import re
from datetime import date, datetime
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from simulator.personas.json_schema import SchemaError, accepts, matching_texts, text_to_json, values_to_json


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    name: str
    children: list[Node] = []
    left: Node | None
    right: Node | None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Everything(BaseModel):
    title: Annotated[str, Field(min_length=3, max_length=10)]
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}-\d{4}$")]
    share: Annotated[float, Field(gt=0, lt=1)]
    even: Annotated[int, Field(ge=5, multiple_of=4)]
    colour: Colour
    pets: Annotated[list[Annotated[Cat | Dog, Field(discriminator="kind")]], Field(min_length=2)]
    pair: tuple[int, str]
    tree: Node
    nothing: None
    maybe: int | None = None
    born: date
    seen: datetime
    key: UUID
    numbers: Annotated[set[int], Field(min_length=3)]
    marks: dict[str, float]
    anything: Any


@pytest.mark.parametrize(
    "kind", [Node, Cat, Dog, Everything, Colour, list[Cat], dict[str, int], Cat | Dog, int, str, bool, None]
)
def test_the_reply_is_what_pydantic_asked_for(kind: Any) -> None:  # noqa: ANN401 - any type pydantic knows
    adapter = TypeAdapter(kind)
    adapter.validate_json(text_to_json("Some words.", adapter.json_schema()))
    adapter.validate_json(values_to_json({"label": "refused", "score": 7}, adapter.json_schema()))


def test_the_text_stands_in_the_first_free_text() -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "steps": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "string"},
        },
    }
    assert json.loads(text_to_json("Words.", schema)) == {"kind": "a", "steps": ["Words."], "more": ""}
    assert json.loads(text_to_json("Words.", {"type": "string"})) == "Words."
    assert json.loads(text_to_json("Words.", {"type": "object"})) == {"response": "Words."}
    assert json.loads(text_to_json("Words.", "json")) == {"response": "Words."}


def test_wanted_values_are_kept_or_moved_to_the_nearest_that_may_stand() -> None:
    wanted = {"label": "refused", "score": 7, "intent_kept": True}
    assert json.loads(values_to_json(wanted, "json")) == wanted
    schema = {
        "type": "object",
        "properties": {
            "score": {"type": "integer", "maximum": 5},
            "label": {"anyOf": [{"type": "null"}, {"enum": ["answered", "refused"]}]},
            "intent_kept": {"type": "string"},
        },
    }
    assert json.loads(values_to_json(wanted, schema)) == {"score": 5, "label": "refused", "intent_kept": ""}


def test_a_definition_in_itself_comes_to_an_end() -> None:
    schema = {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}, "x": {"type": "null"}}}},
    }
    assert json.loads(text_to_json("", schema)) == {"x": None}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number was found"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#"}, "without an end"),
        ({"type": "string", "pattern": "("}, "no regular expression"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "no text"),
        ({"type": "string", "pattern": "^(a{9999}){9999}$"}, "over 100000 characters"),
        ({"type": "string", "minLength": 10**12}, "does not stand under it"),
        ({"type": "array", "uniqueItems": True, "items": {"const": 1}, "minItems": 2}, "not among"),
        ({"enum": [1], "type": "string"}, "stands under the rest"),
        ({"anyOf": [False]}, "no option fits"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no value at all"),
    ],
)
def test_a_schema_that_nothing_can_satisfy_is_refused_and_says_why(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        text_to_json("", schema)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z]+(-[a-z0-9]+)*$",
        r"^(?:yes|no)$",
        r"^\d{3}-\d{4}$",
        r"^\+?[1-9]\d{1,14}$",
        r"[^a-zA-Z0-9\s]{2,3}\.",
        r"^[\w.%+-]+@[\w.-]+\.[A-Za-z]{2,}$",
        r"^\u00e9?\x41{0,2}\/$",
    ],
)
def test_a_text_is_made_for_a_pattern(pattern: str) -> None:
    assert re.search(pattern, next(matching_texts(pattern)))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)
_KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]),
    "enum": st.lists(_JSON, min_size=1, max_size=3),
    "minimum": st.integers(-5, 5),
    "exclusiveMaximum": st.integers(-5, 5),
    "multipleOf": st.sampled_from([0.5, 2, 3]),
    "minLength": st.integers(0, 5),
    "maxLength": st.integers(0, 5),
    "minItems": st.integers(0, 3),
    "maxItems": st.integers(0, 3),
    "uniqueItems": st.booleans(),
    "required": st.lists(st.sampled_from("abc"), max_size=2),
}


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    nested = {
        "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        "additionalProperties": st.booleans() | inner,
        "items": inner,
        "prefixItems": st.lists(inner, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "$ref": st.sampled_from(["#", "#/properties/a", "#/items"]),
    }
    return st.fixed_dictionaries({}, optional=_KEYWORDS | nested)


@settings(max_examples=40)
@given(
    schema=_schemas(st.recursive(st.fixed_dictionaries({}, optional=_KEYWORDS), _schemas, max_leaves=4)),
    wanted=_JSON,
)
def test_whatever_the_schema_a_reply_stands_under_it_or_is_refused(
    schema: dict[str, Any], wanted: object
) -> None:
    for write in (partial(text_to_json, "Words."), partial(values_to_json, {"a": wanted})):
        try:
            reply = json.loads(write(schema))
        except SchemaError:
            continue
        assert accepts(schema, reply, schema)


@given(wanted=st.dictionaries(st.sampled_from("abc"), _JSON))
def test_a_value_that_stands_under_its_schema_stays_as_it_is(wanted: dict[str, Any]) -> None:
    schema = {"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, {}]}}
    assert json.loads(values_to_json(wanted, schema)) == wanted
