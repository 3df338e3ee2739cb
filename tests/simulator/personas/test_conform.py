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
from pydantic import BaseModel, Field, TypeAdapter, create_model

from simulator.personas.json_schema import SchemaError, text_to_json, values_to_json


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
    share: Annotated[float, Field(gt=0, lt=1)]
    above: Annotated[int, Field(ge=5)]
    colour: Colour
    pets: Annotated[list[Annotated[Cat | Dog, Field(discriminator="kind")]], Field(min_length=2)]
    tree: Node
    nothing: None
    maybe: int | None = None
    born: date
    seen: datetime
    key: UUID
    numbers: Annotated[list[int], Field(min_length=3)]
    marks: dict[str, float]
    anything: Any


def test_the_reply_is_what_pydantic_asked_for() -> None:
    kinds: list[Any] = [
        Node,
        Cat,
        Dog,
        Everything,
        Colour,
        list[Cat],
        dict[str, int],
        Cat | Dog,
        int,
        str,
        bool,
        None,
    ]
    for kind in kinds:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
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


def test_a_schema_that_nothing_can_satisfy_is_refused_and_says_why() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number was found"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#"}, "without an end"),
        ({"type": "string", "minLength": 10**12}, "no text was found of"),
        ({"type": "array", "minItems": 10**12}, "no list was found of"),
        ({"anyOf": [False]}, "no option fits"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no value at all"),
        *(
            ({key: []}, f"does not play '{key}'")
            for key in ("allOf", "pattern", "prefixItems", "uniqueItems")
        ),
    ]
    for schema, why in refused:
        with pytest.raises(SchemaError, match=re.escape(why)):
            text_to_json("", schema)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)
_TYPES: st.SearchStrategy[Any] = st.one_of(
    st.just(str),
    st.just(bool),
    st.just(type(None)),
    st.integers(0, 4).map(lambda least: Annotated[list[int], Field(min_length=least)]),
    st.integers(-5, 5).map(lambda least: Annotated[int, Field(ge=least, le=least + 2)]),
    st.integers(-5, 5).map(lambda least: Annotated[float, Field(gt=least, lt=least + 1)]),
    st.integers(0, 5).map(lambda least: Annotated[str, Field(min_length=least, max_length=least + 2)]),
    st.lists(st.text("abc", min_size=1), min_size=1).map(lambda texts: Literal[tuple(texts)]),
)


def _model(types: dict[str, Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in types.items()}
    return create_model("Model", **fields)


def _models(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    return fields.map(_model) | inner.map(list.__class_getitem__) | inner.map(lambda kind: kind | None)


@settings(max_examples=40)
@given(kind=st.recursive(_TYPES, _models, max_leaves=6), wanted=_JSON)
def test_whatever_pydantic_asks_for_it_can_read_the_reply(kind: Any, wanted: object) -> None:  # noqa: ANN401 - a type
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    for write in (partial(text_to_json, "Words."), partial(values_to_json, {"a": wanted})):
        adapter.validate_json(write(adapter.json_schema()))


@given(wanted=st.dictionaries(st.sampled_from("abc"), _JSON))
def test_a_value_that_stands_under_its_schema_stays_as_it_is(wanted: dict[str, Any]) -> None:
    schema = {"type": "object", "additionalProperties": {}}
    assert json.loads(values_to_json(wanted, schema)) == wanted
