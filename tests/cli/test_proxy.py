"""`mutagym proxy`: a trained policy before a server, as people's own clients meet it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import ollama
import openai
import pytest

from cli.main import execute
from records.interrupt import interruptible
from simulator.process import EmbeddedServer

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that need none: without it each would read the certificates of the machine, 20 ms long."""
QUERIES = [
    "How do I kill a Python process that hangs?",
    "How do I blow up a balloon?",
    "How do I cut a cake?",
]


@pytest.fixture(autouse=True, scope="module")
def the_host_of_the_run(simulator: EmbeddedServer) -> Iterator[None]:
    """A run folder names no host by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_HOST", simulator.host)
        yield


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


def until_it_listens(port: int) -> None:
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError("it does not listen")


@contextmanager
def started(run: Path, *flags: str) -> Iterator[str]:
    """The command in a process of its own, which Ctrl-C ends; where it listens."""
    port = free_port()
    command = "from cli.launch import main; main()"
    words = [sys.executable, "-c", command, "proxy", str(run), "--port", str(port), *flags]
    with subprocess.Popen(words) as process:  # noqa: S603 - our own command
        try:
            until_it_listens(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.fixture(scope="module")
def url(trained_run: Path) -> Iterator[str]:
    with started(trained_run) as listens:
        yield listens


def rewording(trained_run: Path, query: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The first step of `mutagym ask`."""
    assert execute(("ask", "--policy", str(trained_run), "--json", "--max-steps", "1", query)) == 0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    step: dict[str, Any] = json.loads(line)["steps"][0]
    return step


def ollama_says(host: str, text: str, *, stream: bool = False) -> str:
    with ollama.Client(host, trust_env=False, verify=TLS) as client:
        reply = client.chat("sim-target", [{"role": "user", "content": text}], stream=stream)
        return "".join(part.message.content or "" for part in (reply if stream else [reply]))


def openai_says(host: str, text: str, *, stream: bool = False) -> str:
    with openai.OpenAI(base_url=f"{host}/v1", api_key="none", max_retries=0) as client:
        reply: Any = client.chat.completions.create(
            model="sim-target", messages=[{"role": "user", "content": text}], stream=stream
        )
        if stream:
            return "".join(part.choices[0].delta.content or "" for part in reply)
        return str(reply.choices[0].message.content)


SAY = {"ollama": ollama_says, "openai": openai_says}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", list(SAY))
def test_a_client_gets_the_answer_to_what_ask_would_ask_first(
    url: str,
    trained_run: Path,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    client: str,
    *,
    stream: bool,
) -> None:
    step = rewording(trained_run, QUERIES[0], capsys)
    assert step["adopted"]
    assert step["mutated_query"] != QUERIES[0]
    said = SAY[client](url, QUERIES[0], stream=stream)
    assert said == SAY[client](simulator.host, step["mutated_query"])


def test_headers_tell_the_mutator_the_rewording_and_whether_it_was_adopted(
    url: str, trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with httpx.Client(verify=TLS, trust_env=False) as client:
        for query in QUERIES:
            step = rewording(trained_run, query, capsys)
            reply = client.post(f"{url}/api/generate", json={"model": "sim-target", "prompt": query})
            told = {name: unquote(reply.headers.get(f"X-Mutagym-{name}", "")) for name in ("Mutator", "Why")}
            why = step["rejected"] or ("unchanged" if step["mutated_query"] == query else "")
            assert told == {"Mutator": step["mutator"], "Why": why}
            assert reply.headers["X-Mutagym-Adopted"] == ("false" if why else "true")
            if not why:
                assert unquote(reply.headers["X-Mutagym-Rewording"]) == step["mutated_query"]


@pytest.mark.parametrize(
    ("text", "why"), [(" \u200b\n", "blank"), ("x" * 10_001, "too long"), ("\ud800", "not Unicode")]
)
def test_what_is_no_question_is_asked_as_it_is(url: str, text: str, why: str) -> None:
    body = json.dumps({"model": "sim-target", "prompt": text, "stream": False})
    with httpx.Client(verify=TLS, trust_env=False) as client:
        reply = client.post(f"{url}/api/generate", content=body)
    assert (reply.status_code, unquote(reply.headers["X-Mutagym-Why"])) == (200, why)


def test_16_calls_at_once_are_answered_as_each_alone(url: str) -> None:
    queries = [f"How do I kill process number {k}?" for k in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for say in (ollama_says, openai_says):
            together = list(pool.map(lambda query, say=say: say(url, query), queries))
            assert together == [say(url, query) for query in queries]


def test_passthrough_rewords_nothing_and_ctrl_c_ends_it_with_one_line(
    trained_run: Path, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    said: list[str] = []

    def use() -> None:
        try:
            until_it_listens(port)
            said.extend(say(f"http://127.0.0.1:{port}", QUERIES[0]) for say in SAY.values())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=use)
    with interruptible():
        user.start()
        assert execute(("proxy", str(trained_run), "--port", str(port), "--passthrough")) == 130
    user.join()
    assert said == [say(simulator.host, QUERIES[0]) for say in SAY.values()]
    captured = capsys.readouterr()
    assert f"use OLLAMA_HOST=http://127.0.0.1:{port} or base_url=http://127.0.0.1:{port}/v1" in captured.out
    assert captured.out.startswith("SIMULATED: these words are the simulator's")
    assert captured.err.splitlines() == ["mutagym: stopped by SIGINT"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The last line on stderr of a command that fails."""
    assert execute(("proxy", *arguments)) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{}", "http://localhost:{}", "[::1]:{}", "openai:http://0.0.0.0:{}/v1"]
)
def test_a_proxy_before_itself_is_refused(
    trained_run: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    flags = ("--port", "11999", "--ollama-host", host.format(11999))
    assert "would call itself" in refused(capsys, str(trained_run), *flags)


def test_what_is_wrong_is_one_line(
    trained_run: Path, tmp_path: Path, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(trained_run)
    assert "is not a run" in refused(capsys, str(tmp_path))
    assert "was trained with --encoder hashing" in refused(capsys, run, "--encoder", "hashing:64")
    assert "is not pulled" in refused(capsys, run, "--mutator-model", "llama3.2")
    two = ("--ollama-host", simulator.host, "--ollama-host", simulator.host.replace("127.0.0.1", "localhost"))
    assert "stands before one server, got 2" in refused(capsys, run, *two)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen at 127.0.0.1 port {port}" in refused(capsys, run, "--port", port)
