"""Connections: one call at a time on each, used again, and proxies only where they belong."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from functools import partial

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.client import OllamaClient
from ollama_utils.errors import OllamaError
from ollama_utils.http import _IDLE_S, ExclusiveTransport, transport_to, trusted_certificates
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start

CALL = Call(model="m", prompt="p")
REQUEST = httpx.Request("GET", "http://host/echo")


class Connection(httpx.BaseTransport):
    """Echoes the path, and notices when two calls share it or it is closed under one."""

    def __init__(self, made: Made | None = None) -> None:
        self.made = made
        self.busy = threading.Lock()
        self.closed = False
        self.misused = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Event()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        alone = self.busy.acquire(blocking=False)
        self.asked.set()
        assert self.may_answer.wait(PATIENCE_S)
        if self.made is not None and self.made.barrier is not None:
            self.made.barrier.wait(PATIENCE_S)
        self.misused |= self.closed or not alone
        if alone:
            self.busy.release()
        if request.url.path == "/fail":
            raise httpx.ReadError("broken")
        return httpx.Response(200, text=request.url.path)

    def close(self) -> None:
        self.closed = True


class Made(list[Connection]):
    """The connections made so far."""

    barrier: threading.Barrier | None = None
    """Where calls wait for each other, if anywhere."""

    def connect(self) -> Connection:
        self.append(Connection(self))
        return self[-1]


def together(transport: ExclusiveTransport, made: Made, calls: int) -> None:
    """Make so many calls, each of which ends when all have begun."""
    made.barrier = threading.Barrier(calls)
    replies = map_parallel(lambda _: transport.handle_request(REQUEST).text, range(calls))
    made.barrier = None
    assert replies == ["/echo"] * calls


def answer_once(listener: socket.socket, answer: bytes) -> bytes:
    """The head of the request that comes, which is answered so."""
    with listener.accept()[0] as connection:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(2**16)
        connection.sendall(answer)
    return head


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 16))
def test_no_connection_serves_two_calls_at_once_and_every_reply_finds_its_call(
    fails: list[bool], workers: int
) -> None:
    made = Made()
    transport = ExclusiveTransport(made.connect)

    def call(index: int) -> str:
        path = "fail" if fails[index] else str(index)
        try:
            return transport.handle_request(httpx.Request("GET", f"http://host/{path}")).text
        except httpx.ReadError:
            return "failed"

    texts = map_parallel(call, range(len(fails)), workers)
    assert texts == ["failed" if failed else f"/{index}" for index, failed in enumerate(fails)]
    assert not any(connection.misused for connection in made)
    assert len(made) <= min(workers, len(fails)) + sum(fails)
    assert sum(connection.closed for connection in made) == sum(fails)
    transport.close()
    assert all(connection.closed for connection in made)


def test_one_call_after_another_uses_one_connection() -> None:
    made = Made()
    transport = ExclusiveTransport(made.connect)
    for _ in range(5):
        transport.handle_request(REQUEST)
    assert len(made) == 1


@given(st.lists(st.tuples(st.integers(1, 8), st.floats(0, 2 * _IDLE_S)), max_size=12))
def test_idle_connections_stay_as_long_as_so_many_calls_at_once_may_come_again(
    bursts: list[tuple[int, float]],
) -> None:
    """Each burst is so many calls at once; a time later comes the next."""
    made, now_s = Made(), 0.0
    transport = ExclusiveTransport(made.connect, clock=lambda: now_s)
    used_s: list[float] = []
    """When the connections that must be open were used last, the latest last."""
    for calls, pause_s in bursts:
        together(transport, made, calls)
        used_s = [at_s for at_s in used_s[: max(0, len(used_s) - calls)] if at_s >= now_s - _IDLE_S]
        used_s += [now_s] * calls
        assert sum(not connection.closed for connection in made) == len(used_s)
        now_s += pause_s
    assert not any(connection.misused for connection in made)


def test_a_connection_in_use_is_closed_when_its_reply_is_there() -> None:
    connection = Connection()
    connection.may_answer.clear()
    transport = ExclusiveTransport(lambda: connection)
    reply = start(lambda: transport.handle_request(REQUEST))
    assert connection.asked.wait(PATIENCE_S)
    transport.close()
    assert not connection.closed
    connection.may_answer.set()
    assert reply.result(PATIENCE_S).text == "/echo"
    assert connection.closed


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_of_the_environment_serves_far_hosts_but_never_this_machine(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with (
        ScriptedServer(lambda _: (200, SAID | {"response": "by proxy"})) as proxy,
        ScriptedServer(lambda _: (200, SAID | {"response": "direct"})) as here,
    ):
        monkeypatch.setenv("http_proxy", scheme + proxy.host.removeprefix("http://"))
        monkeypatch.setenv("no_proxy", "")
        for host, text in (("http://far.invalid:11434", "by proxy"), (here.host, "direct")):
            with closing(OllamaClient(host, timeout_s=PATIENCE_S)) as client:
                assert client.generate(CALL).text == text


@pytest.mark.parametrize(
    ("no_proxy", "text"),
    [
        ("127.0.0.1", "direct"),
        ("127.0.0.1:{port}", "direct"),
        ("elsewhere, 127.0.0.1:{port}", "direct"),
        ("*", "direct"),
        ("127.0.0.1:1", "by proxy"),
        ("127.0.0.0/8", "by proxy"),
    ],
)
def test_no_proxy_names_hosts_with_or_without_a_port_but_no_ranges(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, text: str
) -> None:
    with (
        ScriptedServer(lambda _: (200, b"by proxy")) as proxy,
        ScriptedServer(lambda _: (200, b"direct")) as far,
    ):
        monkeypatch.setenv("http_proxy", proxy.host)
        monkeypatch.setenv("no_proxy", no_proxy.format(port=far.host.rpartition(":")[2]))
        with httpx.Client(transport=transport_to(far.host, direct=False)) as client:
            assert client.get(far.host).text == text


def test_a_proxy_is_told_who_asks_where_its_url_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy_answers = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    for host, line in (
        ("http://far.invalid:11434", b"POST http://far.invalid:11434/api/generate HTTP/1.1\r\n"),
        ("https://far.invalid", b"CONNECT far.invalid:443 HTTP/1.1\r\n"),
        ("https://[2001:db8::1]:8443", b"CONNECT [2001:db8::1]:8443 HTTP/1.1\r\n"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as proxy:
            asked = start(partial(answer_once, proxy, proxy_answers))
            address = f"user:pass%20word@127.0.0.1:{proxy.getsockname()[1]}"
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, f"http://{address}")
            with closing(OllamaClient(host, timeout_s=PATIENCE_S)) as client, pytest.raises(OllamaError):
                client.generate(CALL)
        head = asked.result(PATIENCE_S)
        assert head.startswith(line)
        assert b"\r\nProxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in head


@pytest.mark.parametrize("proxy", ["gopher://proxy:1", "socks5://proxy:1", "http://proxy:port"])
def test_a_proxy_that_cannot_be_used_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(ValueError, match=r"the proxy .* for 'http://far.invalid:80' cannot be used"):
        OllamaClient("http://far.invalid")


@pytest.mark.parametrize(
    ("name", "other"), [("SSL_CERT_FILE", "SSLKEYLOGFILE"), ("SSLKEYLOGFILE", "SSL_CERT_FILE")]
)
def test_a_file_of_tls_that_cannot_be_used_is_one_error_that_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, other: str
) -> None:
    monkeypatch.setenv(name, "/gone/file")
    monkeypatch.delenv(other, raising=False)
    trusted_certificates.cache_clear()
    with pytest.raises(ValueError, match=f"expected {name}='/gone/file' to name a .* file") as caught:
        OllamaClient("https://far.invalid")
    assert other not in str(caught.value)
