"""The simulator as a process: it starts or says why not, and ends with whoever started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from simulator.process import MOST_RESTARTS, ChildError, ChildServer, EmbeddedServer, is_simulator
from simulator.settings import Settings
from tests.ollama_utils.scripted import ScriptedServer


def until(holds: Callable[[], bool]) -> None:
    """Wait for what must come to hold."""
    end_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def answers(host: str) -> bool:
    try:
        return httpx.get(host).text == "Ollama is running"
    except httpx.TransportError:
        return False


def test_it_leaves_ctrl_c_to_its_parent_and_ends_when_stopped() -> None:
    with EmbeddedServer(Settings(slots=3)) as server:
        os.kill(server.pid, signal.SIGINT)
        assert httpx.get(f"{server.host}/props").json()["total_slots"] == 3
        assert answers(server.host)
    assert not answers(server.host)
    server.stop()
    assert "has ended" in (server.ensure_running() or "")


def test_it_ends_soon_after_its_parent_is_killed() -> None:
    code = (
        "from simulator.process import EmbeddedServer; from simulator.settings import Settings; "
        "import time; print(EmbeddedServer(Settings()).host, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603
        assert parent.stdout is not None
        host = parent.stdout.readline().strip()
        assert answers(host)
        parent.kill()
    until(lambda: not answers(host))


def test_one_that_died_is_started_again_where_it_was_three_times_at_most(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with EmbeddedServer(Settings()) as server:
        host = server.host
        assert server.ensure_running() is None
        for count in range(1, MOST_RESTARTS + 1):
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: not answers(host))
            assert server.ensure_running() is None
            assert (server.host, server.restarts, answers(host)) == (host, count, True)
        server.kill()
        assert "has ended" in (server.ensure_running() or "")
        server.start()
        assert answers(host)
    assert capfd.readouterr().err.count("started again, ") == MOST_RESTARTS


def test_a_start_that_fails_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = {
            "the world 'none.toml' (expected cautious, drawn or a TOML file)": Settings(
                world="none.toml"
            ),
            "the file of faults 'none.json'": Settings(faults="none.json"),
            "address already in use": Settings(port=taken.getsockname()[1]),
        }
        for says, settings in wrong.items():
            with pytest.raises(ChildError) as caught:
                EmbeddedServer(settings)
            assert says in str(caught.value)
            assert "\n" not in str(caught.value)


def test_what_a_server_prints_before_its_place_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    serves = """import time; print('Hello\\n[]\\n{"host": "there"}', flush=True); time.sleep(60)"""
    (tmp_path / "serves.py").write_text(serves)
    (tmp_path / "fails.py").write_text("print('Hello'); raise SystemExit('no port')")
    with ChildServer("serves", (), what="server", start_s=20) as server:
        assert server.host == "there"
    with pytest.raises(ChildError, match="the server did not start: no port"):
        ChildServer("fails", (), what="server", start_s=20)


def test_the_simulator_is_known_by_its_models(server: EmbeddedServer) -> None:
    assert is_simulator(server.host)
    assert not is_simulator("http://127.0.0.1:1")
    assert not is_simulator("http://[")
    models = {"models": [{"details": {"format": "simulator"}}]}
    for padding, known in ((0, True), (2**20, False)):
        with ScriptedServer(lambda _, n=padding: (200, models | {"more": n * "x"})) as other:  # type: ignore[misc]
            assert is_simulator(other.host) == known


def test_control_routes_are_for_this_machine_alone() -> None:
    command = ["hostname", "-I"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if not found.stdout.strip():
        pytest.skip("this machine has no address but loopback")
    with EmbeddedServer(Settings(bind="0.0.0.0")) as server:  # noqa: S104 - the test is about it
        outside = server.host.replace("127.0.0.1", found.stdout.split()[0])
        refused = httpx.get(f"{outside}/simulator/stats")
        assert (refused.status_code, answers(outside)) == (403, True)


def test_ollamas_own_variable_sets_what_serve_leaves_open() -> None:
    serve = [sys.executable, "-m", "mutagym", "serve", "--port", "0"]
    env = os.environ | {"OLLAMA_NUM_PARALLEL": "3"}
    with subprocess.Popen(serve, env=env, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        host = process.stdout.readline().split(" at ")[1].split(": ")[0]
        assert httpx.get(f"{host}/props").json()["total_slots"] == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
