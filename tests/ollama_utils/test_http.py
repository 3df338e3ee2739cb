"""Connections: one request at a time on each, used again, bounded, and direct or by a proxy."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any, Self

import pytest

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    CallCancelledError,
    CallTimeoutError,
    OllamaError,
    ServerBusyError,
    ServerUnreachableError,
)
from ollama_utils.http import MOST_BYTES, trusted_certificates
from ollama_utils.ollama import OllamaClient
from ollama_utils.parallel import map_parallel
from simulator.process import EmbeddedServer
from tests.ollama_utils.hostile import (
    CALL,
    WIRES,
    RawServer,
    client_of,
    http,
    outcome,
    read_request,
)
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

BODY = json.dumps({"model": "m", "response": "Yes.", "done": True}).encode()
YES = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


class Connections:
    """Listens on loopback; `serve` is given each connection, with its number from 0 on."""

    def __init__(self, serve: Callable[[socket.socket, int], object]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.opened = 0
        self.closed = 0
        self.requests = 0

    def __enter__(self) -> Self:
        start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            self.opened += 1
            start(partial(self._one, connection, self.opened - 1))

    def _one(self, connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError):
            self._serve(connection, number)
        self.closed += 1

    def answer(self, connection: socket.socket, reply: bytes, *, times: int = 10**6) -> None:
        """Answer requests on a connection, so many of them, with the same bytes."""
        for _ in range(times):
            if not read_request(connection):
                return
            self.requests += 1
            connection.sendall(reply)


def ask(host: str, timeout_s: float = PATIENCE_S, times: int = 1) -> list[str]:
    """The texts of replies to equal calls, one after another, by one client."""
    with closing(OllamaClient(host, timeout_s=timeout_s)) as client:
        return [client.generate(CALL).text for _ in range(times)]


@pytest.mark.parametrize(
    "reply",
    [
        YES,
        b"HTTP/1.1 200\r\ncontent-length: %d\r\nX-Name: Ren\xe9\r\n\r\n" % len(BODY) + BODY,
        b"HTTP/1.1 100 Continue\r\n\r\n" + YES,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8;x=y\r\n" + BODY[:8] + b"\r\n"
        b"%x\r\n" % len(BODY[8:]) + BODY[8:] + b"\r\n0\r\nX-Trailer: t\r\n\r\n",
    ],
)
def test_a_connection_is_used_again_once_its_reply_is_read(reply: bytes) -> None:
    with Connections(lambda connection, _: server.answer(connection, reply)) as server:
        assert ask(server.host, times=4) == ["Yes."] * 4
    assert (server.opened, server.requests) == (1, 4)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)],
)
def test_a_reply_may_end_with_its_connection(head: bytes) -> None:
    with Connections(
        lambda connection, _: server.answer(connection, head + BODY, times=1)
    ) as server:
        assert ask(server.host, times=3) == ["Yes."] * 3
    assert (server.opened, server.requests) == (3, 3)


def test_a_connection_that_the_server_closed_meanwhile_costs_no_call() -> None:
    """As llama.cpp does after every streamed reply, unannounced; the next call may be faster."""

    def serve(connection: socket.socket, _number: int) -> None:
        server.answer(connection, YES, times=1)
        time.sleep(0.02)

    with Connections(serve) as server, closing(OllamaClient(server.host)) as client:
        map_parallel(client.generate, [CALL] * 8)
        assert [client.generate(CALL).text for _ in range(10)] == ["Yes."] * 10
    assert server.requests == 18


def test_a_first_request_that_ends_without_a_reply_is_sent_once() -> None:
    def serve(connection: socket.socket, number: int) -> None:
        server.answer(connection, YES if number else b"", times=1)

    with Connections(serve) as server:
        with pytest.raises(BrokenReplyError, match="broke off its reply"):
            ask(server.host)
        assert server.requests == 1


def test_calls_at_once_have_a_connection_each_and_their_own_replies() -> None:
    together = threading.Barrier(40)

    def serve(connection: socket.socket, _number: int) -> None:
        while request := read_request(connection):
            prompt = json.loads(request.partition(b"\r\n\r\n")[2])["prompt"]
            together.wait(PATIENCE_S)
            body = json.dumps({"response": prompt, "done": True}).encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with Connections(serve) as server, closing(OllamaClient(server.host)) as client:
        for _ in range(3):
            calls = [type(CALL)(model="m", prompt=f"p{number}") for number in range(40)]
            assert [reply.text for reply in map_parallel(client.generate, calls)] == [
                call.prompt for call in calls
            ]
        assert server.opened == 40
        client.close()
        wait_until(lambda: server.closed == 40)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n\r\n", YES[:-9]])
def test_a_server_that_falls_silent_is_given_up_and_its_connection_not_used_again(
    sent: bytes,
) -> None:
    def serve(connection: socket.socket, number: int) -> None:
        server.answer(connection, YES if number else sent)

    with Connections(serve) as server, closing(OllamaClient(server.host, timeout_s=0.2)) as client:
        with pytest.raises(
            CallTimeoutError, match=r"did not answer within 0\.2 s: allow more time"
        ):
            client.generate(CALL)
        assert client.generate(CALL, timeout_s=PATIENCE_S).text == "Yes."
        wait_until(lambda: server.closed == 1)


def test_a_reply_that_trickles_in_is_given_up_after_ten_times_the_silence() -> None:
    given_up = threading.Event()

    def serve(connection: socket.socket, _number: int) -> None:
        server.answer(connection, b"HTTP/1.1 200 OK\r\n\r\n", times=1)
        while not given_up.wait(0.01):
            connection.sendall(b"H")

    with Connections(serve) as server:
        asked = start(lambda: ask(server.host, 0.1))
        error = asked.exception(PATIENCE_S)
        given_up.set()
    assert isinstance(error, CallTimeoutError)
    assert "did not end its reply within 1 s" in str(error)


def test_a_reply_without_an_end_is_read_no_further_than_the_bound() -> None:
    sent = [0]

    def serve(connection: socket.socket, _number: int) -> None:
        server.answer(connection, b"HTTP/1.1 200 OK\r\n\r\n", times=1)
        while True:
            sent[0] += connection.send(b" " * 2**20)

    with (
        Connections(serve) as server,
        pytest.raises(BadReplyError, match="more than 33554432 bytes"),
    ):
        ask(server.host)
    assert sent[0] < 2 * MOST_BYTES


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"", "RemoteDisconnected"),
        (b"SSH-2.0-OpenSSH_9.6" + b"." * 60_000 + b"\r\n", "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 70_000, "LineTooLong"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Many: a\r\n" * 200, "headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", "99|95"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n63\r\nhalf", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsize\r\nhalf", "IncompleteRead"),
    ],
)
def test_what_is_no_whole_reply_is_broken_off(reply: bytes, words: str) -> None:
    error = outcome("ollama", reply)
    assert isinstance(error, BrokenReplyError)
    assert words.partition("|")[0] in str(error) or words.partition("|")[2] in str(error)


def test_a_request_that_is_refused_before_it_is_read_has_the_reason() -> None:
    def serve(connection: socket.socket, _number: int) -> None:
        connection.recv(1)
        connection.sendall(http("413 Too Large", b'{"error": "too long"}'))

    with Connections(serve) as server, closing(OllamaClient(server.host)) as client:
        with pytest.raises(BadRequestError, match="answered 413: 'too long'"):
            client.generate(type(CALL)(model="m", prompt="p" * 2**25))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize("location", [None, b"\xff\x1b[31mred", b"https://" + b"a" * 60_000])
def test_no_redirection_is_followed(
    monkeypatch: pytest.MonkeyPatch, wire: str, status: int, location: bytes | None
) -> None:
    for name in ("OLLAMA_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-secret")
    with RawServer(http("200 OK", b"{}")) as elsewhere:
        place = location or f"{elsewhere.host}/api/chat".encode()
        error = outcome(wire, http(f"{status} Moved", Location=place))
        assert isinstance(error, BadRequestError)
        assert f"answered {status}: it points to '" in str(error)
        assert "name that address with --ollama-host" in str(error)
        assert not elsewhere.requests


@pytest.mark.parametrize(
    ("written", "expected"), [("2.5", 2.5), ("900", 300), ("soon", None), ("-1", None)]
)
def test_the_server_s_retry_after_is_read_up_to_five_minutes(
    written: str, expected: float | None
) -> None:
    error = outcome("openai", http("429 Slow down", Retry_After=written))
    assert isinstance(error, ServerBusyError)
    assert error.retry_after_s == expected


@pytest.mark.parametrize("wire", WIRES)
def test_close_ends_the_calls_under_way_and_all_later_ones(wire: str) -> None:
    arrived = threading.Barrier(9)

    def serve(connection: socket.socket, number: int) -> None:
        server.answer(connection, b"" if number % 2 else b"HTTP/1.1 200 OK\r\n\r\n{", times=1)
        arrived.wait(PATIENCE_S)
        connection.recv(1)  # until it is closed

    with Connections(serve) as server:
        client = client_of(wire, server.host)
        calls = [start(lambda: client.generate(CALL)) for _ in range(8)]
        arrived.wait(PATIENCE_S)
        client.close()
        assert all(isinstance(call.exception(PATIENCE_S), CallCancelledError) for call in calls)
        with pytest.raises(CallCancelledError):
            client.generate(CALL)
        wait_until(lambda: server.closed == server.opened)


@pytest.mark.parametrize("wire", WIRES)
def test_without_a_server_the_message_says_what_to_do(wire: str) -> None:
    words = {
        "ollama": "start it with 'ollama serve' or pass --ollama-host",
        "openai": "start it, or",
    }[wire]
    with closing(client_of(wire, "http://127.0.0.1:1")) as client:
        for request in (
            lambda: client.generate(CALL),
            lambda: client.embed("m", ["t"]),
            client.models,
        ):
            with pytest.raises(ServerUnreachableError, match=f"server answers at .*: {words}"):
                request()


def proxied(reply: bytes, host: str, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Any:
    """What a client makes of a host behind a proxy that answers so, and what the proxy was sent."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with RawServer(reply) as proxy:
        for name, value in environment.items():
            monkeypatch.setenv(name, value.replace("PROXY", proxy.host.removeprefix("http://")))
        with closing(OllamaClient(host, timeout_s=PATIENCE_S)) as client:
            try:
                return client.generate(CALL).text, proxy.requests
            except OllamaError as error:
                return str(error), proxy.requests


@pytest.mark.parametrize(
    ("name", "value"), [("http_proxy", "PROXY"), ("all_proxy", "http://user:pass%20word@PROXY")]
)
def test_a_far_host_is_asked_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    text, requests = proxied(YES, "http://far.invalid:11434", monkeypatch, **{name: value})
    assert text == "Yes."
    assert requests[0].startswith(b"POST http://far.invalid:11434/api/generate HTTP/1.1\r\n")
    credentials = b"\r\nProxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n"
    assert (credentials in requests[0]) == ("@" in value)


def test_a_tls_host_is_asked_through_a_tunnel_and_a_refusal_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    environment = {"https_proxy": "http://user:secret@PROXY"}
    error, requests = proxied(refusal, "https://far.invalid", monkeypatch, **environment)
    assert requests[0].startswith(b"CONNECT far.invalid:443 HTTP/1.")
    assert b"Proxy-Authorization: Basic " in requests[0]
    assert "407" in error
    assert "through the proxy http://127.0.0.1:" in error
    assert "that https_proxy names" in error
    assert "NO_PROXY" in error
    assert "secret" not in error


def test_a_server_on_this_machine_or_in_no_proxy_is_asked_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RawServer(YES) as here:
        text, requests = proxied(http("500 No"), here.host, monkeypatch, http_proxy="http://PROXY")
        assert (text, requests) == ("Yes.", [])
    for listed in ("elsewhere, far.invalid", "*"):
        given = {"http_proxy": "http://PROXY", "no_proxy": listed}
        error, requests = proxied(YES, "http://far.invalid:11434", monkeypatch, **given)
        assert "no Ollama server answers at" in error
        assert not requests


@pytest.mark.parametrize("proxy", ["socks5://proxy:1", "http://proxy:port", "http://"])
def test_a_proxy_that_cannot_be_used_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(
        ValueError, match=r"the proxy that http_proxy names for 'http://far.invalid:80'"
    ):
        OllamaClient("http://far.invalid")


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSLKEYLOGFILE"])
def test_a_file_of_tls_that_cannot_be_used_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "/gone/file")
    trusted_certificates.cache_clear()
    with pytest.raises(ValueError, match=f"{name}='/gone/file' cannot be used"):
        OllamaClient("https://far.invalid")


def test_only_a_certificate_that_is_trusted_is_talked_to(
    monkeypatch: pytest.MonkeyPatch, certificate: tuple[str, str]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def serve(connection: socket.socket, _number: int) -> None:
        with context.wrap_socket(connection, server_side=True) as safe:
            server.answer(safe, YES, times=1)  # then it hangs up, without a word of TLS

    with Connections(serve) as server:
        host = server.host.replace("http:", "https:")
        for trusted in ("", certificate[0]):
            monkeypatch.setenv("SSL_CERT_FILE", trusted)
            trusted_certificates.cache_clear()
            if trusted:
                assert ask(host, times=4) == ["Yes."] * 4
            else:
                with pytest.raises(ServerUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
                    ask(host)
    trusted_certificates.cache_clear()


@pytest.mark.parametrize("safe", [False, True])
def test_the_timeout_of_a_call_counts_from_the_last_reply_to_one_sent_before_it(
    monkeypatch: pytest.MonkeyPatch, certificate: tuple[str, str], *, safe: bool
) -> None:
    """Also over TLS, whose server sends tickets ahead of its first reply."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    turns = threading.Semaphore(0)

    def serve(connection: socket.socket, _number: int) -> None:
        with context.wrap_socket(connection, server_side=True) if safe else connection as sent:
            assert read_request(sent)
            server.requests += 1
            turns.acquire(timeout=PATIENCE_S)
            sent.sendall(YES)

    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    trusted_certificates.cache_clear()
    with Connections(serve) as server:
        host = server.host.replace("http:", "https:") if safe else server.host
        with closing(OllamaClient(host, timeout_s=1)) as client:
            calls = []
            for _ in range(2):
                calls.append(start(lambda: client.generate(CALL)))
                wait_until(lambda: server.requests == len(calls))
            for _ in calls:
                time.sleep(0.7)
                turns.release()
            assert [call.result(PATIENCE_S).text for call in calls] == ["Yes."] * 2
    trusted_certificates.cache_clear()


@pytest.fixture
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    names = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-out", names[0], "-keyout", names[1]]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - openssl
    return names


ASK = """
import os, sys
before = dict(os.environ)
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
assert dict(os.environ) == before
with Dispatcher([sys.argv[1]]) as dispatcher:
    print(dispatcher.generate(Call(model="sim-target", prompt="p")).error)
"""


def test_variables_that_cannot_be_used_spoil_no_call_to_this_machine(
    server: EmbeddedServer,
) -> None:
    unusable = {
        "ALL_PROXY": "socks5h://127.0.0.1:1080",
        "OLLAMA_HOST": "localhost:many",
        "SSL_CERT_FILE": "/gone.pem",
        "SSLKEYLOGFILE": "/gone/keys",
    }
    command = [sys.executable, "-c", ASK, server.host]
    environment = os.environ | unusable
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.stdout, done.stderr) == ("None\n", "")
