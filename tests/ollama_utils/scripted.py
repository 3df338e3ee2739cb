"""A real HTTP server that answers what a test wants: for replies that no healthy server gives."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Handler = Callable[[dict[str, Any]], tuple[int, Any]]
"""Given a request's JSON body, the status and the body, bytes or JSON; status 0: it hangs up."""

SAID = {"model": "m", "created_at": "2025-01-01T00:00:00Z", "response": "Yes.", "done": True}


class ScriptedServer:
    """Listens on loopback, keeps what it gets, answers by a handler, whose error fails the test."""

    def __init__(self, handler: Handler) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._server = _Server(("127.0.0.1", 0), _handler_class(self, handler))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self.host = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._server.failures:
            raise AssertionError("the handler failed") from self._server.failures[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.failures: list[BaseException] = []

    def handle_error(self, *_: object) -> None:
        """Keep what a handler raised for the test; a client that is gone is none of it."""
        failure = sys.exception()
        if failure is not None and not isinstance(failure, ConnectionError):
            self.failures.append(failure)


def _handler_class(script: ScriptedServer, handler: Handler) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            script.bodies.append(body)
            self._send(*handler(body))

        def do_GET(self) -> None:
            self._send(*handler({}))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _send(self, status: int, body: object) -> None:
            if not status:
                self.close_connection = True
                return
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
            except ConnectionError:
                pass  # the client of a test that gives up is gone

    return Answer
