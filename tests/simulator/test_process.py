"""The server as a process: it starts, tells why it cannot, and ends with whoever started it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ollama
import pytest
from aiohttp.test_utils import TestClient, TestServer

from simulator.app import build_app
from simulator.process import EmbeddedServer, SimulatorError
from simulator.settings import Settings
from tests.simulator.conftest import TLS

SLEEP = "import time; time.sleep(60)"
PARENT = """
import os, sys, time
from simulator.process import EmbeddedServer
from simulator.settings import Settings
server = EmbeddedServer(Settings())
if "fork" in sys.argv and not os.fork():
    time.sleep(60)
print(server.host, flush=True)
time.sleep(60)
"""


def _in_every_python(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have every interpreter that starts from now on run `code` first."""
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.fixture(scope="module")
def among_others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server started where others print before it does, and where the file of TLS keys is gone."""
    settings = Settings(slots=3, reply_tokens="lognormal:mean=8,sigma=0.5", time_scale=0.5, seed=7)
    with pytest.MonkeyPatch.context() as monkeypatch:
        _in_every_python(tmp_path_factory.mktemp("site"), monkeypatch, "print('hello'); print('[1]')")
        monkeypatch.setenv("SSLKEYLOGFILE", "/gone/keys")
        server = EmbeddedServer(settings)
    with server:
        yield server


def test_the_settings_reach_the_process_whatever_others_print_before_it(among_others: EmbeddedServer) -> None:
    stats = among_others.stats()
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


def test_a_running_server_leaves_ctrl_c_to_its_parent(among_others: EmbeddedServer) -> None:
    os.kill(among_others.pid, signal.SIGINT)
    assert [among_others.stats()["calls"] for _ in range(3)] == [0, 0, 0]


def test_two_servers_of_one_seed_say_the_same_and_another_seed_says_something_else(
    server: EmbeddedServer,
) -> None:
    questions = [f"What is tea {k}?" for k in range(5)]

    async def say(seed: int) -> list[str]:
        """What a server in this process says; `server` has one of its own."""
        async with TestClient(TestServer(build_app(Settings(time_scale=0, seed=seed)))) as client:
            bodies = [{"model": "sim-target", "prompt": each, "stream": False} for each in questions]
            replies = [await (await client.post("/api/generate", json=body)).json() for body in bodies]
        return [reply["response"] for reply in replies]

    with ollama.Client(server.host, timeout=10, trust_env=False, verify=TLS) as client:
        said = [client.generate("sim-target", each).response for each in questions]
    assert asyncio.run(say(server.settings.seed)) == said
    assert asyncio.run(say(server.settings.seed + 1)) != said


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


@pytest.mark.parametrize(
    ("code", "start_s", "says"),
    [
        ("raise SystemExit('no\\nluck')", 60, "did not start: luck$"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 60, "did not start: .*"),
        ("import os; os._exit(3)", 60, "did not start: it ended with status 3 and said nothing$"),
        (SLEEP, 0.2, "did not start: it announced no host within 0.2 s$"),
        (
            "print('hello', flush=True); import time; time.sleep(60)",
            0.2,
            "it announced no host within 0.2 s$",
        ),
        ("import os, time; os.close(1); time.sleep(60)", 60, "it ended with status -15 and said nothing$"),
    ],
)
def test_however_a_start_fails_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, start_s: float, says: str
) -> None:
    _in_every_python(tmp_path, monkeypatch, code)
    with pytest.raises(SimulatorError, match=r"\A[^\n]*" + says):
        EmbeddedServer(Settings(), start_s=start_s)


def test_an_interpreter_that_is_gone_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(SimulatorError, match=r"did not start: .*/no/python"):
        EmbeddedServer(Settings())


@pytest.mark.parametrize("also", [pytest.param("alone", marks=pytest.mark.soak), "fork"])
def test_the_server_leaves_when_its_parent_is_killed_even_if_a_fork_of_it_stays(also: str) -> None:
    command = [sys.executable, "-c", PARENT, also]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)  # noqa: S603 - our own text
    assert parent.stdout is not None
    host = parent.stdout.readline().decode().strip()
    port = int(host.rpartition(":")[2])
    assert _listens(port)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _wait_until(lambda: not _listens(port))
    if also == "fork":
        os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_during_the_start_leaves_no_orphan_and_no_complaint_of_the_child(
    tmp_path: Path, sent: signal.Signals
) -> None:
    # The child says that it runs, and then is slow: the signal meets it before it listens.
    said = tmp_path / "pid"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib, sys, time\n"
        "if sys.orig_argv[-1] == str(os.getppid()):\n"
        f"    pathlib.Path({str(said)!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(0.3)\n",
        encoding="utf-8",
    )
    parent = subprocess.Popen(  # noqa: S603 - our own text
        [sys.executable, "-c", PARENT],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    _wait_until(lambda: said.exists() and bool(said.read_text()))
    child = int(said.read_text())
    parent.send_signal(sent)
    _, complaint = parent.communicate(timeout=20)
    _wait_until(lambda: not _runs(child))
    assert complaint.count(b"Traceback") == (sent == signal.SIGINT)
    assert complaint.endswith(b"KeyboardInterrupt\n" if sent == signal.SIGINT else b"")


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_what_is_no_http_is_told_so_and_the_server_says_nothing_of_it_until_it_is_terminated() -> None:
    post = b"POST /api/generate HTTP/1.1\r\n"
    junk = [
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        post + b"\r\n",
        post + b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        post + b"Host: x\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    ]
    command = [sys.executable, "-m", "simulator", "{}", "0", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603 - our own module
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["host"].rpartition(":")[2])
        for each in junk:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(each)
                assert b" 400 Bad Request" in connection.recv(100)
        process.terminate()
        assert process.communicate() == (b"", b"")
    assert process.returncode == 0
