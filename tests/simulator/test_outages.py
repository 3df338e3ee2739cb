"""Outages of the whole server, its pace, and digests that change, as real clients meet them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import ollama
import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.threads import wait_until
from tests.simulator.conftest import TLS, Ask
from tests.simulator.virtual import Scene

HEALTHY = ["/", "/api/version", "/api/tags", "/api/ps", "/v1/models", "/props", "/slots?model=sim-target"]
TURN = {"model": "sim-target", "messages": [{"role": "user", "content": "x"}], "stream": False}
CALLS = [
    ("/api/generate", {"model": "sim-target", "prompt": "x", "stream": False}),
    ("/api/generate", {"model": "sim-target"}),
    ("/api/chat", TURN),
    ("/api/embed", {"model": "sim-embed", "input": "x"}),
    ("/v1/chat/completions", TURN),
    ("/v1/embeddings", {"model": "sim-embed", "input": "x"}),
]


@pytest.fixture
def server(session_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    session_server.reset_stats()
    yield session_server
    session_server.end_outage()
    session_server.set_pace(1)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as made:
        yield made


def post(server: EmbeddedServer, path: str, body: object) -> int:
    return httpx.post(server.host + path, json=body, timeout=60, trust_env=False, verify=TLS).status_code


def test_a_server_that_looks_healthy_and_hangs_goes_on_at_the_end(
    server: EmbeddedServer, ask: Ask, pool: ThreadPoolExecutor
) -> None:
    server.set_outage("hang")
    held = [pool.submit(post, server, path, body) for path, body in CALLS]
    wait_until(lambda: server.stats()["in_flight"] == len(CALLS))
    assert [ask("GET", path)[0] for path in HEALTHY] == [200] * len(HEALTHY)
    assert ask("POST", "/api/show", {"model": "sim-target"})[0] == 200
    assert ask("POST", "/api/generate", {"model": "nope", "prompt": "x"})[0] == 404
    assert server.stats()["in_flight"] == len(CALLS)
    assert not any(future.done() for future in held)
    server.end_outage()
    assert [future.result(60) for future in held] == [200] * len(CALLS)


def test_a_server_that_hangs_altogether_answers_its_control_routes_alone(
    server: EmbeddedServer, ask: Ask, pool: ThreadPoolExecutor
) -> None:
    server.set_outage("hang", at="all")
    for path in HEALTHY:
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(server.host + path, timeout=0.1, trust_env=False, verify=TLS)
    held = pool.submit(post, server, *CALLS[0])
    assert ask("GET", "/simulator/outage") == (200, {"outage": {"mode": "hang", "at": "all", "for_s": None}})
    server.end_outage()
    assert held.result(60) == 200
    assert ask("GET", "/simulator/outage") == (200, {"outage": None})


def test_what_is_under_way_stands_still_and_goes_on(server: EmbeddedServer) -> None:
    server.set_pace(10_000)  # nearly a second a token
    client = ollama.Client(server.host, timeout=60, trust_env=False, verify=TLS)
    pieces = client.generate("sim-target", "How do I boil an egg?", stream=True)
    first = next(pieces)
    server.set_outage("hang")
    written = server.stats()["decode_tokens"]
    assert (server.stats()["in_flight"], written) == (1, 0)
    server.set_pace(1)
    assert server.stats()["in_flight"] == 1, "a pace does not end an outage"
    server.end_outage()
    text = (first.response or "") + "".join(piece.response or "" for piece in pieces)
    assert text == client.generate("sim-target", "How do I boil an egg?").response
    client._client.close()


def test_a_client_that_leaves_while_the_server_hangs_is_let_go(server: EmbeddedServer) -> None:
    server.set_outage("hang")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.host + CALLS[0][0], json=CALLS[0][1], timeout=0.1, trust_env=False, verify=TLS)
    wait_until(lambda: server.stats()["disconnected"] == 1)
    assert server.stats()["in_flight"] == 0


def test_an_outage_ends_by_itself_after_its_seconds(server: EmbeddedServer) -> None:
    server.set_outage("hang", for_s=0.2)
    assert post(server, *CALLS[0]) == 200
    assert server.stats()["outage"] is None


def test_a_new_outage_takes_the_place_of_the_old_one_and_of_its_end(
    server: EmbeddedServer, pool: ThreadPoolExecutor
) -> None:
    server.set_outage("hang", for_s=0.2)
    server.set_outage("hang", at="all")
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(server.host, timeout=0.6, trust_env=False, verify=TLS)
    # A GET, sent at once: the body of a POST may meet the reset first, and reading then finds only an end.
    held = pool.submit(httpx.get, server.host, timeout=60, trust_env=False, verify=TLS)
    server.set_outage("drop", at="all")
    with pytest.raises(httpx.ReadError):
        held.result(60)


@pytest.mark.parametrize("path", [path for path, _ in CALLS])
def test_dropped_calls_are_reset_and_the_lists_are_not(server: EmbeddedServer, ask: Ask, path: str) -> None:
    server.set_outage("drop")
    with pytest.raises(httpx.ReadError):
        post(server, path, dict(CALLS)[path])
    assert ask("GET", "/api/tags")[0] == 200
    server.end_outage()
    assert post(server, path, dict(CALLS)[path]) == 200


def test_calls_under_way_are_dropped_too(server: EmbeddedServer, pool: ThreadPoolExecutor) -> None:
    server.set_pace(1e6)
    held = [pool.submit(post, server, *CALLS[0]) for _ in range(9)]
    wait_until(lambda: server.stats()["in_flight"] == 9)
    server.set_outage("drop", at="all")
    for future in held:
        with pytest.raises(httpx.ReadError):
            future.result(60)
    wait_until(lambda: server.stats()["in_flight"] == 0)
    with pytest.raises(httpx.ReadError):
        httpx.get(server.host, trust_env=False, verify=TLS)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({}, "mode"),
        ([], "object"),
        (b"{", "Expecting"),
        (b"[" * 10**5, "deeply"),
        ({"mode": "sleep"}, "mode must be one of"),
        ({"mode": []}, "mode must be one of"),
        ({"mode": "hang", "at": "some"}, "at must be one of"),
        ({"mode": "hang", "for_s": 0}, "for_s must be"),
        ({"mode": "hang", "for_s": True}, "for_s must be"),
        (b'{"mode": "hang", "for_s": NaN}', "for_s must be"),
        ({"mode": "hang", "more": 1}, "object of"),
    ],
)
def test_an_outage_that_cannot_be_is_refused(ask: Ask, payload: object, says: str) -> None:
    status, reply = ask("POST", "/simulator/outage", payload)
    assert status == 400
    assert says in reply["error"]
    assert ask("GET", "/simulator/outage")[1] == {"outage": None}


@pytest.mark.parametrize(
    "payload", [{}, [], {"factor": 0}, {"factor": True}, {"factor": "2"}, b'{"factor": NaN}', {"factor": 1e7}]
)
def test_a_pace_that_cannot_be_is_refused(ask: Ask, server: EmbeddedServer, payload: object) -> None:
    status, reply = ask("POST", "/simulator/pace", payload)
    assert status == 400
    assert "factor" in reply["error"]
    assert server.stats()["pace_factor"] == 1


@pytest.mark.parametrize("profile", ["ideal", "gb10", "rtx3090"])
def test_a_slower_machine_takes_so_many_times_as_long(profile: str) -> None:
    def ends(speed: float, at_s: float) -> list[float]:
        scene = Scene(profile, slots=2)
        for moment in (0.0, 0.1, 0.2):
            scene.call(at_s=moment, prompt_tokens=100, reply_tokens=200)
        scene.agenda.at(at_s, partial(scene.server.set_speed, speed))
        return [turn.due_s for turn in scene.run()]

    plain = ends(1.0, 0.0)
    middle_s = plain[0] / 2
    for at_s in (0.3, middle_s):
        for factor in (10.0, 0.5):
            slower = ends(1 / factor, at_s)
            expected = [at_s + (end - at_s) * factor for end in plain]
            assert slower[0] == pytest.approx(expected[0], rel=1e-6)
            if profile != "ideal":
                assert slower == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("profile", ["ideal", "rtx3090"])
def test_a_machine_that_stood_still_is_late_by_just_so_long(profile: str) -> None:
    def ends(still: tuple[float, float] | None) -> list[float]:
        scene = Scene(profile, slots=2)
        for _ in range(3):
            scene.call(prompt_tokens=100, reply_tokens=200)
        if still is not None:
            scene.agenda.at(still[0], partial(scene.server.set_speed, 0.0))
            scene.agenda.at(still[1], partial(scene.server.set_speed, 1.0))
        return [turn.due_s for turn in scene.run()]

    plain = ends(None)
    load_s = Scene(profile).pace.load_s(4.0)
    for begins_s in (load_s / 2, load_s + 0.01, load_s + 0.3):
        assert ends((begins_s, begins_s + 50)) == pytest.approx([end + 50 for end in plain], rel=1e-9)


def test_a_machine_that_stands_still_does_nothing_even_where_nothing_takes_time() -> None:
    scene = Scene(time_scale=0)
    scene.server.set_speed(0.0)
    scene.call(prompt_tokens=1, reply_tokens=1)
    assert math.isnan(scene.run()[0].due_s)


def test_a_digest_that_changes_is_told_everywhere_from_then_on(server: EmbeddedServer, ask: Ask) -> None:
    def told() -> tuple[str, str, str]:
        tags = {model["name"]: model for model in ask("GET", "/api/tags")[1]["models"]}
        listed = {model["id"]: model for model in ask("GET", "/v1/models")[1]["data"]}
        show = ask("POST", "/api/show", {"model": "sim-helper"})[1]
        tag = tags["sim-helper:latest"]
        assert show["modified_at"] == tag["modified_at"]
        assert listed["sim-helper:latest"]["tags"] == [tag["digest"]]
        return tag["digest"], tag["modified_at"], tags["sim-target:latest"]["digest"]

    before = told()
    said = ask("POST", "/api/chat", TURN | {"model": "sim-helper"})[1]["message"]
    new = os.urandom(32).hex()
    assert server.set_digest("sim-helper", new) == new
    assert told()[0] == new
    assert told()[1] > before[1]
    assert told()[2] == before[2]
    assert ask("POST", "/api/chat", TURN | {"model": "sim-helper"})[1]["message"] == said
    made_up = server.set_digest("sim-helper:latest")
    assert made_up == told()[0] not in {new, before[0]}
    server.set_digest("sim-helper", before[0])


@pytest.mark.parametrize(
    ("payload", "status", "says"),
    [
        ({"model": "nope"}, 404, "'nope' not found"),
        ({"model": "sim-target", "digest": "abc"}, 400, "64 hexadecimal digits"),
        ({"model": "sim-target", "digest": 5}, 400, "64 hexadecimal digits"),
        ({}, 400, "expected"),
        ([], 400, "expected"),
        (b"{", 400, "Expecting"),
    ],
)
def test_a_digest_that_cannot_be_is_refused(ask: Ask, payload: object, status: int, says: str) -> None:
    got, reply = ask("POST", "/simulator/digest", payload)
    assert got == status
    assert says in reply["error"]


def test_a_server_of_its_own_is_as_before_without_any_of_it() -> None:
    with EmbeddedServer(Settings(time_scale=0)) as server:
        stats = server.stats()
        assert (stats["outage"], stats["pace_factor"]) == (None, 1)
