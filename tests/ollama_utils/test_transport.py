"""Connections: one call at a time on each, used again, and proxies only where they belong."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.client import OllamaClient
from ollama_utils.connection import MOST_BYTES
from ollama_utils.errors import BadReplyError, CallTimeoutError
from ollama_utils.parallel import map_parallel
from ollama_utils.transport import _MOST_IDLE, ExclusiveTransport, _tls, transport_to
from ollama_utils.types import Call
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

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


class KeptOpen(ThreadingHTTPServer):
    """An HTTP/1.1 server that keeps its connections open, as Ollama does.

    Args:
        answer: writes the answer to a request.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: Callable[[Request], None]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer = answer
        self.ports: list[int] = []
        """The client's port of the connection that each request came on."""
        self.opened, self.closed = set[int](), set[int]()
        """The client's ports of all connections so far, and of those that are closed."""
        self.host = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Request(BaseHTTPRequestHandler):
    """One connection's requests."""

    protocol_version = "HTTP/1.1"
    server: KeptOpen

    def setup(self) -> None:
        super().setup()
        self.server.opened.add(self.client_address[1])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.ports.append(self.client_address[1])
        with contextlib.suppress(ConnectionError):  # the client of a test that gives up is gone
            self.server.answer(self)

    def finish(self) -> None:
        super().finish()
        self.connection.close()
        self.server.closed.add(self.client_address[1])

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def say(self, text: str, *, share: float = 1.0) -> None:
        """A reply, or a share of its body."""
        body = json.dumps(SAID | {"response": text}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: int(len(body) * share)])


def test_an_idle_connection_that_the_server_closed_costs_the_next_call_nothing() -> None:
    def answer(request: Request) -> None:
        request.say("Yes.")
        request.close_connection = True

    with KeptOpen(answer) as server, closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client:
        for _ in range(3):
            assert client.generate(CALL).text == "Yes."
            wait_until(lambda: server.closed == set(server.ports))
    assert len(set(server.ports)) == 3


def test_a_connection_whose_reply_was_not_read_whole_is_not_used_again() -> None:
    given_up = threading.Event()

    def answer(request: Request) -> None:
        if len(server.ports) == 1:
            request.say("half", share=0.5)
            given_up.wait(PATIENCE_S)
        else:
            request.say("whole")

    with KeptOpen(answer) as server, closing(OllamaClient(server.host, timeout_s=0.2)) as client:
        with pytest.raises(CallTimeoutError):
            client.generate(CALL)
        assert [client.generate(CALL).text for _ in range(2)] == ["whole", "whole"]
        given_up.set()
    assert server.ports[1] == server.ports[2] != server.ports[0]


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_reply_that_trickles_in_is_given_up_wherever_it_does(sent: bytes) -> None:
    given_up = threading.Event()

    def answer(request: Request) -> None:
        request.wfile.write(sent)
        while not given_up.wait(0.01):
            request.wfile.write(b"H")

    with KeptOpen(answer) as server, closing(OllamaClient(server.host, timeout_s=0.2)) as client:
        asked = start(lambda: client.generate(CALL))
        assert isinstance(asked.exception(PATIENCE_S), CallTimeoutError)
        given_up.set()


@pytest.mark.parametrize("head", [b"Content-Length: 1000000000000\r\n\r\n", b"\r\n"])
def test_a_reply_without_an_end_is_read_no_further_than_the_bound(head: bytes) -> None:
    sent = [0]

    def answer(request: Request) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + head)
        while True:
            sent[0] += request.wfile.write(b" " * 2**20)

    with KeptOpen(answer) as server, closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client:
        with pytest.raises(BadReplyError, match=f"longer than {MOST_BYTES} bytes"):
            client.generate(CALL)
        wait_until(lambda: server.closed == set(server.ports))
    assert sent[0] < 2 * MOST_BYTES


def test_after_a_burst_only_a_bounded_number_of_connections_stays_open() -> None:
    burst = _MOST_IDLE + 8
    together = threading.Barrier(burst)

    def answer(request: Request) -> None:
        if len(server.ports) <= burst:
            together.wait(PATIENCE_S)
        request.say("Yes.")

    with KeptOpen(answer) as server, closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client:
        replies = map_parallel(client.generate, [CALL] * burst)
        assert [reply.text for reply in replies] == ["Yes."] * burst
        wait_until(lambda: len(server.opened) - len(server.closed) == _MOST_IDLE)
        assert client.generate(CALL).text == "Yes."
        assert len(server.opened) == burst
        client.close()
        wait_until(lambda: len(server.opened) == len(server.closed))
