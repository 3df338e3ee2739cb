"""Every endpoint as the unmodified clients of `ollama` call it: sync and async, whole and streamed."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import ollama
import pytest
from pydantic import BaseModel

from simulator.process import EmbeddedServer
from tests.simulator.conftest import TLS

Say = Callable[..., Any]
"""`say(method, ...)`: what a client's method gives; the parts of a stream as a list."""

QUESTION = "How do I kill a Python process?"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]


@pytest.fixture(params=["Client", "AsyncClient"])
def say(request: pytest.FixtureRequest, server: EmbeddedServer) -> Say:
    async def say_later(method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the client's
        async with ollama.AsyncClient(server.host, timeout=10, trust_env=False, verify=TLS) as client:
            reply = await getattr(client, method)(*args, **kwargs)
            return [part async for part in reply] if isinstance(reply, AsyncIterator) else reply

    def say_now(method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the client's
        with ollama.Client(server.host, timeout=10, trust_env=False, verify=TLS) as client:
            reply = getattr(client, method)(*args, **kwargs)
            return list(reply) if isinstance(reply, Iterator) else reply

    def say(method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the client's
        if request.param == "Client":
            return say_now(method, *args, **kwargs)
        return asyncio.run(say_later(method, *args, **kwargs))

    return say


def text_of(part: Any) -> str:  # noqa: ANN401 - a generate or a chat response
    return (part.response if "response" in part else part.message.content) or ""


def thinking_of(part: Any) -> str:  # noqa: ANN401 - as above
    return (part.thinking if "response" in part else part.message.thinking) or ""


ASKS = pytest.mark.parametrize(
    ("method", "asked"),
    [("generate", {"prompt": QUESTION}), ("chat", {"messages": CHAT})],
    ids=["generate", "chat"],
)
VARIED = pytest.mark.parametrize(
    "more",
    [
        {},
        {"options": {"num_predict": 7}},
        {"options": {"stop": ["e ", "zzz"]}},
        {"options": {"temperature": 0.8, "seed": 3, "num_predict": 500}},
        {"format": "json"},
        {
            "format": {
                "type": "object",
                "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
            }
        },
        {"model": "sim-thinker"},
        {"model": "sim-thinker", "think": "high", "options": {"num_predict": 90}},
        {"model": "sim-thinker", "think": False},
    ],
    ids=str,
)


@ASKS
@VARIED
def test_the_chunks_of_a_stream_are_the_whole_reply(
    say: Say, method: str, asked: dict[str, Any], more: dict[str, Any]
) -> None:
    given = {"model": "sim-target"} | asked | more
    whole, parts = say(method, **given), say(method, **given, stream=True)
    *pieces, last = parts
    assert "".join(map(text_of, parts)) == text_of(whole)
    assert "".join(map(thinking_of, parts)) == thinking_of(whole)
    assert not any(piece.done or piece.done_reason or piece.eval_count for piece in pieces)
    assert (last.done, text_of(last), thinking_of(last)) == (True, "", "")
    for counted in ("done_reason", "eval_count", "prompt_eval_count", "model", "context"):
        assert last.get(counted) == whole.get(counted)
    thinking = [bool(thinking_of(piece)) for piece in pieces]
    assert thinking == sorted(thinking, reverse=True)


@ASKS
def test_a_reply_ends_at_num_predict_with_its_words(say: Say, method: str, asked: dict[str, Any]) -> None:
    whole = say(method, model="sim-target", **asked)
    cut = say(method, model="sim-target", **asked, options={"num_predict": 16})
    assert (whole.done_reason, whole.eval_count) == ("stop", 64)
    assert (cut.done_reason, cut.eval_count) == ("length", 16)
    assert text_of(whole).startswith(text_of(cut))
    assert len(text_of(cut)) == len(text_of(whole)) // 4


@ASKS
def test_a_reply_ends_before_a_stop_sequence(say: Say, method: str, asked: dict[str, Any]) -> None:
    whole = text_of(say(method, model="sim-target", **asked))
    stop = max(whole.split()[2:9], key=len)
    cut = say(method, model="sim-target", **asked, options={"stop": ["never said", stop]})
    assert text_of(cut) == whole[: whole.index(stop)]
    assert cut.done_reason == "stop"
    assert 0 < cut.eval_count < 64
    late = say(method, model="sim-target", **asked, options={"stop": [stop], "num_predict": 1})
    assert late.done_reason == "length"


@ASKS
def test_a_model_that_can_think_does_so_before_it_speaks_unless_told_not_to(
    say: Say, method: str, asked: dict[str, Any]
) -> None:
    def ask(**more: Any) -> Any:  # noqa: ANN401 - a generate or a chat response
        return say(method, model="sim-thinker", **asked, **more)

    unasked, wanted = ask(), ask(think=True)
    assert thinking_of(unasked) == thinking_of(wanted) != ""
    assert thinking_of(ask(think=False)) == ""
    counts = [ask(think=level).eval_count for level in ("low", "medium", "high")]
    assert counts == [64 + 32, 64 + 64, 64 + 128]
    cut = ask(think="medium", options={"num_predict": 40})
    assert (cut.eval_count, cut.done_reason, text_of(cut)) == (40, "length", "")
    assert thinking_of(wanted).startswith(thinking_of(cut))


class Verdict(BaseModel):
    """What a user asks for by a pydantic model."""

    answer: str
    tags: list[str]
    confidence: float


@ASKS
def test_a_reply_in_a_user_s_own_schema_is_read_by_pydantic(
    say: Say, method: str, asked: dict[str, Any]
) -> None:
    plain = text_of(say(method, model="sim-target", **asked))
    reply = say(method, model="sim-target", **asked, format=Verdict.model_json_schema())
    assert Verdict.model_validate_json(text_of(reply)).answer
    assert json.loads(text_of(say(method, model="sim-target", **asked, format="json")))["response"]
    assert plain


@ASKS
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_asked_loads_a_model_or_unloads_it(
    say: Say, method: str, asked: dict[str, Any], *, stream: bool
) -> None:
    del asked
    for more, reason in (({}, "load"), ({"keep_alive": 0}, "unload")):
        found = say(method, model="sim-target", stream=stream, **more)
        reply = found[0] if stream else found
        assert (reply.done, reply.done_reason, text_of(reply), reply.eval_count) == (True, reason, "", None)


def test_the_moment_of_a_reply_is_written_as_go_writes_it(say: Say) -> None:
    created = say("generate", "sim-target", QUESTION).created_at
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?Z", created)
    assert abs((datetime.fromisoformat(created) - datetime.now(UTC)).total_seconds()) < 60


def test_a_context_goes_on_from_the_one_before_and_a_raw_reply_has_none(say: Say) -> None:
    first = say("generate", "sim-target", QUESTION)
    second = say("generate", "sim-target", "And why?", context=first.context)
    assert list(second.context[: len(first.context)]) == list(first.context)
    assert len(second.context) > len(first.context)
    assert say("generate", "sim-target", QUESTION, raw=True).context is None


def test_embeddings_have_length_one_also_when_they_are_cut(say: Say) -> None:
    rows = say("embed", "sim-embed", ["a tea", ""]).embeddings
    assert all(math.isclose(math.hypot(*row), 1) for row in rows)
    assert say("embed", "sim-embed", "a tea").embeddings == rows[:1]
    assert say("embed", "sim-embed", []).embeddings == []
    cut = say("embed", "sim-embed", ["a tea", ""], dimensions=9).embeddings
    assert [(len(row), math.isclose(math.hypot(*row), 1)) for row in cut] == [(9, True)] * 2


def test_the_lists_show_what_there_is_and_what_is_loaded(say: Say) -> None:
    listed = {model.model: model for model in say("list").models}
    shown = {name: say("show", name) for name in listed}
    assert shown["sim-thinker:latest"].capabilities == ["completion", "thinking"]
    assert shown["sim-embed:latest"].capabilities == ["embedding"]
    for name, model in listed.items():
        assert shown[name].details == model.details
        assert shown[name].modified_at == model.modified_at
        assert shown[name].modelinfo["simulator.context_length"] == 4096
        for told in ("license", "modelfile", "parameters", "template"):
            assert shown[name][told]
    say("embed", "SIM-embed", "tea")
    running = {model.model: model for model in say("ps").models}
    assert running["sim-embed:latest"].digest == listed["sim-embed:latest"].digest
    assert running["sim-embed:latest"].expires_at > datetime.now(UTC)
