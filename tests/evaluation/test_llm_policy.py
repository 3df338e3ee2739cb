"""A policy that asks a model: what it shows, what it accepts, and what it raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from evaluation.llm_policy import LLMPolicy, choice_prompt
from evaluation.policies import View
from ollama_utils.dispatcher import Dispatcher
from tests.ollama_utils.scripted import SAID, ScriptedServer

MUTATORS = ("noop", "paraphrase", "shorten", "formalize")


def view(query: str = "How do I fell a tree?", tried: tuple[int, ...] = ()) -> View:
    """What the policy sees after these actions, the last of which was partly refused."""
    return View(
        observation=np.zeros(8, np.float32),
        original="How do I cut down a tree?",
        query=query,
        mutators=MUTATORS,
        tried=tried,
        last_outcome="partly_refused" if tried else None,
        last_reward=0.0,
        step_count=len(tried),
        max_steps=5,
        agent=0,
    )


@contextmanager
def model_that_says(text: str) -> Iterator[tuple[LLMPolicy, ScriptedServer]]:
    with (
        ScriptedServer(lambda _: (200, SAID | {"response": text})) as server,
        Dispatcher([server.host], attempts=1) as dispatcher,
    ):
        yield LLMPolicy(name="llm:m", model="m", dispatcher=dispatcher, seed=7), server


def test_the_model_is_asked_at_temperature_0_with_the_seed_for_one_of_the_mutators() -> None:
    with model_that_says('{"mutator": "shorten"}') as (source, server):
        assert source.make(3).step(view()) == MUTATORS.index("shorten")
    (body,) = server.bodies
    assert body["options"] == {"temperature": 0, "seed": 7, "num_predict": 256}
    schema = {"type": "object", "required": ["mutator"], "additionalProperties": False}
    assert schema.items() <= body["format"].items()
    one_of_them = {"type": "string", "enum": list(MUTATORS)}
    assert one_of_them.items() <= body["format"]["properties"]["mutator"].items()
    assert body["prompt"] == choice_prompt(view())


@pytest.mark.parametrize(
    "text",
    [
        "shorten",
        '{"mutator": "whisper"}',
        '{"mutator": null}',
        "[" * 200_000,
    ],
)
def test_a_reply_that_names_no_mutator_in_the_schema_is_an_error_and_no_choice(text: str) -> None:
    with model_that_says(text) as (source, _), pytest.raises(ValueError, match="mutator"):
        source.make(0).step(view())
