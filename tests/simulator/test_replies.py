"""Replies over both wires: equal for equal requests, whole or streamed, cut where they must end."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.simulator.conftest import Ask

QUESTION = "How do I kill a Python process?"
JUDGED = (
    "Judge it.\n\n<question-00c0ffee>Is tea brown?</question-00c0ffee>\n"
    "<answer-00c0ffee>I can't help with “tea”.</answer-00c0ffee>"
)


def generate(**more: Any) -> dict[str, Any]:
    return {"model": "sim-target", "prompt": QUESTION, "stream": False, **more}


def completion(prompt: str = QUESTION, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "sim-target", "messages": messages, "temperature": 0, **more}


def text_of(reply: httpx.Response) -> str:
    """The words of a whole reply of any endpoint."""
    assert reply.status_code == 200, reply.text
    body = reply.json()
    message = body["choices"][0]["message"] if "choices" in body else body.get("message")
    return str(message["content"] if message else body["response"])


def test_equal_requests_get_equal_replies_at_one_and_at_sixteen_in_flight(
    ask: Ask, pool: ThreadPoolExecutor, server: EmbeddedServer
) -> None:
    bodies = [generate(prompt=f"{QUESTION} {number}") for number in range(32)]
    alone = [text_of(ask("/api/generate", body)) for body in bodies]
    server.set_faults([{"kind": "late", "rate": 1, "seconds": 0.5}])  # so that they meet
    together = list(pool.map(lambda body: text_of(ask("/api/generate", body)), bodies))
    assert alone == together
    assert server.stats()["max_in_flight"] > 1
    assert len(set(alone)) > 16


def test_all_that_is_asked_decides_the_reply_and_nothing_else(ask: Ask) -> None:
    chat = {"messages": [{"role": "user", "content": QUESTION}], "model": "sim-target"}
    same = [
        ("/api/generate", generate(options={"temperature": 0, "seed": 1})),
        ("/api/generate", generate(options={"temperature": 0, "seed": 2})),
        ("/api/generate", generate(options={"temperature": 0, "top_k": 3, "unknown": True})),
        ("/api/chat", {**chat, "options": {"temperature": 0}, "stream": False}),
        ("/v1/chat/completions", completion()),
    ]
    others = [
        generate(options={"temperature": 0.5, "seed": 1}),
        generate(options={"temperature": 0.5, "seed": 2}),
        generate(options={"temperature": 0}, system="Be brief."),
        generate(options={"temperature": 0}, prompt=f"{QUESTION}?"),
    ]
    (said,) = {text_of(ask(*each)) for each in same}
    assert len({said, *(text_of(ask("/api/generate", each)) for each in others)}) == 5


def test_two_servers_of_one_seed_say_the_same_and_another_seed_something_else(ask: Ask) -> None:
    said = text_of(ask("/api/generate", generate()))
    digest = ask("/api/show", {"model": "sim-target"}).json()["digest"]
    for seed in (0, 1):
        with EmbeddedServer(Settings(slots=2, time_scale=0, seed=seed)) as other:
            again = httpx.post(f"{other.host}/api/generate", json=generate())
            shown = httpx.post(f"{other.host}/api/show", json={"model": "sim-target"}).json()
            assert (text_of(again) == said) == (shown["digest"] == digest) == (seed == 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    model=st.sampled_from(["sim-target", "sim-thinker", "sim-mutator", "sim-solver"]),
    prompt=st.sampled_from([QUESTION, "Why is tea brown?", "7 + 5"]) | st.text(min_size=1),
    limit=st.none() | st.integers(1, 200),
    stop=st.lists(st.sampled_from([" the ", ".", "I", "zz"]), max_size=2),
)
@example(model="sim-mutator", prompt="0\x850", limit=None, stop=[])
@example(model="sim-thinker", prompt=QUESTION, limit=10, stop=[])
def test_a_stream_is_the_whole_reply_in_pieces_up_to_a_stop_or_the_limit(
    ask: Ask, model: str, prompt: str, limit: int | None, stop: list[str]
) -> None:
    options = {"temperature": 0, "stop": stop, **({} if limit is None else {"num_predict": limit})}
    asked = generate(model=model, prompt=prompt, options=options)
    whole = ask("/api/generate", asked).json()
    lines = ask("/api/generate", asked | {"stream": True}).text.split("\n")  # U+0085 ends no line
    parts = [json.loads(line) for line in lines if line]
    assert "".join(part["response"] for part in parts) == whole["response"]
    assert "".join(part.get("thinking", "") for part in parts) == whole.get("thinking", "")
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    for name in ("done_reason", "eval_count"):
        assert parts[-1][name] == whole[name]
    assert not any(each in whole["response"] for each in stop)
    if limit is not None:
        assert whole["eval_count"] <= limit
        assert whole["done_reason"] == "stop" or whole["eval_count"] == limit


def test_a_streamed_completion_is_the_whole_one_with_its_usage(ask: Ask) -> None:
    asked = completion(max_tokens=40)
    whole = ask("/v1/chat/completions", asked).json()
    more = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = ask("/v1/chat/completions", asked | more).text.split("\n")
    events = [line[6:] for line in streamed if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    parts = list(map(json.loads, events[:-1]))
    said = [each["delta"].get("content", "") for part in parts for each in part["choices"]]
    assert "".join(said) == whole["choices"][0]["message"]["content"]
    assert parts[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 40
    assert whole["choices"][0]["finish_reason"] == "length"


def test_thinking_stands_apart_from_the_answer_counts_and_can_be_switched_off(ask: Ask) -> None:
    asked = generate(model="sim-thinker", options={"temperature": 0})
    lengths = {"low": 32, "medium": 64, "high": 128, "max": 256, None: 64}
    for level, length in lengths.items():
        reply = ask("/api/generate", asked | {"think": level}).json()
        assert reply["thinking"]
        assert reply["thinking"] not in reply["response"]
        assert reply["eval_count"] == 64 + length
    quiet = ask("/api/generate", asked | {"think": False}).json()
    assert (quiet.get("thinking"), quiet["eval_count"]) == (None, 64)
    asked = completion(model="sim-thinker")
    thought = ask("/v1/chat/completions", asked).json()["choices"][0]["message"]
    assert thought["reasoning"] == thought["reasoning_content"] != ""
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        message = ask("/v1/chat/completions", asked | off).json()["choices"][0]["message"]
        assert set(message) == {"role", "content"}


def test_a_prompt_that_is_too_long_is_refused_on_both_wires(
    ask: Ask, server: EmbeddedServer
) -> None:
    asked = generate(prompt="word " * 500, options={"num_ctx": 256})
    reply = ask("/api/generate", asked)
    assert reply.status_code == 400
    assert "exceeds the available context size (256 tokens)" in reply.json()["error"]
    reply = ask("/v1/chat/completions", completion("word " * 4000))
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (5000, server.settings.num_ctx)
    texts = {"model": "sim-embed", "input": ["a", "word " * 500], "options": {"num_ctx": 256}}
    refused = ask("/api/embed", texts)
    assert refused.json() == {"error": "the input length exceeds the context length"}


class Verdict(BaseModel):
    """What a judge is asked for."""

    label: Literal["answered", "partly_refused", "refused"]
    score: int
    intent_kept: bool


class Own(BaseModel):
    """A user's own schema."""

    kind: Literal["a", "b"]
    texts: list[str]
    inner: Verdict
    number: float | None


@pytest.mark.parametrize("model", ["sim-target", "sim-judge", "sim-model"])
@pytest.mark.parametrize("kind", [Verdict, Own])
def test_a_reply_in_a_schema_is_read_by_pydantic(
    ask: Ask, model: str, kind: type[BaseModel]
) -> None:
    schema = kind.model_json_schema()
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for path, asked in (
        ("/api/generate", generate(model=model, prompt=JUDGED, format=schema)),
        ("/v1/chat/completions", completion(JUDGED, model=model, response_format=shape)),
    ):
        kind.model_validate_json(text_of(ask(path, asked)))


def test_embeddings_have_length_one_and_are_close_for_texts_that_are_alike(ask: Ask) -> None:
    texts = ["How do I kill weeds?", "How can I kill the weeds?", "Name a tea.", ""]
    asked: dict[str, Any] = {"model": "sim-embed", "input": texts}
    rows = ask("/api/embed", asked).json()["embeddings"]
    assert [sum(value**2 for value in row) for row in rows] == pytest.approx([1.0] * 4)
    alike, other = (sum(a * b for a, b in zip(rows[0], rows[n], strict=True)) for n in (1, 2))
    assert alike > 0.6 > other
    listed = ask("/v1/embeddings", asked).json()["data"]
    assert [each["embedding"] for each in listed] == rows
