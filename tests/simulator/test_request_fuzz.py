"""Whatever is sent to the simulator, it gives a reply, or an error that it means to give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from simulator.process import EmbeddedServer
from simulator.settings import Settings

ENDPOINTS = ("api/generate", "api/chat", "api/embed", "api/show", "v1/chat/completions", "v1/embeddings")
OPTIONS = ("temperature", "seed", "num_predict", "num_ctx", "stop", "top_k", "num_gpu", "use_mmap", "unknown")
SCHEMA_WORDS = ("type", "properties", "items", "enum", "const", "anyOf", "oneOf", "$ref", "$defs", "required")
MORE_SCHEMA_WORDS = ("minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["sim-target", "sim-embed", "json", "object", "string", "user", "5m", "-1", "0", "#/$defs/a", "["]
    ),
)
keys = st.sampled_from([*SCHEMA_WORDS, *MORE_SCHEMA_WORDS, "role", "content", "images", "function", "a", ""])
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": scalars}
    ),
    max_size=3,
)
fields: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(
        ("prompt", "system", "suffix", "template", "input", "images", "context", "tools"), anything
    ),
    **dict.fromkeys(
        ("stream", "raw", "think", "truncate", "shift", "logprobs", "insecure", "verbose"), scalars
    ),
    **dict.fromkeys(("keep_alive", "dimensions", "top_logprobs", "name"), scalars),
    **dict.fromkeys(
        ("format", "response_format", "encoding_format", "stop", "chat_template_kwargs"), anything
    ),
    "messages": messages | anything,
    "options": st.dictionaries(st.sampled_from(OPTIONS), anything, max_size=3) | anything,
}
models = st.sampled_from(["sim-target", "sim-target", "sim-mutator", "sim-judge", "sim-embed", "absent", ""])
sound = st.fixed_dictionaries({"model": models, "prompt": st.text(max_size=9), "input": st.text(max_size=9)})


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request: some fields of any values beside sound ones, or bytes that are no JSON."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=40))
    body: dict[str, Any] = draw(sound)
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        body[name] = draw(fields[name])
    if draw(st.integers(0, 9)) == 0:
        body["model"] = draw(anything)
    raw = bytearray(json.dumps(body).encode())
    for place in draw(st.lists(st.integers(0, len(raw) - 1), max_size=1 if draw(st.booleans()) else 0)):
        raw[place] = draw(st.integers(0, 255))
    return bytes(raw)


@pytest.fixture(scope="module")
def quick() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=4, time_scale=0)) as server:
        yield server


@given(st.sampled_from(ENDPOINTS), bodies())
def test_a_request_of_any_bytes_gets_a_reply_or_an_error_of_ollamas(
    quick: EmbeddedServer, endpoint: str, body: bytes
) -> None:
    connection = HTTPConnection(str(urlsplit(quick.host).hostname), urlsplit(quick.host).port, timeout=20)
    connection.request("POST", f"/{endpoint}", body)
    reply = connection.getresponse()
    lines = [json.loads(line) for line in reply.read().splitlines()]
    connection.close()
    errors = [line["error"] for line in lines if isinstance(line, dict) and "error" in line]
    assert lines
    assert len(errors) <= 1
    assert (reply.status >= 400) <= bool(errors)
    for error in errors:
        text = error["message"] if isinstance(error, dict) else error  # in OpenAI's form, or in Ollama's
        assert not re.match(r"\w+(Error|Exception): ", text), text  # an exception that nobody foresaw
    event(f"{endpoint}: {reply.status}{' with an error' if errors and reply.status < 400 else ''}")
