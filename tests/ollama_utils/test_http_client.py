"""The short way through httpx: what is sent and what comes back is as by the official client."""

from __future__ import annotations

from typing import Any

import httpx
import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.http import OfficialClient
from tests.ollama_utils.scripted import SAID

HOST = "http://host:80/path"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


class Recorder(httpx.BaseTransport):
    """Keeps what is sent, and answers each request alike."""

    def __init__(self, status: int, said: object) -> None:
        self.status = status
        self.said = said
        self.sent: list[tuple[object, ...]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        parts = request.method, str(request.url), sorted(request.headers.raw), request.read()
        self.sent.append((*parts, request.extensions))
        return httpx.Response(self.status, json=self.said)


def both_ways(call: str, status: int, said: object, parts: dict[str, Any]) -> list[tuple[object, Recorder]]:
    """What comes of a call by the official client as it is, and by ours; and what they sent."""
    found: list[tuple[object, Recorder]] = []
    for make in (ollama.Client, OfficialClient):
        recorder = Recorder(status, said)
        with make(HOST, transport=recorder, timeout=3, headers={"Accept-Encoding": "identity"}) as client:
            for _ in range(2):
                try:
                    came: object = getattr(client, call)(**parts)
                except ollama.ResponseError as error:
                    came = (error.status_code, error.error)
        found.append((came, recorder))
    return found


@given(
    prompt=TEXTS,
    system=st.none() | TEXTS,
    options=st.none() | st.dictionaries(st.sampled_from(["seed", "temperature"]), st.integers()),
    status=st.sampled_from([200, 404, 500]),
)
def test_a_call_is_sent_and_answered_as_by_the_official_client(
    prompt: str, system: str | None, options: dict[str, int] | None, status: int
) -> None:
    said = SAID if status < 300 else {"error": "no"}
    asked: dict[str, Any] = {"model": "m", "prompt": prompt, "system": system, "options": options}
    (expected, official), (came, ours) = both_ways("generate", status, said, asked)
    assert came == expected
    assert ours.sent == official.sent


@pytest.mark.parametrize(
    ("call", "parts", "said"),
    [
        ("list", {}, {"models": [{"model": "m:latest", "digest": "d"}]}),
        ("embed", {"model": "m", "input": ["a", "b"]}, {"model": "m", "embeddings": [[1.0], [0.5]]}),
    ],
)
def test_other_requests_are_those_of_the_official_client(
    call: str, parts: dict[str, Any], said: object
) -> None:
    (expected, official), (came, ours) = both_ways(call, 200, said, parts)
    assert came == expected
    assert ours.sent == official.sent


def test_a_closed_client_sends_nothing() -> None:
    recorder = Recorder(200, SAID)
    with OfficialClient(HOST, transport=recorder) as client:
        client.generate(model="m", prompt="p")
    with pytest.raises(RuntimeError, match="closed"):
        client.generate(model="m", prompt="p")
    assert len(recorder.sent) == 1
