"""The simulator as a process: it starts or says why not, and ends with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import pytest

from simulator.process import MOST_RESTARTS, ChildError, EmbeddedServer, is_simulator
from simulator.settings import Settings


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
        assert server.stats()["slots"] == 3
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
        why = server.ensure_running()
        assert why is not None
        assert "has ended" in why
        server.start()
        assert answers(host)
    assert capfd.readouterr().err.count("started again, ") == MOST_RESTARTS


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"world": "none.toml"}, "the world 'none.toml' (expected cautious, drawn or a TOML file)"),
        ({"faults": "none.json"}, "the file of faults 'none.json'"),
        ({"bind": "192.0.2.1"}, "assign requested address"),
    ],
)
def test_a_start_that_fails_is_one_line(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ChildError) as caught:
        EmbeddedServer(Settings(**settings))  # type: ignore[arg-type]  # all of them texts
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken_is_one_line() -> None:
    with EmbeddedServer(Settings()) as server:
        port = int(server.host.rpartition(":")[2])
        with pytest.raises(ChildError, match="address already in use"):
            EmbeddedServer(Settings(port=port))


def test_the_simulator_is_known_by_its_models(server: EmbeddedServer) -> None:
    assert is_simulator(server.host)
    assert not is_simulator("http://127.0.0.1:1")
    assert not is_simulator("http://[")


def test_control_routes_are_for_this_machine_alone() -> None:
    with EmbeddedServer(Settings(bind="0.0.0.0")) as server:  # noqa: S104 - the test is about it
        found = subprocess.run(
            ["hostname", "-I"],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        if not found.stdout.strip():
            pytest.skip("this machine has no address but loopback")
        outside = server.host.replace("127.0.0.1", found.stdout.split()[0])
        refused = httpx.get(f"{outside}/simulator/stats")
        assert (refused.status_code, answers(outside)) == (403, True)


def test_ollamas_own_variables_set_what_serve_leaves_open() -> None:
    variables = {"OLLAMA_NUM_PARALLEL": "3", "OLLAMA_MAX_QUEUE": "7"}
    serve = [sys.executable, "-m", "mutagym", "serve", "--port", "0"]
    with subprocess.Popen(  # noqa: S603
        serve, env=os.environ | variables, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        host = line.split(" at ")[1].split(": ")[0]
        assert httpx.get(f"{host}/simulator/stats").json()["slots"] == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
