"""Connections to a server that keeps them open, closes them, trickles or never ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ollama_utils.client import OllamaClient
from ollama_utils.errors import BadReplyError, BadRequestError, CallTimeoutError
from ollama_utils.http import MOST_BYTES
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call
from tests.ollama_utils.scripted import SAID
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

CALL = Call(model="m", prompt="p")
BODY = json.dumps(SAID).encode()


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


def answer_with(request: Request, sent: bytes, *, close: bool) -> None:
    """Answer with these bytes as they are."""
    request.wfile.write(sent)
    request.close_connection = close


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


def test_as_many_connections_are_kept_as_there_were_calls_at_once() -> None:
    burst = 40
    together = threading.Barrier(burst)

    def answer(request: Request) -> None:
        together.wait(PATIENCE_S)
        request.say("Yes.")

    with KeptOpen(answer) as server, closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client:
        for _ in range(3):
            replies = map_parallel(client.generate, [CALL] * burst)
            assert [reply.text for reply in replies] == ["Yes."] * burst
        assert len(server.opened) == burst
        client.close()
        wait_until(lambda: len(server.opened) == len(server.closed))


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8;x=y\r\n" + BODY[:8] + b"\r\n"
        b"%x\r\n" % len(BODY[8:]) + BODY[8:] + b"\r\n0\r\nX-Trailer: t\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY,
        b"HTTP/1.1 200 OK\r\nX-Name: Ren\xe9\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    ],
)
def test_a_reply_is_read_to_its_end_and_its_connection_used_again(sent: bytes) -> None:
    with (
        KeptOpen(lambda request: answer_with(request, sent, close=False)) as server,
        closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client,
    ):
        assert [client.generate(CALL).text for _ in range(3)] == ["Yes."] * 3
    assert len(server.opened) == 1


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)]
)
def test_a_reply_that_ends_with_its_connection_is_read_whole(head: bytes) -> None:
    with (
        KeptOpen(lambda request: answer_with(request, head + BODY, close=True)) as server,
        closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client,
    ):
        assert [client.generate(CALL).text for _ in range(2)] == ["Yes."] * 2


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "without response"),
        (b"SSH-2.0-OpenSSH_9.6" + b"." * 60_000 + b"\r\n", "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 70_000, "header line"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Many: a\r\n" * 200, "headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", "95 bytes early"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", "99 bytes early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n63\r\nhalf", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsize\r\nhalf", "IncompleteRead"),
    ],
)
def test_what_is_no_whole_reply_is_a_bad_reply_in_one_short_line(sent: bytes, words: str) -> None:
    with (
        KeptOpen(lambda request: answer_with(request, sent, close=True)) as server,
        closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client,
        pytest.raises(BadReplyError, match=f"broke off its reply: .*{words}") as caught,
    ):
        client.generate(CALL)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_request_that_is_refused_before_it_is_read_gets_the_reason() -> None:
    """It is longer than what is buffered on the way, so that writing it fails."""
    refusal = json.dumps({"error": "too long"}).encode()
    head = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n" % len(refusal)

    def refuse() -> None:
        with listener.accept()[0] as connection:
            connection.recv(1)
            connection.sendall(head + refusal)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        start(refuse)
        host = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            closing(OllamaClient(host, timeout_s=PATIENCE_S)) as client,
            pytest.raises(BadRequestError, match="answered 413: 'too long'"),
        ):
            client.generate(Call(model="m", prompt="p" * 2**25))


def test_a_key_of_two_lines_is_a_bad_request_that_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "secret\nX-Other: 1")
    with (
        KeptOpen(lambda request: request.say("Yes.")) as server,
        closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client,
        pytest.raises(BadRequestError, match="OLLAMA_API_KEY") as caught,
    ):
        client.generate(CALL)
    assert "secret" not in str(caught.value)
    assert not server.ports


@pytest.mark.parametrize("early", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_what_comes_before_a_final_reply_is_passed_over(early: bytes) -> None:
    def answer(request: Request) -> None:
        request.wfile.write(b"HTTP/1.1 " + early + b"\r\nLink: </style.css>\r\n\r\n")
        request.say(str(len(server.ports)))

    with KeptOpen(answer) as server, closing(OllamaClient(server.host)) as client:
        assert [client.generate(CALL).text for _ in range(3)] == ["1", "2", "3"]


def test_a_server_that_always_puts_the_final_reply_off_is_given_up() -> None:
    def answer(request: Request) -> None:
        while True:
            request.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)

    with (
        KeptOpen(answer) as server,
        closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client,
        pytest.raises(BadReplyError, match="more than 100 replies came before the final one"),
    ):
        client.generate(CALL)
