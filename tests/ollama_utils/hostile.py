"""A server that answers bytes as they are, and replies as real servers write them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Self

from ollama_utils.errors import OllamaError
from ollama_utils.ollama import OllamaClient
from ollama_utils.openai import OpenAIClient
from ollama_utils.types import Call
from tests.ollama_utils.threads import PATIENCE_S

CALL = Call(model="m", prompt="a secret prompt", options={"temperature": 0})
WIRES = ("ollama", "openai")
CHAT = replace(CALL, examples=(("one", "1"),))
KINDS = ("ollama", "chat", "openai")
"""What is asked: /api/generate, /api/chat, /v1/chat/completions."""
COUNTS = {"total_duration": 3 * 10**9, "eval_duration": 10**9, "eval_count": 7}
USAGE = {
    "prompt_tokens": 34,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 24},
}
TIMINGS = {"prompt_ms": 1.5, "predicted_ms": 2.5}


class RawServer:
    """Listens on loopback, and answers each request on a connection with the same bytes.

    Args:
        answer: the bytes; or writes them, given the socket.
        times: requests of a connection that are read and answered, before it is closed; with 0
            `answer` is given the connection unread.
    """

    def __init__(self, answer: bytes | Callable[[socket.socket], None], times: int = 1) -> None:
        self._answer, self._times = answer, times
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        """What came, head and body."""
        self.opened = self.closed = 0
        """Connections."""

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
                connection, _ = self._listener.accept()
                self.opened += 1
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if not self._times and callable(self._answer):
                self._answer(connection)
            for _ in range(self._times):
                request = read_request(connection)
                if not request and self._times > 1:
                    break
                self.requests.append(request)
                if callable(self._answer):
                    self._answer(connection)
                else:
                    connection.sendall(self._answer)
        self.closed += 1


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
    lines = [f"HTTP/1.1 {status}".encode()]
    for name, value in {"Content_Length": str(len(body)), "Connection": "close", **headers}.items():
        written = value if isinstance(value, bytes) else value.encode()
        lines.append(name.replace("_", "-").encode() + b": " + written)
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


def message(kind: str, text: object, thought: object = None, **more: object) -> dict[str, Any]:
    """A whole reply, or what a part of one says."""
    if kind == "openai":
        return {"content": text, "reasoning": thought, **more}
    if kind == "chat":
        return {"message": {"role": "assistant", "content": text, "thinking": thought}, **more}
    return {"model": "m", "response": text, "thinking": thought, **more}


def whole(kind: str, text: object, thought: object = None, reason: object = "stop") -> bytes:
    """A reply that is sent at once."""
    if kind == "openai":
        choice = {"index": 0, "message": message(kind, text, thought), "finish_reason": reason}
        return json.dumps({"choices": [choice], "usage": USAGE, "timings": TIMINGS}).encode()
    return json.dumps(
        message(kind, text, thought, done=True, done_reason=reason, **COUNTS)
    ).encode()


def chunk(delta: object, reason: str | None = None, **more: object) -> dict[str, Any]:
    """One part of OpenAI's."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def events(parts: Iterable[object], end: bytes = b"data: [DONE]\n\n") -> bytes:
    """A stream of OpenAI's."""
    return b"".join(b"data: %s\n\n" % json.dumps(part).encode() for part in parts) + end


def lines(parts: Iterable[object]) -> bytes:
    """A stream of Ollama's."""
    return b"".join(json.dumps(part).encode() + b"\n" for part in parts)


def streamed(kind: str, texts: list[str], thoughts: list[str], reason: str = "stop") -> bytes:
    """The same in parts."""
    if kind == "openai":
        deltas = [{"reasoning": each} for each in thoughts] + [{"content": each} for each in texts]
        usage = {"usage": USAGE, "timings": TIMINGS}
        return events([*map(chunk, deltas), chunk({}, reason), {"choices": [], **usage}])
    parts = [message(kind, "", each, done=False) for each in thoughts]
    parts += [message(kind, each, done=False) for each in texts]
    return lines([*parts, message(kind, "", done=True, done_reason=reason, **COUNTS)])


def reply_to(kind: str, body: bytes, *, stream: bool, status: str = "200 OK") -> Any:
    """What a client makes of a body: a completion or an error."""
    wire, call = (
        ("openai", CALL) if kind == "openai" else ("ollama", CHAT if kind == "chat" else CALL)
    )
    return outcome(wire, http(status, body), lambda client: client.generate(call, stream=stream))
