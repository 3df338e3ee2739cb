"""The routes under /simulator/: counts, slots and faults, seen through the official client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import ollama
import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.threads import wait_until
from tests.simulator.conftest import TLS, Ask

CRASH = "model runner has unexpectedly stopped"
BUSY = "server busy, please try again.  maximum pending requests exceeded"


def test_the_counts_are_of_what_was_asked(server: EmbeddedServer, client: ollama.Client) -> None:
    for k in range(3):
        client.generate("sim-target", f"Question {k}?")
    client.embed("sim-embed", "x")
    with pytest.raises(ollama.ResponseError):
        client.generate("nope", "x")
    stats = server.stats()
    assert stats["calls"] == 4
    assert stats["calls_by_model"] == {"sim-target:latest": 3, "sim-embed:latest": 1}
    assert (stats["failed"], stats["in_flight"], stats["max_in_flight"]) == (1, 0, 1)
    assert stats["completion_tokens"] == 3 * 64


def test_busy_slot_seconds_are_the_sum_of_what_the_replies_report(
    server: EmbeddedServer, client: ollama.Client
) -> None:
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda k: client.generate("sim-target", f"Question {k}?"), range(24)))
    served_s = sum(((r.prompt_eval_duration or 0) + (r.eval_duration or 0)) / 1e9 for r in replies)
    stats = server.stats()
    assert stats["busy_slot_s"] == pytest.approx(served_s, rel=1e-3)
    assert stats["busy_slot_s"] <= 4 * stats["window_s"]
    assert 1 <= stats["max_in_flight"] <= 12


def test_counts_can_be_set_to_zero(server: EmbeddedServer, client: ollama.Client) -> None:
    client.generate("sim-target", "x")
    assert server.reset_stats()["calls"] == 1
    assert server.stats()["calls"] == 0
    assert server.stats()["busy_slot_s"] == 0


def test_an_instruction_that_the_mutator_does_not_know_is_counted(
    server: EmbeddedServer, client: ollama.Client
) -> None:
    client.generate("sim-mutator", "Paraphrase the query.\n<query>What is tea?</query>")
    assert server.stats()["unrecognised_instructions"] == 0
    client.generate("sim-mutator", "Sing the query.\n<query>What is tea?</query>")
    assert server.stats()["unrecognised_instructions"] == 1


def test_slots_can_be_moved(server: EmbeddedServer) -> None:
    server.set_slots(9)
    assert server.stats()["slots"] == 9


@pytest.mark.parametrize(
    "payload", [{}, {"slots": 0}, {"slots": "4"}, {"slots": True}, {"slots": 10**9}, [], b"{"]
)
def test_slots_that_cannot_be_are_refused(ask: Ask, payload: object) -> None:
    status, reply = ask("POST", "/simulator/slots", payload)
    assert status == 400
    assert "slots" in reply["error"]


PAGE = "Expecting value"
BROKEN = "peer .*closed connection"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ({"kind": "error_500"}, ollama.ResponseError, CRASH),
        ({"kind": "busy_503"}, ollama.ResponseError, BUSY),
        ({"kind": "stall", "seconds": 0.01}, ollama.ResponseError, "timed out waiting for llama runner"),
        ({"kind": "not_json"}, ValueError, PAGE),
        ({"kind": "not_json", "status": 502}, ollama.ResponseError, "Bad Gateway"),
        ({"kind": "cut_json"}, ValueError, r"Expecting|Unterminated"),
        ({"kind": "wrong_type"}, ValueError, "validation error"),
        ({"kind": "drop", "at": "start"}, httpx.ReadError, "reset"),
        ({"kind": "drop", "at": "body"}, httpx.ReadError, "reset"),
        ({"kind": "drop", "at": "end"}, httpx.ReadError, "reset"),
        ({"kind": "truncated"}, httpx.RemoteProtocolError, BROKEN),
    ],
)
def test_each_fault_is_what_its_name_says_streamed_or_not(
    server: EmbeddedServer,
    client: ollama.Client,
    fault: dict[str, Any],
    error: type[Exception],
    says: str,
    stream: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    server.set_faults([fault | {"rate": 1.0}])
    turns = [{"role": "user", "content": "x"}]
    calls: list[Callable[[], object]] = [
        lambda: _read(client.generate("sim-target", "x", stream=cast("Any", stream))),
        lambda: _read(client.chat("sim-target", turns, stream=cast("Any", stream))),
        lambda: client.embed("sim-embed", "x"),
    ]
    for call in calls:
        with pytest.raises(error, match=says):
            call()
    stats = server.stats()
    assert (stats["failed"], stats["in_flight"]) == (3, 0)
    assert stats["faults"] == {fault["kind"]: 3}


def _read(reply: object) -> None:
    """Read a reply to its end, when it is streamed."""
    if isinstance(reply, Iterator):
        list(reply)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "stall"},
        *({"kind": "hang", "at": place} for place in ("start", "body", "end")),
        *({"kind": "dribble", "at": place} for place in ("start", "body")),
        {"kind": "latency", "seconds": 60},
    ],
)
def test_a_client_that_leaves_a_fault_that_holds_it_frees_everything(
    server: EmbeddedServer,
    client: ollama.Client,
    fault: dict[str, Any],
    stream: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    server.set_faults([fault | {"rate": 1.0}])
    server.set_slots(1)
    address = urlsplit(server.host)
    hasty = HTTPConnection(str(address.hostname), address.port)
    question = {"model": "sim-target", "prompt": "x", "stream": stream}
    hasty.request("POST", "/api/generate", json.dumps(question))
    wait_until(lambda: server.stats()["faults"] == {fault["kind"]: 1})
    hasty.close()
    wait_until(lambda: server.stats()["disconnected"] == 1)
    assert server.stats()["in_flight"] == 0
    server.set_faults([])
    assert client.generate("sim-target", "x").done


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "latency", "seconds": 0.01},
        {"kind": "dribble", "at": "start", "seconds": 0.05},
        {"kind": "dribble", "at": "body", "seconds": 0.05},
    ],
)
def test_a_reply_that_is_slow_is_whole(
    server: EmbeddedServer,
    client: ollama.Client,
    fault: dict[str, Any],
    stream: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    def said(prompt: str) -> str:
        if not stream:
            return client.generate("sim-target", prompt).response or ""
        return "".join(part.response or "" for part in client.generate("sim-target", prompt, stream=True))

    expected = [said(f"Question {k}?") for k in range(3)]
    server.set_faults([fault | {"rate": 1.0}])
    assert [said(f"Question {k}?") for k in range(3)] == expected
    assert server.stats()["faults"] == {fault["kind"]: 3}


def test_a_connection_that_ends_after_a_reply_gave_it_whole(ask: Ask, server: EmbeddedServer) -> None:
    question = {"model": "sim-target", "prompt": "x", "stream": False}
    expected = ask("POST", "/api/generate", question)[1]["response"]
    server.set_faults([{"kind": "drop", "rate": 1.0, "at": "after"}])
    status, reply = ask("POST", "/api/generate", question)
    assert (status, reply["response"]) == (200, expected)
    with pytest.raises((RemoteDisconnected, ConnectionError)):
        ask("POST", "/api/generate", question)


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_reply_is_a_reply_without_words(ask: Ask, server: EmbeddedServer, stream: bool) -> None:  # noqa: FBT001 - pytest's
    server.set_faults([{"kind": "empty", "rate": 1.0}])
    status, reply = ask("POST", "/api/generate", {"model": "sim-target", "prompt": "x", "stream": stream})
    said = json.loads(reply) if stream else reply
    assert (status, said["response"], said["done"]) == (200, "", True)
    status, reply = ask("POST", "/api/embed", {"model": "sim-embed", "input": "x"})
    assert (status, reply["embeddings"]) == (200, [])


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_is_not_done_says_so(ask: Ask, server: EmbeddedServer, stream: bool) -> None:  # noqa: FBT001 - pytest's
    server.set_faults([{"kind": "not_done", "rate": 1.0}])
    question = {"model": "sim-target", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    status, reply = ask("POST", "/api/chat", question)
    said = json.loads(reply) if stream else reply
    assert (status, said["done"], "done_reason" in said) == (200, False, False)
    assert said["message"]["content"]


def test_an_enormous_reply_is_as_long_as_it_was_to_be(client: ollama.Client, server: EmbeddedServer) -> None:
    rows = client.embed("sim-embed", "x").embeddings
    server.set_faults([{"kind": "enormous", "rate": 1.0, "bytes": 100_000}])
    assert len(client.generate("sim-target", "x").response or "") >= 100_000
    assert len(client.chat("sim-target", [{"role": "user", "content": "x"}]).message.content or "") >= 100_000
    assert client.embed("sim-embed", "x").embeddings == rows


@pytest.mark.parametrize(
    ("path", "question", "status"),
    [
        ("/api/generate", {"model": "nope", "prompt": "x"}, 404),
        ("/api/generate", {"model": "sim-target", "prompt": "x", "options": {"temperature": "hot"}}, 500),
        ("/api/generate", {"model": "sim-embed", "prompt": "x"}, 400),
        ("/api/embed", {"model": "sim-embed", "input": 5}, 400),
    ],
)
def test_a_request_that_ollama_rejects_meets_no_fault(
    ask: Ask, server: EmbeddedServer, path: str, question: object, status: int
) -> None:
    expected = ask("POST", path, question)
    server.set_faults([{"kind": "busy_503", "rate": 1.0}])
    assert ask("POST", path, question) == expected
    assert expected[0] == status
    assert server.stats()["faults"] == {}


def test_the_faults_that_are_played_are_listed(ask: Ask, server: EmbeddedServer) -> None:
    assert ask("GET", "/simulator/faults") == (200, {"faults": []})
    server.set_faults([{"kind": "drop", "rate": 0.5, "at": "body"}])
    (fault,) = ask("GET", "/simulator/faults")[1]["faults"]
    assert fault == {"kind": "drop", "rate": 0.5, "at": "body", "burst": 1, "first": None, "model": None}


def test_a_file_of_faults_is_played_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text('[{"kind": "busy_503", "rate": 1, "model": "sim-mutator"}]')
    with EmbeddedServer(Settings(time_scale=0, faults=str(tmp_path / "faults.json"))) as server:
        client = ollama.Client(server.host, timeout=10, trust_env=False, verify=TLS)
        assert client.generate("sim-target", "x").response
        with pytest.raises(ollama.ResponseError, match=BUSY):
            client.generate("sim-mutator", "x")
        client._client.close()


def test_a_file_of_faults_that_cannot_be_used_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the file of faults .*faults\.json' cannot be read"):
        Settings(faults=str(tmp_path / "faults.json"))


def test_a_fault_can_be_for_one_model_alone(server: EmbeddedServer, client: ollama.Client) -> None:
    server.set_faults([{"kind": "error_500", "rate": 1.0, "model": "sim-mutator"}])
    assert client.generate("sim-target", "x").response
    with pytest.raises(ollama.ResponseError):
        client.generate("sim-mutator", "x")


def test_a_repeated_request_meets_the_same_faults_again(
    server: EmbeddedServer, client: ollama.Client
) -> None:
    def attempts() -> list[bool]:
        server.set_faults([{"kind": "error_500", "rate": 0.5}])
        return [_works(client) for _ in range(12)]

    first = attempts()
    assert first == attempts()
    assert set(first) == {True, False}


def _works(client: ollama.Client) -> bool:
    try:
        client.generate("sim-target", "the same again")
    except ollama.ResponseError:
        return False
    return True


def test_a_fault_that_cannot_be_is_refused_in_one_line(server: EmbeddedServer) -> None:
    with pytest.raises(ValueError, match="kind must be one of"):
        server.set_faults([{"kind": "earthquake", "rate": 0.5}])
    with pytest.raises(ValueError, match="rate must be a number from 0 to 1, got 2"):
        server.set_faults([{"kind": "drop", "rate": 2}])
