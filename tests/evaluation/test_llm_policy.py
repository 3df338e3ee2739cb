"""A policy that asks a model: what it sends, what it accepts, and what it raises."""

from __future__ import annotations

import pytest

from evaluation.llm_policy import LLMPolicy, choice_prompt
from ollama_utils.dispatcher import Dispatcher
from tests.evaluation.policies_for_tests import MUTATORS, view
from tests.ollama_utils.scripted import SAID, ScriptedServer

VIEW = view(step_count=2, last_outcome="partly_refused")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"mutator": "shorten"}', MUTATORS.index("shorten")),
        ("shorten", None),
        ('{"mutator": "whisper"}', None),
        ("[" * 200_000, None),
    ],
)
def test_the_model_is_asked_at_temperature_0_with_the_seed_for_one_of_the_mutators(
    text: str, action: int | None
) -> None:
    """A reply that names none of them in the schema is an error, and no choice."""
    with (
        ScriptedServer(lambda _: (200, SAID | {"response": text})) as server,
        Dispatcher([server.host], attempts=1) as dispatcher,
    ):
        policy = LLMPolicy("m", dispatcher, 7)
        if action is None:
            with pytest.raises(ValueError, match="mutator"):
                policy.step(VIEW)
        else:
            assert policy.step(VIEW) == action
    (body,) = server.bodies
    assert body["options"] == {"temperature": 0, "seed": 7, "num_predict": 256}
    assert body["format"]["required"] == ["mutator"]
    assert body["format"]["properties"]["mutator"]["enum"] == list(MUTATORS)
    assert body["prompt"] == choice_prompt(VIEW)
    assert "noop, then paraphrase; the last ended as partly refused" in body["prompt"]
