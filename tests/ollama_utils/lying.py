"""A server that keeps every promise of a real one, and one that breaks a single promise."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

Body = dict[str, Any]
Answer = tuple[int, Body]
"""The status and the JSON of a reply."""
Honest = Callable[[], Answer]
Lie = Callable[[str, Body, Honest], Answer]
"""Given path and body of a request ({}: of a GET) and what answers it honestly, the answer."""

CONTEXT = 4096
"""The simulator's."""
TEMPLATE_TOKENS = 6


class LyingServer:
    """Passes requests on to a simulator, as if that had a template.

    Args:
        simulator: its host.
        lie: answers in the place of it.
    """

    def __init__(self, simulator: str, lie: Lie) -> None:
        self.simulator, self.lie = simulator, lie
        self._server = _Server(("127.0.0.1", 0), _handler_class(self))
        self.host = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def honest(self, path: str, asked: Body) -> Answer:
        """The simulator's answer, with the tokens of a template."""
        connection = http.client.HTTPConnection(urlsplit(self.simulator).netloc, timeout=60)
        connection.request("POST" if asked else "GET", path, json.dumps(asked) if asked else None)
        reply = connection.getresponse()
        found = json.loads(reply.read())
        connection.close()
        for model in found.get("models", ()):
            model["details"]["format"] = "gguf"
        count_prompt(found, TEMPLATE_TOKENS)
        return reply.status, found


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    block_on_close = False
    """Some lies hang."""


def _handler_class(server: LyingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _answer(self, asked: Body) -> None:
            status, body = server.lie(self.path, asked, lambda: server.honest(self.path, asked))
            raw = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
            except ConnectionError:  # the client has given up
                self.close_connection = True

    return Handler


class UnderWay:
    """How many requests are being answered, of those within `with`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0

    def __enter__(self) -> int:
        with self._lock:
            self._now += 1
            return self._now

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


def count_prompt(reply: Body, more: int) -> None:
    """Have a reply report more tokens of its prompt."""
    if "prompt_eval_count" in reply:
        reply["prompt_eval_count"] += more
    elif "usage" in reply:
        reply["usage"]["prompt_tokens"] += more


def options(asked: Body) -> Body:
    """Where a request has its temperature and seed."""
    found: Body = asked.get("options", asked)
    return found


def message(reply: Body) -> tuple[Body, str]:
    """What holds the words of a reply, and under which key."""
    if "choices" in reply:
        return reply["choices"][0]["message"], "content"
    return (reply["message"], "content") if "message" in reply else (reply, "response")


def changing(change: Callable[[Body, Body], None]) -> Lie:
    """A lie that changes replies with words, given the request and the reply."""

    def lie(_path: str, asked: Body, honest: Honest) -> Answer:
        status, reply = honest()
        if status == 200 and asked and "embeddings" not in reply:
            change(asked, reply)
        return status, reply

    return lie


def saying(text: Callable[[Body, str], str]) -> Lie:
    """A lie that changes the words of a reply, given the request and the words."""

    def change(asked: Body, reply: Body) -> None:
        holder, key = message(reply)
        holder[key] = text(asked, holder[key])

    return changing(change)
