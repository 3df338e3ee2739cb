"""Batches: what single calls give, in the same places, with the documented fallbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.batching import (
    DEFAULT_REFUSAL,
    batch_encode_queries,
    batch_mutate_queries,
    batch_query_target_model,
)
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import HashingEncoder
from ollama_utils.errors import BadReplyError, BadRequestError, EncodingError, ServerFaultError
from ollama_utils.types import Call, Prompt
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer

GREEDY = {"temperature": 0}
NOBODY = "http://127.0.0.1:1"
PROMPTS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), max_size=12)


@settings(max_examples=15)
@given(prompts=PROMPTS, workers=st.none() | st.integers(1, 8))
def test_a_batch_of_questions_gives_what_single_calls_give(
    simulator: EmbeddedServer, prompts: list[str], workers: int | None
) -> None:
    with Dispatcher([simulator.host]) as together, Dispatcher([simulator.host]) as alone:
        completions = batch_query_target_model(
            together, prompts, model="sim-target", options=GREEDY, max_workers=workers
        )
        singles = [
            alone.generate(Call(model="sim-target", prompt=prompt, options=GREEDY))
            for prompt in prompts
        ]
    assert [completion.text for completion in completions] == [single.text for single in singles]


@settings(max_examples=25)
@given(st.lists(st.booleans(), max_size=10))
def test_one_failure_spoils_one_item_and_leaves_the_documented_text(fails: list[bool]) -> None:
    def handler(body: dict[str, Any]) -> tuple[int, object]:
        bad = body["prompt"].startswith("!")
        return (
            (500, {"error": "crash"}) if bad else (200, SAID | {"response": body["prompt"].upper()})
        )

    prompts = [f"{'!' if failed else 'p'}{index}" for index, failed in enumerate(fails)]
    queries = [f"query {index}" for index in range(len(fails))]
    with ScriptedServer(handler) as server, Dispatcher([server.host], attempts=1) as dispatcher:
        mutations = batch_mutate_queries(dispatcher, queries, prompts, model="m")
        replies = batch_query_target_model(dispatcher, prompts, model="m")
    for index, failed in enumerate(fails):
        assert mutations[index].text == (queries[index] if failed else f"P{index}")
        assert replies[index].text == (DEFAULT_REFUSAL if failed else f"P{index}")
        for completion in (mutations[index], replies[index]):
            assert isinstance(completion.error, ServerFaultError) == failed


def test_what_a_row_sets_counts_before_what_the_batch_does_and_its_seed_before_both() -> None:
    said = SAID | {"message": {"role": "assistant", "content": "Yes."}}
    own = Prompt(text="b", system="t", options={"top_k": 2, "seed": 1, "stop": ["."]}, think=True)
    shown = Prompt(text="c", examples=(("x", "y"),))
    with ScriptedServer(lambda _: (200, said)) as server, Dispatcher([server.host]) as dispatcher:
        shared: dict[str, Any] = {"options": {"top_k": 1}, "system": "s", "think": False}
        batch_query_target_model(dispatcher, ["a", own], model="m", seeds=[7, 8], **shared)
        batch_mutate_queries(dispatcher, ["q"], [shown], model="m", options={"temperature": 0.8})
    plain, full, chat = sorted(server.bodies, key=lambda body: str(body.get("prompt", "c")))
    assert plain["options"] == {"top_k": 1, "seed": 7, "num_predict": 512}
    assert (plain["system"], plain["think"]) == ("s", False)
    assert full["options"] == {"top_k": 2, "seed": 8, "stop": ["."], "num_predict": 512 + 2048}
    assert (full["system"], full["think"]) == ("t", True)
    assert (chat["options"], chat["think"]) == ({"temperature": 0.8, "num_predict": 512}, False)
    assert [turn["content"] for turn in chat["messages"]] == ["x", "y", "c"]


def test_lengths_that_differ_are_an_error() -> None:
    with Dispatcher([NOBODY]) as dispatcher:
        with pytest.raises(ValueError, match="one prompt a query, got 2 and 1"):
            batch_mutate_queries(dispatcher, ["a", "b"], ["p"], model="m")
        with pytest.raises(ValueError, match="one seed a call, got 1 for 2"):
            batch_query_target_model(dispatcher, ["a", "b"], model="m", seeds=[1])


@given(PROMPTS)
def test_queries_are_encoded_as_each_is_alone(queries: list[str]) -> None:
    rows = batch_encode_queries(HashingEncoder(64), queries)
    assert rows.shape == (len(queries), 64)
    for row, query in zip(rows, queries, strict=True):
        np.testing.assert_array_equal(row, batch_encode_queries(HashingEncoder(64), [query])[0])


class OddEncoder:
    """Gives NaN for the text `odd`, and has no row for `bad`."""

    name = "odd-encoder"
    dimension = 2

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.array(
            [[np.nan if text == "odd" else 1.0, 0.0] for text in texts], dtype=np.float32
        )
        if bad := [place for place, text in enumerate(texts) if text == "bad"]:
            raise EncodingError(rows, dict.fromkeys(bad, ServerFaultError("crash")))
        return rows


def test_each_query_without_a_row_is_named_by_its_place_with_its_own_error() -> None:
    queries: list[Any] = ["odd", None, "fine", "half \ud83d a pair", "bad", ""]
    with pytest.raises(EncodingError, match=r"texts \[0, 1, 3, 4\] .*odd-encoder") as caught:
        batch_encode_queries(OddEncoder(), queries)
    failures = caught.value.failures
    kinds = {0: BadReplyError, 1: BadRequestError, 3: BadRequestError, 4: ServerFaultError}
    assert {place: type(failure) for place, failure in failures.items()} == kinds
    assert "got None" in str(failures[1])
    assert caught.value.rows[[2, 5]].tolist() == [[1.0, 0.0], [1.0, 0.0]]
