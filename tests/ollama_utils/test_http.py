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
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    CallCancelledError,
    CallTimeoutError,
    OllamaError,
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
HEAD = b"HTTP/1.1 200 OK\r\n"
YES = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def ask(host: str, timeout_s: float = PATIENCE_S, times: int = 1) -> list[str]:
    """The texts of replies to equal calls, one after another, by one client."""
    with closing(OllamaClient(host, timeout_s=timeout_s)) as client:
        return [client.generate(CALL).text for _ in range(times)]


@pytest.mark.parametrize(
    ("reply", "connections"),
    [
        (YES, 1),
        (YES.replace(b" OK\r\n", b"\r\nX-Name: Ren\xe9\r\n"), 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + YES, 1),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n8;x=y\r\n" + BODY[:8] + b"\r\n"
            b"%x\r\n" % len(BODY[8:]) + BODY[8:] + b"\r\n0\r\nX-Trailer: t\r\n\r\n",
            1,
        ),
        (YES.replace(b"1.1", b"1.0"), 3),
        (YES.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"), 3),
    ],
)
def test_a_connection_is_used_again_once_its_reply_is_read(reply: bytes, connections: int) -> None:
    with RawServer(reply, times=9) as server:
        assert ask(server.host, times=3) == ["Yes."] * 3
    assert (server.opened, len(server.requests)) == (connections, 3)


def test_a_reply_may_end_with_its_connection() -> None:
    with RawServer(HEAD + b"\r\n" + BODY) as server:
        assert ask(server.host, times=3) == ["Yes."] * 3


def test_a_connection_that_the_server_closed_meanwhile_costs_no_call() -> None:
    """As llama.cpp does after every streamed reply, unannounced; the next call may be faster."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(YES)
        time.sleep(0.02)

    with RawServer(serve) as server, closing(OllamaClient(server.host)) as client:
        map_parallel(client.generate, [CALL] * 8)
        assert [client.generate(CALL).text for _ in range(10)] == ["Yes."] * 10
    assert len([each for each in server.requests if each]) == 18


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"", "RemoteDisconnected"),
        (b"SSH-2.0-OpenSSH_9.6" + b"." * 60_000 + b"\r\n", "BadStatusLine"),
        (HEAD + b"X-Long: " + b"a" * 70_000, "LineTooLong"),
        (HEAD + b"Content-Length: 99\r\n\r\nhalf", "95"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n63\r\nhalf", "IncompleteRead"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nsize\r\nhalf", "IncompleteRead"),
    ],
)
def test_what_is_no_whole_reply_is_broken_off_and_asked_for_once(reply: bytes, words: str) -> None:
    with RawServer(reply) as server:
        with pytest.raises(BrokenReplyError, match=f"broke off its reply: .*{words}"):
            ask(server.host)
    assert len(server.requests) == 1


def test_calls_at_once_have_a_connection_each_and_their_own_replies() -> None:
    together = threading.Barrier(40)

    def serve(connection: socket.socket) -> None:
        while request := read_request(connection):
            prompt = json.loads(request.partition(b"\r\n\r\n")[2])["prompt"]
            together.wait(PATIENCE_S)
            body = BODY.replace(b"Yes.", prompt.encode())
            connection.sendall(http("200 OK", body, Connection="keep-alive"))

    with RawServer(serve, times=0) as server, closing(OllamaClient(server.host)) as client:
        calls = [replace(CALL, prompt=f"p{number}") for number in range(40)]
        for _ in range(3):
            replies = map_parallel(client.generate, calls)
            assert [reply.text for reply in replies] == [call.prompt for call in calls]
        assert server.opened == 40
        client.close()
        wait_until(lambda: server.closed == 40)


@pytest.mark.parametrize("sent", [b"", HEAD + b"\r\n", YES[:-9]])
def test_a_server_that_falls_silent_is_given_up_and_its_connection_not_used_again(
    sent: bytes,
) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(sent if server.opened == 1 else YES)
        connection.recv(1)  # until it is closed

    with RawServer(serve) as server, closing(OllamaClient(server.host, timeout_s=0.2)) as client:
        with pytest.raises(CallTimeoutError, match=r"did not answer within 0\.2 s: allow more"):
            client.generate(CALL)
        assert client.generate(CALL, timeout_s=PATIENCE_S).text == "Yes."
        wait_until(lambda: server.closed == 1)


def trickle(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"H")
        time.sleep(0.01)


def flood(connection: socket.socket) -> None:
    for _ in range(2 * MOST_BYTES >> 20):
        connection.sendall(b" " * 2**20)
    raise AssertionError("all of it was read")


@pytest.mark.parametrize(
    ("serve", "timeout_s", "kind", "words"),
    [
        (trickle, 0.1, CallTimeoutError, "did not end its reply within 1 s"),
        (flood, PATIENCE_S, BadReplyError, "more than 33554432 bytes"),
    ],
)
def test_a_reply_without_an_end_is_read_no_further_than_the_bounds(
    serve: Any, timeout_s: float, kind: type[OllamaError], words: str
) -> None:
    failed: list[AssertionError] = []

    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"\r\n")
        try:
            serve(connection)
        except AssertionError as error:
            failed.append(error)

    with RawServer(reply) as server:
        with pytest.raises(kind, match=words):
            ask(server.host, timeout_s)
        wait_until(lambda: server.closed == 1)
    assert not failed


def test_a_request_that_is_refused_before_it_is_read_has_the_reason() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(http("413 Too Large", b'{"error": "too long"}'))

    with RawServer(serve, times=0) as server, closing(OllamaClient(server.host)) as client:
        with pytest.raises(BadRequestError, match="answered 413: 'too long'"):
            client.generate(replace(CALL, prompt="p" * 2**25))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("location", [None, b"\xff\x1b[31mred", b"https://" + b"a" * 60_000])
def test_no_redirection_is_followed(
    monkeypatch: pytest.MonkeyPatch, wire: str, location: bytes | None
) -> None:
    for name in ("OLLAMA_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-secret")
    with RawServer(http("200 OK", b"{}")) as elsewhere:
        place = location or f"{elsewhere.host}/api/chat".encode()
        error = outcome(wire, http("307 Moved", Location=place))
        assert isinstance(error, BadRequestError)
        assert "answered 307: it points to '" in str(error)
        assert "name that address with --ollama-host" in str(error)
        assert not elsewhere.requests


@pytest.mark.parametrize("wire", WIRES)
def test_close_ends_the_calls_under_way_and_all_later_ones(wire: str) -> None:
    arrived = threading.Barrier(9)

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"" if server.opened % 2 else HEAD + b"\r\n{")
        arrived.wait(PATIENCE_S)
        connection.recv(1)  # until it is closed

    with RawServer(serve) as server:
        client = client_of(wire, server.host)
        calls = [start(lambda: client.generate(CALL)) for _ in range(8)]
        arrived.wait(PATIENCE_S)
        client.close()
        assert all(isinstance(call.exception(PATIENCE_S), CallCancelledError) for call in calls)
        with pytest.raises(CallCancelledError):
            client.generate(CALL)
        wait_until(lambda: server.closed == server.opened == 8)


@pytest.mark.parametrize("wire", WIRES)
def test_without_a_server_the_message_says_what_to_do(wire: str) -> None:
    words = {"ollama": "start it with 'ollama serve' or pass --ollama-host", "openai": "start it"}
    with closing(client_of(wire, "http://127.0.0.1:1")) as client:
        with pytest.raises(ServerUnreachableError, match=f"server answers at .*: {words[wire]}"):
            client.generate(CALL)


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
    text, requests = proxied(YES, "http://f\u00e4r.invalid:11434", monkeypatch, **{name: value})
    assert text == "Yes."
    line = b"POST http://xn--fr-via.invalid:11434/api/generate HTTP/1.1\r\n"
    assert requests[0].startswith(line + b"Host: xn--fr-via.invalid:11434\r\n")
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
    for words in ("407", "through the proxy http://127.0.0.1:", "that https_proxy", "NO_PROXY"):
        assert words in error
    assert "secret" not in error


def test_a_server_on_this_machine_or_in_no_proxy_is_asked_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RawServer(YES) as here:
        text, requests = proxied(http("500 No"), here.host, monkeypatch, http_proxy="http://PROXY")
        assert (text, requests) == ("Yes.", [])
    given = {"http_proxy": "http://PROXY", "no_proxy": "elsewhere, far.invalid"}
    error, requests = proxied(YES, "http://far.invalid:11434", monkeypatch, **given)
    assert "no Ollama server answers at" in error
    assert not requests


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("http_proxy", "socks5://proxy:1", "the proxy that http_proxy names for 'http://far"),
        ("all_proxy", "http://proxy:port", "the proxy that all_proxy names for 'https://far"),
        ("SSL_CERT_FILE", "/gone/file", "SSL_CERT_FILE='/gone/file' cannot be used"),
        ("SSLKEYLOGFILE", "/gone/file", "SSLKEYLOGFILE='/gone/file' cannot be used"),
        ("OLLAMA_API_KEY", "schl\u00fcssel", "OLLAMA_API_KEY holds characters that no header can"),
        ("OLLAMA_API_KEY", "a\nX-Other: 1", "OLLAMA_API_KEY holds characters that no header can"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_and_a_key_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    for variable in ("http_proxy", "https_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    trusted_certificates.cache_clear()
    with pytest.raises(ValueError, match=words) as caught:
        OllamaClient("http://far.invalid" if name == "http_proxy" else "https://far.invalid")
    assert "_API_KEY" not in name or value[:4] not in str(caught.value)
    trusted_certificates.cache_clear()


def test_only_a_certificate_that_is_trusted_is_talked_to(
    monkeypatch: pytest.MonkeyPatch, certificate: tuple[str, str]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as safe:
            read_request(safe)
            safe.sendall(YES)  # then it hangs up, without a word of TLS

    with RawServer(serve, times=0) as server:
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
    arrived, turns = threading.Semaphore(0), threading.Semaphore(0)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) if safe else connection as sent:
            assert read_request(sent)
            arrived.release()
            turns.acquire(timeout=PATIENCE_S)
            sent.sendall(YES)

    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    trusted_certificates.cache_clear()
    with RawServer(serve, times=0) as server:
        host = server.host.replace("http:", "https:") if safe else server.host
        with closing(OllamaClient(host, timeout_s=1)) as client:
            calls = []
            for _ in range(2):
                calls.append(start(lambda: client.generate(CALL)))
                assert arrived.acquire(timeout=PATIENCE_S)
            for _ in calls:
                time.sleep(0.7)
                turns.release()
            assert [call.result(PATIENCE_S).text for call in calls] == ["Yes."] * 2
    trusted_certificates.cache_clear()


@pytest.fixture(scope="module")
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
