"""What a few calls show of a server: its slots, and whether its models stay in memory together."""

from __future__ import annotations

import pytest

from ollama_utils.checkup import (
    burst,
    burst_calls,
    check_residency,
    fewest_burst_calls,
    residency_calls,
)
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadReplyError
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.scripted import SAID, ScriptedServer

QUESTIONS = [
    Call(model="sim-model", prompt=f"Question {k}?", options={"temperature": 0, "seed": 0})
    for k in range(2)
]


@pytest.mark.parametrize("slots", [1, 4, 8])
def test_a_burst_finds_the_slots(slots: int) -> None:
    # 100 ms a reply: a busy machine does not hide them
    settings = Settings(slots=slots, reply_tokens="24")
    with (
        EmbeddedServer(settings) as server,
        Dispatcher([server.host], memory_bytes=0) as dispatcher,
    ):
        found = burst(dispatcher, QUESTIONS)
        sent = dispatcher.totals()["calls"]
    assert found.slots is not None
    assert slots / 2 <= found.slots <= 2 * slots
    assert found.busy_slots < slots + 0.5  # no server serves for longer than its slots are there
    assert sent <= burst_calls(len(QUESTIONS))
    assert (found.equal_alone, found.equal_full) == (found.asked_alone, found.asked_full)


def test_slots_that_a_server_names_are_believed_and_no_time_means_the_fewest_calls(
    simulator: EmbeddedServer,
) -> None:
    with Dispatcher([f"openai:{simulator.host}/v1"], memory_bytes=0) as dispatcher:
        dispatcher.servers.models()
        found = burst(dispatcher, QUESTIONS, most_s=0)
        assert (found.slots, found.at_once) == (16, 4)
        assert dispatcher.totals()["calls"] == fewest_burst_calls(len(QUESTIONS))


def test_replies_without_a_word_are_calls_that_say_nothing_of_equal_requests() -> None:
    """A model that thinks first has not come to words where replies are short."""
    options = {"temperature": 0, "seed": 0}
    short, whole = (
        Call(model="sim-thinker", prompt="Why?", options=options | {"num_predict": tokens})
        for tokens in (2, 900)
    )
    with (
        EmbeddedServer(Settings(slots=2, time_scale=0.1)) as server,
        Dispatcher([server.host], memory_bytes=0) as dispatcher,
    ):
        found = burst(dispatcher, [short, whole])
        with pytest.raises(BadReplyError):
            burst(dispatcher, [short])
    assert found.tokens_per_s_full
    assert found.asked_alone == 1
    assert found.asked_full > 0


@pytest.mark.parametrize(
    ("load_s", "room", "embedding", "displaced"),
    [
        (0.0, 0, "sim-embed", 0),  # the list of those in memory shows one model that had to leave
        (0.0, 2, "sim-embed", 1),
        (0.0, 1, None, 1),
        (0.2, 0, "sim-embed", 0),  # loads show all but those that embed
        (0.2, 2, "sim-embed", 2),
        (0.2, 1, None, 2),
    ],
)
def test_models_without_room_for_all_displace_each_other(
    load_s: float, room: int, embedding: str | None, displaced: int
) -> None:
    models = ["sim-target", "sim-mutator:latest"]
    settings = Settings(reply_tokens="1", load_s=load_s, max_loaded_models=room)
    with (
        EmbeddedServer(settings) as server,
        Dispatcher([server.host], memory_bytes=0) as dispatcher,
    ):
        found = check_residency(dispatcher, models, embedding)
        calls = dispatcher.totals()["calls"]
    assert found.displaced is not None
    assert len(found.displaced) == displaced
    assert found.load_s >= load_s
    assert calls == residency_calls(len(models) + (embedding is not None))


def test_of_a_server_that_says_nothing_of_memory_and_time_nothing_is_found() -> None:
    said = SAID | {"version": "1"}
    with (
        ScriptedServer(lambda body: (200, said if body else {"models": 7})) as server,
        Dispatcher([server.host], memory_bytes=0) as dispatcher,
    ):
        assert check_residency(dispatcher, ["a", "b"]).displaced is None


def test_one_model_is_called_once_and_displaces_nobody(dispatcher: Dispatcher) -> None:
    assert check_residency(dispatcher, ["sim-target", "sim-target:latest"]).displaced is None
    assert dispatcher.totals()["calls"] == residency_calls(1) == 1
