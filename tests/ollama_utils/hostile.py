"""A server that answers bytes as they are, whatever it is asked, and remembers what it was sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Self

from ollama_utils.errors import OllamaError
from ollama_utils.ollama import OllamaClient
from ollama_utils.openai import OpenAIClient
from ollama_utils.types import Call
from tests.ollama_utils.threads import PATIENCE_S

CALL = Call(model="m", prompt="a secret prompt", options={"temperature": 0})
WIRES = ("ollama", "openai")


class RawServer:
    """Listens on loopback; each connection gets the same bytes, and is closed.

    Args:
        answer: the bytes; or writes them, given the socket.
    """

    def __init__(self, answer: bytes | Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        """What came, head and body."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(
                    target=self._one, args=(self._listener.accept()[0],), daemon=True
                ).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.requests.append(read_request(connection))
            if callable(self._answer):
                self._answer(connection)
            else:
                connection.sendall(self._answer)


def read_request(connection: socket.socket) -> bytes:
    """One request: its head, and as much of a body as that announces."""
    read = b""
    while b"\r\n\r\n" not in read:
        if not (more := connection.recv(2**16)):
            return read
        read += more
    head, _, body = read.partition(b"\r\n\r\n")
    announced = [
        line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    ]
    left = (int(announced[0].partition(b":")[2]) if announced else 0) - len(body)
    while left > 0 and (more := connection.recv(2**16)):
        read += more
        left -= len(more)
    return read


def http(status: str, body: bytes = b"", **headers: str | bytes) -> bytes:
    """A reply as it goes out; a header's name is written with `_` for `-`."""
    lines = [f"HTTP/1.1 {status}".encode(), b"Content-Length: %d" % len(body), b"Connection: close"]
    for name, value in headers.items():
        told = value if isinstance(value, bytes) else value.encode()
        lines.append(name.replace("_", "-").encode() + b": " + told)
    return b"\r\n".join([*lines, b"", body])


def client_of(wire: str, host: str, timeout_s: float = PATIENCE_S) -> OllamaClient | OpenAIClient:
    """A client on a wire."""
    if wire == "openai":
        return OpenAIClient(f"openai:{host}", timeout_s=timeout_s)
    return OllamaClient(host, timeout_s=timeout_s)


def outcome(
    wire: str,
    answer: bytes | Callable[[socket.socket], None],
    ask: Callable[[OllamaClient | OpenAIClient], object] = lambda client: client.generate(CALL),
) -> object:
    """What a client makes of the same bytes to any request: a reply, or a short error."""
    with RawServer(answer) as server, closing(client_of(wire, server.host)) as client:
        try:
            return ask(client)
        except OllamaError as error:
            assert str(error).isprintable(), answer  # noqa: PT017 - what else is raised fails the test
            assert len(str(error)) < 900, answer  # noqa: PT017 - likewise
            return error
