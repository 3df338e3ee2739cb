"""The server as a process: it starts, tells why it cannot, and ends with whoever started it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import ollama
import pytest

from ollama_utils.simulator.process import EmbeddedServer, SimulatorError
from ollama_utils.simulator.settings import Settings, slots_from_environment

PARENT = """
import sys, time
from ollama_utils.simulator.process import EmbeddedServer
from ollama_utils.simulator.settings import Settings
server = EmbeddedServer(Settings())
print(server.host, flush=True)
time.sleep(60)
"""


def test_the_settings_reach_the_process() -> None:
    settings = Settings(slots=3, reply_tokens="lognormal:mean=8,sigma=0.5", time_scale=0.5, seed=7)
    with EmbeddedServer(settings) as server:
        stats = server.stats()
    told = {
        name: stats[name] for name in ("slots", "reply_tokens", "time_scale", "seed", "profile", "persona")
    }
    assert told == {
        "slots": 3,
        "reply_tokens": "lognormal:mean=8,sigma=0.5",
        "time_scale": 0.5,
        "seed": 7,
        "profile": "ideal",
        "persona": "cautious",
    }


def test_two_servers_of_one_seed_say_the_same_and_another_seed_says_something_else() -> None:
    def say(seed: int) -> list[str]:
        with EmbeddedServer(Settings(time_scale=0, seed=seed)) as server:
            client = ollama.Client(server.host, timeout=10, trust_env=False)
            said = [client.generate("sim-target", f"What is tea {k}?").response or "" for k in range(5)]
            client._client.close()
            return said

    assert say(1) == say(1)
    assert say(1) != say(2)


def test_a_closed_server_is_gone_and_can_be_closed_again() -> None:
    server = EmbeddedServer(Settings())
    server.close()
    server.close()
    with pytest.raises(SimulatorError, match="does not answer"):
        server.stats()


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SimulatorError, match=rf"did not start: .*{port}"):
            EmbeddedServer(Settings(port=port))


def test_a_persona_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match="no_such"):
        EmbeddedServer(Settings(persona=str(tmp_path / "no_such.toml")))


def test_the_server_leaves_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)  # noqa: S603 - our own text
    assert parent.stdout is not None
    host = parent.stdout.readline().decode().strip()
    port = int(host.rpartition(":")[2])
    assert _listens(port)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while _listens(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _listens(port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_in_the_foreground_it_announces_its_host_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-m", "ollama_utils.simulator"]
    environment = os.environ | {"OLLAMA_NUM_PARALLEL": "5"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)  # noqa: S603 - our own module
    assert process.stdout is not None
    announced = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.stdout.close()
    assert announced["host"].startswith("http://127.0.0.1:")
    assert announced["slots"] == 5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"profile": "abacus"}, "profile must be one of"),
        ({"time_scale": -1}, "time scale must be 0 or a positive number"),
        ({"time_scale": float("nan")}, "time scale must be 0 or a positive number"),
        ({"port": 99_999}, "port must be between 0 and 65535"),
        ({"reply_tokens": "lots"}, "reply tokens must be"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Settings(**settings)  # type: ignore[arg-type] # wrong values are the point


@pytest.mark.parametrize(("text", "slots"), [("", 1), ("0", 1), ("4", 4)])
def test_ollama_s_variable_sets_the_slots(monkeypatch: pytest.MonkeyPatch, text: str, slots: int) -> None:
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", text)
    assert slots_from_environment() == slots


def test_a_variable_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "many")
    with pytest.raises(ValueError, match="OLLAMA_NUM_PARALLEL must be a whole number, got 'many'"):
        slots_from_environment()


def test_a_client_that_gives_up_frees_its_slot() -> None:
    with EmbeddedServer(Settings(slots=1, time_scale=100)) as server:
        hasty = ollama.Client(server.host, timeout=0.2, trust_env=False)
        for stream in (False, True):
            with pytest.raises(Exception, match="timed out"):
                list(hasty.generate("sim-target", "x", stream=stream))
        hasty._client.close()
        deadline = time.monotonic() + 20
        while server.stats()["in_flight"] and time.monotonic() < deadline:
            time.sleep(0.02)
        stats = server.stats()
    assert (stats["in_flight"], stats["disconnected"]) == (0, 2)
