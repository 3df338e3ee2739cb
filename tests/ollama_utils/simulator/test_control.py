"""The routes under /simulator/: counts, slots and faults, seen through the official client."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import ollama
import pytest

from ollama_utils.simulator.process import EmbeddedServer
from tests.ollama_utils.simulator.conftest import Ask

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


@pytest.mark.parametrize("payload", [{}, {"slots": 0}, {"slots": "4"}, {"slots": True}, [], b"{"])
def test_slots_that_cannot_be_are_refused(ask: Ask, payload: object) -> None:
    status, reply = ask("POST", "/simulator/slots", payload)
    assert status == 400
    assert "slots" in reply["error"]


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("error_500", ollama.ResponseError, CRASH),
        ("busy_503", ollama.ResponseError, BUSY),
        ("drop", httpx.RemoteProtocolError, "disconnected"),
        ("not_json", ValueError, "Expecting value"),
    ],
)
def test_each_fault_is_what_its_name_says(
    server: EmbeddedServer, client: ollama.Client, kind: str, error: type[Exception], says: str
) -> None:
    server.set_faults([{"kind": kind, "rate": 1.0}])
    calls: list[Callable[[], object]] = [
        lambda: client.generate("sim-target", "x"),
        lambda: client.chat("sim-target", [{"role": "user", "content": "x"}]),
        lambda: client.embed("sim-embed", "x"),
    ]
    for call in calls:
        with pytest.raises(error, match=says):
            call()
    assert server.stats()["failed"] == 3
    assert server.stats()["faults"] == {kind: 3}


def test_an_empty_reply_is_a_reply_without_words(server: EmbeddedServer, client: ollama.Client) -> None:
    server.set_faults([{"kind": "empty", "rate": 1.0}])
    reply = client.generate("sim-target", "x")
    assert (reply.response, reply.done) == ("", True)
    assert client.embed("sim-embed", "x").embeddings == []


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
