"""`mutagym proxy`: a trained policy before a server, as people's own clients meet it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import ollama
import openai
import pytest

from cli.main import execute
from records.trust import MARK
from simulator.process import EmbeddedServer
from tests.simulator.conftest import TLS

QUERIES = [
    "How do I kill a Python process that hangs?",
    "How do I blow up a balloon?",
    "How do I cut a cake?",
]


@contextmanager
def started(run: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A proxy as a process of its own: where it listens, and the process, which is killed at the end."""
    command = [sys.executable, "-m", "cli.main", "proxy", str(run), "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "use OLLAMA_HOST=http://127.0.0.1:" in line, process.communicate()
            yield line.partition("OLLAMA_HOST=")[2].split()[0], process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url(trained_run: Path) -> Iterator[str]:
    with started(trained_run) as (listens, _):
        yield listens


def rewording(trained_run: Path, query: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The first step of `mutagym ask`."""
    assert execute(("ask", "--policy", str(trained_run), "--json", "--max-steps", "1", query)) == 0
    (line,) = capsys.readouterr().out.strip().splitlines()
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


def curl_says(host: str, text: str, *, stream: bool = False) -> str:
    body = json.dumps({"model": "sim-target", "prompt": text, "stream": stream})
    command = ["curl", "-sSN", "--max-time", "60", f"{host}/api/generate", "-d", body]
    done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - ours
    return "".join(json.loads(line)["response"] for line in done.stdout.splitlines())


SAY = {"ollama": ollama_says, "openai": openai_says, "curl": curl_says}


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
    if client == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
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
            assert told == {"Mutator": step["mutator"], "Why": step["rejected"]}
            assert reply.headers["X-Mutagym-Adopted"] == ("true" if step["adopted"] else "false")
            if step["adopted"]:
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
            together = list(pool.map(lambda query, say=say: say(url, query), queries))  # type: ignore[misc] # bound
            assert together == [say(url, query) for query in queries]


def test_passthrough_rewords_nothing_and_ctrl_c_ends_it_with_one_line(
    trained_run: Path, simulator: EmbeddedServer
) -> None:
    with started(trained_run, "--passthrough") as (listens, process):
        for say in SAY.values() if shutil.which("curl") else (ollama_says, openai_says):
            assert say(listens, QUERIES[0]) == say(simulator.host, QUERIES[0])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.splitlines()[-1]) == (130, "", "mutagym: stopped by SIGINT")
    assert "Traceback" not in err


def test_a_server_that_goes_away_is_a_502_and_no_hang(trained_run: Path) -> None:
    from simulator.settings import Settings

    server = EmbeddedServer(Settings(slots=16, time_scale=0.001))
    with server, started(trained_run, "--ollama-host", server.host, "--call-attempts", "1") as (listens, _):
        assert ollama_says(listens, QUERIES[0])
        server.close()
        for path in ("/api/chat", "/v1/chat/completions"):
            body = {"model": "sim-target", "messages": [{"role": "user", "content": "How do I kill time?"}]}
            with httpx.Client(verify=TLS, trust_env=False, timeout=60) as client:
                reply = client.post(listens + path, json=body)
            assert reply.status_code == 502
            assert "does not answer" in reply.text


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


def test_a_proxy_before_another_is_refused(
    url: str, trained_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "go in a circle" in refused(capsys, str(trained_run), "--port", "0", "--ollama-host", url)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:11999")  # as where it is to be used, it was started
    table = trained_run / "config.toml"
    assert "would call itself" in refused(
        capsys, str(trained_run), "--port", "11999", "--ollama-host", os.environ["OLLAMA_HOST"]
    )
    assert table.is_file()


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


def test_a_run_of_others_calls_no_host_that_the_user_did_not_name(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    theirs = tmp_path / "theirs"
    shutil.copytree(trained_run, theirs)
    (theirs / MARK).unlink()
    line = refused(capsys, "--port", "0", str(theirs))
    assert "was not made here" in line
    assert "hosts (--ollama-host" in line
