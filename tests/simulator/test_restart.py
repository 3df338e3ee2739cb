"""A server of ours that dies is started again where it was, a few times, by whoever notices first."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx
import ollama
import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.threads import wait_until
from tests.simulator.conftest import TLS

QUESTION = "How do I boil an egg?"
SETTINGS = Settings(slots=3, time_scale=0, seed=7)


@pytest.fixture
def mortal() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(SETTINGS) as server:
        yield server


def kill(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive())


def say(server: EmbeddedServer) -> str:
    client = ollama.Client(server.host, timeout=10, trust_env=False, verify=TLS)
    try:
        return client.generate("sim-target", QUESTION).response or ""
    finally:
        client._client.close()


def test_one_that_runs_is_left_alone(mortal: EmbeddedServer, capfd: pytest.CaptureFixture[str]) -> None:
    pid = mortal.pid
    assert mortal.ensure_running() is None
    assert (mortal.pid, mortal.restarts, capfd.readouterr().err) == (pid, 0, "")


def test_one_that_died_is_started_again_where_it_was(
    mortal: EmbeddedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    host, pid, said = mortal.host, mortal.pid, say(mortal)
    # A connection that stays open keeps the port busy after the server's end.
    with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as connection:
        connection.sendall(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100)
        kill(mortal)
        assert not mortal.alive()
        assert mortal.ensure_running() is None
    assert (mortal.alive(), mortal.host, mortal.restarts) == (True, host, 1)
    assert mortal.pid != pid
    assert say(mortal) == said
    assert capfd.readouterr().err == (
        "the embedded simulator had ended (it ended with status -9 and said nothing); started again, 1 of 3\n"
    )


def test_many_who_notice_at_once_start_one(mortal: EmbeddedServer, capfd: pytest.CaptureFixture[str]) -> None:
    at_once = Barrier(16)

    def notice(_: int) -> str | None:
        at_once.wait()
        return mortal.ensure_running()

    kill(mortal)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(notice, range(16))) == [None] * 16
    assert mortal.restarts == 1
    assert capfd.readouterr().err.count("\n") == 1
    assert say(mortal)


def test_what_a_restart_keeps_and_what_it_loses_is_told(mortal: EmbeddedServer) -> None:
    mortal.set_slots(5)
    mortal.set_faults([{"kind": "latency", "rate": 1.0, "seconds": 0.001}])
    mortal.set_pace(2)
    mortal.set_outage("hang", at="all")
    say_digest = mortal.set_digest("sim-target")
    mortal.end_outage()
    say(mortal)
    before = mortal.stats()
    assert (before["calls"], before["restarts"], before["slots"]) == (1, 0, 5)
    kill(mortal)
    assert mortal.ensure_running() is None
    after = mortal.stats()
    kept = {name: after[name] for name in ("slots", "seed", "time_scale")}
    assert kept == {"slots": 5, "seed": 7, "time_scale": 0}
    assert (after["calls"], after["restarts"], after["pace_factor"], after["outage"]) == (0, 1, 1, None)
    tags = httpx.get(f"{mortal.host}/api/tags", trust_env=False, verify=TLS).text
    faults = httpx.get(f"{mortal.host}/simulator/faults", trust_env=False, verify=TLS).json()
    assert say_digest not in tags
    assert faults == {"faults": []}
    assert mortal.reset_stats()["restarts"] == 1
    assert mortal.stats()["restarts"] == 0


def test_after_three_restarts_it_stays_dead(
    mortal: EmbeddedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for count in (1, 2, 3):
        kill(mortal)
        assert mortal.ensure_running() is None
        assert f"started again, {count} of 3\n" in capfd.readouterr().err
    kill(mortal)
    reason = mortal.ensure_running()
    assert reason is not None
    assert reason.endswith("said nothing; it had been started again 3 times")
    assert "\n" not in reason
    assert mortal.ensure_running() == reason
    assert (mortal.alive(), mortal.restarts, capfd.readouterr().err) == (False, 3, "")


def test_a_port_that_another_took_is_a_reason_that_stays(
    mortal: EmbeddedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    kill(mortal)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(mortal.host.rpartition(":")[2])))
        other.listen()
        reason = mortal.ensure_running()
    assert reason is not None
    assert "to start it again failed: the embedded simulator did not start: " in reason
    assert "in use" in reason
    assert "\n" not in reason
    assert mortal.ensure_running() == reason
    assert capfd.readouterr().err == ""


def test_one_that_was_closed_is_not_started_again() -> None:
    with EmbeddedServer(SETTINGS) as server:
        pass
    assert server.ensure_running() == f"the embedded simulator at {server.host!r} was closed"
    server.close()
    assert not server.alive()


def test_all_that_ran_are_ended_at_the_end() -> None:
    with EmbeddedServer(SETTINGS) as server:
        kill(server)
        assert server.ensure_running() is None
        port = int(server.host.rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
