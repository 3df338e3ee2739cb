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
from ollama_utils.dispatcher import Dispatcher, account_totals
from ollama_utils.errors import BadReplyError
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.scripted import ScriptedServer

QUESTIONS = [
    Call(model="sim-model", prompt=f"Question {k}?", options={"temperature": 0, "seed": 0})
    for k in range(2)
]


@pytest.mark.parametrize("slots", [1, 4, 8])
def test_a_burst_names_the_slots(slots: int) -> None:
    settings = Settings(
        slots=slots, reply_tokens="24"
    )  # 100 ms a reply: a busy machine does not hide them
    with EmbeddedServer(settings) as server, Dispatcher([server.host], cache_size=0) as dispatcher:
        showed = burst(dispatcher, QUESTIONS)
        sent = account_totals(dispatcher)["calls"]
    assert showed.slots is not None
    assert slots / 2 <= showed.slots <= 2 * slots
    assert showed.busy_slots < slots + 0.5  # no server serves for longer than its slots are there
    assert sent <= burst_calls(len(QUESTIONS))
    assert (showed.equal_alone, showed.equal_full) == (showed.asked_alone, showed.asked_full)


def test_replies_without_a_word_are_calls_that_tell_nothing_of_equal_requests() -> None:
    """A model that thinks first has not come to words where replies are short."""
    options = {"temperature": 0, "seed": 0}
    short, whole = (
        Call(model="sim-thinker", prompt="Why?", options=options | {"num_predict": tokens})
        for tokens in (2, 900)
    )
    with (
        EmbeddedServer(Settings(slots=2)) as server,
        Dispatcher([server.host], cache_size=0) as dispatcher,
    ):
        showed = burst(dispatcher, [short, whole])
        with pytest.raises(BadReplyError):
            burst(dispatcher, [short])
    assert showed.tokens_per_s_full
    assert (showed.asked_alone, showed.asked_full) == (1, showed.at_once * 3 // 2)


def test_a_server_that_tells_its_slots_is_believed(simulator: EmbeddedServer) -> None:
    with Dispatcher([f"openai:{simulator.host}/v1"], cache_size=0) as dispatcher:
        dispatcher.models()
        assert burst(dispatcher, QUESTIONS).slots == 16


def test_a_burst_that_has_no_time_makes_the_fewest_calls(simulator: EmbeddedServer) -> None:
    with Dispatcher([simulator.host], cache_size=0) as dispatcher:
        assert burst(dispatcher, QUESTIONS, most_s=0).at_once <= 4
        assert account_totals(dispatcher)["calls"] == fewest_burst_calls(len(QUESTIONS))


def test_a_server_that_does_not_tell_what_is_in_memory_displaces_nobody_that_is_known() -> None:
    """It knows no /api/ps, and tells of no time."""
    said = {
        "model": "m",
        "response": "Yes.",
        "message": {"content": "Yes."},
        "done": True,
        "version": "1",
    }
    with (
        ScriptedServer(lambda body: (200, said if body else {"models": 7})) as server,
        Dispatcher([server.host], cache_size=0) as dispatcher,
    ):
        assert check_residency(dispatcher, ["a", "b"]).displaced is None
        assert account_totals(dispatcher)["calls"] == residency_calls(2)


@pytest.mark.parametrize(
    ("load_s", "room", "embedding", "displaced"),
    [
        (0.0, 0, "sim-embed", 0),  # what is in memory tells of one model that had to leave
        (0.0, 2, "sim-embed", 1),
        (0.0, 1, None, 1),
        (0.2, 0, "sim-embed", 0),  # loads tell of all but those that embed
        (0.2, 2, "sim-embed", 2),
        (0.2, 1, None, 2),
    ],
)
def test_models_without_room_for_all_displace_each_other(
    load_s: float, room: int, embedding: str | None, displaced: int
) -> None:
    models = ["sim-target", "sim-mutator:latest"]
    settings = Settings(reply_tokens="1", load_s=load_s, max_loaded_models=room)
    with EmbeddedServer(settings) as server, Dispatcher([server.host], cache_size=0) as dispatcher:
        found = check_residency(dispatcher, models, embedding)
        calls = account_totals(dispatcher)["calls"]
    assert found.displaced is not None
    assert len(found.displaced) == displaced
    assert found.load_s >= load_s
    assert calls == residency_calls(len(models) + (embedding is not None))


def test_one_model_is_called_once_and_displaces_nobody(dispatcher: Dispatcher) -> None:
    assert check_residency(dispatcher, ["sim-target", "sim-target:latest"]).displaced is None
    assert account_totals(dispatcher)["calls"] == residency_calls(1) == 1
