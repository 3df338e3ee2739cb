"""The line for a slot, and what a reply tells of the time it took: laws, and the server over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.agenda import Slots
from simulator.engine import BUSY
from simulator.process import EmbeddedServer
from simulator.profiles import PROFILES
from simulator.settings import Settings
from tests.simulator.conftest import TLS
from tests.simulator.virtual import Scene

ARRIVALS = st.lists(
    st.tuples(st.floats(0, 3), st.integers(0, 600), st.integers(0, 50)), min_size=1, max_size=25
)


@given(name=st.sampled_from(list(PROFILES)), slots=st.integers(1, 5), calls=ARRIVALS)
def test_calls_are_served_in_the_order_of_arrival_no_more_than_slots_at_once_and_no_slot_idles(
    name: str, slots: int, calls: list[tuple[float, int, int]]
) -> None:
    scene = Scene(name, slots=slots)
    scene.call()
    for at_s, prompt_tokens, reply_tokens in sorted(calls):
        scene.call(at_s=10 + at_s, prompt_tokens=prompt_tokens, reply_tokens=reply_tokens)
    turns = scene.run()[1:]
    starts = [turn.started_s for turn in turns]
    assert starts == sorted(starts)
    for place, turn in enumerate(turns):
        before = turns[:place]
        assert sum(other.due_s > turn.started_s for other in before) < slots
        waited = turn.started_s > turn.arrived_s
        assert not waited or turn.started_s in {other.due_s for other in before}


@given(name=st.sampled_from(list(PROFILES)), slots=st.integers(1, 5), calls=ARRIVALS)
def test_what_load_prompt_and_reply_leave_of_the_total_is_the_wait_for_a_slot(
    name: str, slots: int, calls: list[tuple[float, int, int]]
) -> None:
    scene = Scene(name, slots=slots, max_loaded_models=1)
    for at_s, prompt_tokens, reply_tokens in calls:
        model = "ab"[prompt_tokens % 2]
        scene.call(model, at_s=at_s, prompt_tokens=prompt_tokens, reply_tokens=reply_tokens)
    turns = scene.run()
    for turn in turns:
        rest_s = turn.total_s - turn.load_s - turn.prefill_s - turn.decode_s
        assert rest_s == pytest.approx(turn.started_s - turn.loaded_s, abs=1e-6)
    counted = scene.counters.snapshot()
    assert counted["wait_s"] == pytest.approx(sum(turn.started_s - turn.loaded_s for turn in turns))
    assert counted["load_wait_s"] == pytest.approx(sum(turn.load_s for turn in turns))
    assert counted["busy_slot_s"] == pytest.approx(sum(turn.prefill_s + turn.decode_s for turn in turns))


@pytest.mark.parametrize("name", PROFILES)
def test_a_queue_of_n_equal_calls_on_one_slot_takes_n_services(name: str) -> None:
    scene = Scene(name)
    for _ in range(50):
        scene.call(prompt_tokens=30, reply_tokens=20)
    turns = scene.run()
    service_s = scene.pace.read_s(30) + scene.pace.steps_s(20, 1, 30)
    assert turns[-1].due_s - turns[0].loaded_s == pytest.approx(50 * service_s)


@pytest.mark.parametrize("name", ["ideal", "gb10", "cpu16"])
def test_whoever_leaves_gives_the_rest_of_its_time_to_the_others(name: str) -> None:
    scene = Scene(name, slots=2)
    for tokens in (10**6, 10**6, 10**6, 10):
        scene.call(reply_tokens=tokens)
    scene.leave(2, at_s=20.0)  # from the line
    scene.leave(0, at_s=30.0)  # from a slot, while it writes
    *_, last = scene.run(40)
    assert last.started_s == 30
    decoded = scene.counters.snapshot()["decode_tokens"]
    alone = scene.pace.steps_in(30.0 - scene.turns[0].decoding_s, 1, 0)
    assert 0 < decoded <= alone + 10


def test_more_slots_admit_at_once_and_fewer_let_calls_finish() -> None:
    slots, admitted = Slots(1), [False] * 4

    def take(place: int) -> None:
        slots.take(place, lambda: admitted.__setitem__(place, True))

    for place in range(4):
        take(place)
    assert admitted == [True, False, False, False]
    slots.resize(3)
    assert admitted == [True, True, True, False]
    slots.resize(1)
    slots.give_back()
    slots.give_back()
    assert not admitted[3]
    slots.give_back()
    assert admitted[3]


# Over HTTP: a server on which nothing ends by itself, so that what a call waits for is no matter of luck.


@pytest.fixture(scope="module")
def never_loaded() -> Iterator[EmbeddedServer]:
    """A server whose first load does not end, with room for two requests that wait for it."""
    with EmbeddedServer(Settings(profile="cpu16", time_scale=1000, max_queue=2)) as server:
        yield server


@pytest.fixture(scope="module")
def one_endless_slot() -> Iterator[EmbeddedServer]:
    """A server of one slot in which no reply ends."""
    with EmbeddedServer(Settings(slots=1, time_scale=100_000)) as server:
        yield server


@contextmanager
def calling(server: EmbeddedServer, model: str = "sim-target", **body: object) -> Iterator[None]:
    """A client that waits for a reply, and leaves at the end without one."""
    address = urlsplit(server.host)
    connection = HTTPConnection(str(address.hostname), address.port)
    connection.request("POST", "/api/generate", json.dumps({"model": model, "prompt": "Why?", **body}))
    try:
        yield
    finally:
        connection.close()


def until(server: EmbeddedServer, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The counts as soon as they are so."""
    deadline = time.monotonic() + 20
    while not holds(stats := server.stats()):
        assert time.monotonic() < deadline, stats
        time.sleep(0.01)
    return stats


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place_in_the_load_queue_at_once(
    never_loaded: EmbeddedServer, *, stream: bool
) -> None:
    never_loaded.reset_stats()
    with calling(never_loaded, stream=stream), calling(never_loaded, "sim-judge", stream=stream):
        until(never_loaded, lambda stats: stats["waiting_for_load"] == 2)
    stats = until(never_loaded, lambda stats: stats["in_flight"] == 0)
    assert (stats["waiting_for_load"], stats["disconnected"], stats["loads"]) == (0, 2, 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_and_its_place_in_line_at_once(
    one_endless_slot: EmbeddedServer, *, stream: bool
) -> None:
    server = one_endless_slot
    server.reset_stats()
    with calling(server, stream=stream):
        until(server, lambda stats: stats["in_flight"] == 1)
        with calling(server, stream=stream):
            until(server, lambda stats: stats["waiting_for_slot"] == 1)
        stats = until(server, lambda stats: stats["waiting_for_slot"] == 0)
        assert (stats["in_flight"], stats["disconnected"]) == (1, 1)
        with calling(server, stream=stream):
            until(server, lambda stats: stats["waiting_for_slot"] == 1)
            before_s = server.stats()["wait_s"]
    stats = until(server, lambda stats: stats["in_flight"] == 0)
    assert stats["waiting_for_slot"] == 0
    assert stats["wait_s"] >= before_s


def test_a_call_beyond_the_load_queue_gets_ollama_s_503_and_the_clients_see_it(
    never_loaded: EmbeddedServer,
) -> None:
    never_loaded.reset_stats()
    with calling(never_loaded), calling(never_loaded):
        until(never_loaded, lambda stats: stats["waiting_for_load"] == 2)
        client = ollama.Client(never_loaded.host, timeout=10, trust_env=False, verify=TLS)
        for stream in (False, True):
            with pytest.raises(ollama.ResponseError) as caught:
                list(client.generate("sim-judge", "Why?", stream=stream))
            assert (caught.value.status_code, caught.value.error) == (503, BUSY)
        with pytest.raises(ollama.ResponseError, match="maximum pending requests exceeded"):
            client.embed("sim-embed", "x")
        client._client.close()
        assert never_loaded.stats()["failed"] == 3
    until(never_loaded, lambda stats: stats["in_flight"] == 0)


@pytest.fixture(scope="module")
def machine() -> Iterator[EmbeddedServer]:
    """One model fits, and a load takes a tenth of a second or so."""
    with EmbeddedServer(Settings(profile="rtx3090", time_scale=0.05, slots=2, memory_gb=5.0)) as server:
        yield server


@pytest.fixture
def client(machine: EmbeddedServer) -> Iterator[ollama.Client]:
    machine.reset_stats()
    client = ollama.Client(machine.host, timeout=20, trust_env=False, verify=TLS)
    for model in ("sim-target", "sim-judge"):
        client.generate(model, keep_alive=0)
    until(machine, lambda _: not client.ps().models)
    machine.reset_stats()
    yield client
    client._client.close()


def test_two_models_of_which_one_fits_swap_and_each_reply_tells(
    machine: EmbeddedServer, client: ollama.Client
) -> None:
    replies = [client.generate(("sim-target", "sim-judge")[k % 2], f"Why {k}?") for k in range(4)]
    load_s = [(reply.load_duration or 0) / 1e9 for reply in replies]
    assert load_s == pytest.approx([0.05 * 4 / 3, *[0.05 * (1 + 4 / 3)] * 3], rel=1e-4)
    assert [model.model for model in client.ps().models] == ["sim-judge:latest"]
    stats = machine.stats()
    assert (stats["loads"], stats["swaps"]) == (4, 3)
    assert stats["load_wait_s"] == pytest.approx(sum(load_s), rel=1e-4)


def test_a_reply_tells_how_long_it_waited_for_its_slot(
    machine: EmbeddedServer, client: ollama.Client
) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda k: client.generate("sim-target", f"Why {k}?"), range(16)))

    def slot_wait_s(reply: ollama.GenerateResponse) -> float:
        parts = (reply.load_duration, reply.prompt_eval_duration, reply.eval_duration)
        return ((reply.total_duration or 0) - sum(part or 0 for part in parts)) / 1e9

    stats = machine.stats()
    # Beside the wait there is only the time that the server took to read each request.
    assert stats["wait_s"] > 0
    assert sum(map(slot_wait_s, replies)) >= stats["wait_s"] - 1e-6
    assert stats["decode_tokens"] == 16 * 64


def test_a_model_is_loaded_and_unloaded_without_words(client: ollama.Client) -> None:
    assert client.generate("sim-target", keep_alive="2h", options={"num_ctx": 2048}).done_reason == "load"
    (loaded,) = client.ps().models
    assert (loaded.model, loaded.context_length) == ("sim-target:latest", 2048)
    assert loaded.expires_at is not None
    assert 7000 < loaded.expires_at.timestamp() - time.time() <= 7200
    assert client.generate("sim-target", "Why?", options={"num_ctx": 2048}).load_duration is None
    assert client.generate("sim-target", keep_alive=0).done_reason == "unload"
    assert client.ps().models == []
    client.chat("sim-judge", [{"role": "user", "content": "Why?"}], keep_alive=-1)
    (loaded,) = client.ps().models
    assert loaded.expires_at is not None
    assert loaded.expires_at.year > 2300
    client.chat("sim-judge", [], keep_alive=0)
    assert client.ps().models == []
