"""Connections: one call at a time on each, used again, and proxies only where they belong."""

from __future__ import annotations

import threading
from contextlib import closing

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.client import OllamaClient
from ollama_utils.parallel import map_parallel
from ollama_utils.transport import ExclusiveTransport, _tls, transport_to
from ollama_utils.types import Call
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start

CALL = Call(model="m", prompt="p")
REQUEST = httpx.Request("GET", "http://host/echo")


class Connection(httpx.BaseTransport):
    """Echoes the path, and notices when two calls share it or it is closed under one."""

    def __init__(self) -> None:
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

    def connect(self) -> Connection:
        self.append(Connection())
        return self[-1]


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


def test_a_proxy_that_cannot_be_used_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "gopher://proxy:1")
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
    _tls.cache_clear()
    with pytest.raises(ValueError, match=f"expected {name}='/gone/file' to name a .* file") as caught:
        OllamaClient("https://far.invalid")
    assert other not in str(caught.value)
