"""How the faults of `simulator.faults` are played.

In place of a reply, at once: `error_500` (a runner crash), `busy_503` (a full queue), `not_json` (a
gateway's page, with `status`); after `seconds` without a byte: `stall` (a load that is stuck until Ollama
gives it up).

The reply that would have come, in its time: `latency` (`seconds` late), `empty` (without words), `enormous`
(`bytes` long: words over and over, or blanks before embeddings), `wrong_type` (a `field` of another type),
`not_done` (it says that more will come, as after Ollama's repeat guard), `cut_json` (half of its JSON in a
body of the right length). All but the first come in one line when the reply is streamed.

That reply on a connection that fails: `hang` (no more bytes come), `drop` (a reset), both `at` a point of
the reply, or with `drop` an orderly end `after` it, which the client's next call meets; `truncated` (an
orderly end halfway through the body); `dribble` (its bytes come one by one, or few by few, in `seconds`
altogether: all of them, or those of the body).
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from aiohttp import web

from simulator import wire
from simulator.engine import BUSY
from simulator.faults import CONTENT, WITH_WORDS, Fault, Point
from simulator.requests import parse_body, request_name
from simulator.state import State
from simulator.wire import json_reply

_OTHER_TYPES: Mapping[str, Any] = {
    "response": 5,
    "message": "Yes.",
    "embeddings": [["one", "two"]],
    "embedding": ["one", "two"],
    "model": 5,
    "done": "perhaps",
    "eval_count": "many",
    "total_duration": "long",
}
"""For each field a value that it never has."""


def damaged(fault: Fault, endpoint: str, reply: wire.Body) -> bytes:
    """The body of a reply, struck by a fault of kind cut_json, empty, enormous, not_done or wrong_type."""
    content = CONTENT[endpoint]
    changed = dict(reply)
    if fault.kind == "empty":
        changed[content] = _without_words(reply[content])
    elif fault.kind == "enormous":
        changed[content] = _repeated(reply[content], fault.bytes)
    elif fault.kind == "not_done":
        changed = {name: value for name, value in reply.items() if name != "done_reason"} | {"done": False}
    elif fault.kind == "wrong_type":
        field = fault.field or content
        changed[field] = _OTHER_TYPES[field]
    body = wire.dumps(changed).rjust(fault.bytes)
    return body[: len(body) // 2] if fault.kind == "cut_json" else body


def _without_words(content: Any) -> Any:  # noqa: ANN401 - a field of JSON
    """A reply's content with no text, or no embeddings."""
    if isinstance(content, dict):
        return content | {"content": ""}
    return "" if isinstance(content, str) else []


def _repeated(content: Any, size: int) -> Any:  # noqa: ANN401 - a field of JSON
    """A reply's content with its text over and over, at least `size` bytes; embeddings as they are."""
    if isinstance(content, dict):
        return content | {"content": _repeated(content["content"], size)}
    return f"{content} " * (size // max(1, len(content)) + 1) if isinstance(content, str) else content


Answer = Callable[[web.Request, State, float], Awaitable[web.StreamResponse]]
"""An endpoint: the request, the server's state and the moment of arrival in seconds."""

_CRASH = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
    "error, check ollama server logs for details"
)
_STUCK = "timed out waiting for llama runner to start - progress 0.00 - "
_PAGE = b"<html><head><title>Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n"
_SHORTEST_GAP_S = 0.01


class Work(Protocol):
    """Does what a request asks for: takes its time in a slot and gives the reply."""

    async def __call__(self, *, stream: bool) -> web.StreamResponse:
        """The reply, already under way when it is streamed."""
        ...


class Job(NamedTuple):
    """A request that passed the endpoint's checks."""

    model: str
    """The full name."""
    work: Work


Check = Callable[[web.Request, State, wire.Body, float], Job]
"""An endpoint's checks: the request, the state, the JSON body and the moment of arrival in seconds. It
raises ApiError for what Ollama rejects."""


def with_faults(endpoint: str, check: Check) -> Answer:
    """The endpoint as one that fails where the fault plan says so; calls to models are counted here.

    A request that Ollama rejects meets no fault.
    """

    async def handle(request: web.Request, state: State, arrived_s: float) -> web.StreamResponse:
        raw = await request.read()
        body = parse_body(raw, request_name(endpoint))
        model, work = check(request, state, body, arrived_s)
        state.counters.called(model)
        stream = body.get("stream") is not False
        fault = state.faults.strike(endpoint, raw, model)
        if fault is None:
            return await work(stream=stream)
        state.counters.faulted(fault.kind)
        response = await _FaultyCall(request, endpoint, work, stream, fault).answer()
        if fault.fails_call:
            state.counters.failed()
        return response

    return handle


@dataclass(frozen=True)
class _FaultyCall:
    """One call and the fault that it meets."""

    request: web.Request
    endpoint: str
    work: Work
    stream: bool
    fault: Fault

    async def answer(self) -> web.StreamResponse:
        """What the client gets; a client that leaves ends it wherever it is."""
        kind = self.fault.kind
        if kind in {"error_500", "busy_503", "stall", "not_json"}:
            return await self._no_reply()
        if kind == "latency":
            await asyncio.sleep(self.fault.seconds)
            return await self.work(stream=self.stream)
        if kind == "dribble":
            return await self._dribble()
        if kind in {"hang", "drop", "truncated"}:
            return await self._break_off()
        return await self._damage()

    async def _no_reply(self) -> web.Response:
        if self.fault.kind == "not_json":
            return web.Response(body=_PAGE, status=self.fault.status, content_type="text/html")
        if self.fault.kind == "busy_503":
            return json_reply({"error": BUSY}, 503)
        await asyncio.sleep(self.fault.seconds)
        return json_reply({"error": _STUCK if self.fault.kind == "stall" else _CRASH}, 500)

    async def _damage(self) -> web.Response:
        """A body that came whole but is no good; a stream is one line."""
        reply = cast("web.Response", await self.work(stream=False))
        body = damaged(self.fault, self.endpoint, json.loads(cast("bytes", reply.body)))
        streamed = self.stream and self.endpoint in WITH_WORDS
        return web.Response(
            body=body + b"\n" if streamed else body,
            content_type="application/x-ndjson" if streamed else reply.content_type,
            charset=None if streamed else reply.charset,
        )

    async def _break_off(self) -> web.StreamResponse:
        """The reply up to a point, and then no more of it."""
        at: Point = "body" if self.fault.kind == "truncated" else self.fault.at
        response, pipe, rest = await self._write(_SHARES[at])
        if self.fault.kind == "hang":
            await asyncio.Event().wait()
        if at == "after":
            end(pipe, rest)
        elif self.fault.kind == "truncated":
            end(pipe)
        else:
            reset(pipe)
        return response

    async def _dribble(self) -> web.StreamResponse:
        """The reply, the rest of it bit by bit."""
        response, pipe, rest = await self._write(nothing if self.fault.at == "start" else head)
        pieces = min(len(rest), math.ceil(self.fault.seconds / _SHORTEST_GAP_S))
        for piece in range(pieces):
            await asyncio.sleep(self.fault.seconds / pieces)
            pipe.write(rest[piece * len(rest) // pieces : (piece + 1) * len(rest) // pieces])
        return response

    async def _write(self, share: Share) -> tuple[web.StreamResponse, asyncio.Transport, bytes]:
        """Write the whole reply, of which the share goes out: the reply, its connection and the rest."""
        pipe = self.request.transport
        if pipe is None:
            raise ConnectionResetError("the client left")
        partial = self.request.protocol.transport = PartialTransport(pipe, share)
        try:
            response = await self.work(stream=self.stream)
            await response.prepare(self.request)
            await response.write_eof()
        finally:
            if self.request.transport is partial:
                self.request.protocol.transport = pipe
        return response, pipe, partial.held


Buffer = bytes | bytearray | memoryview
Share = Callable[[bytearray], int]
"""Of the bytes of a reply so far, how many may pass; never fewer than before."""

_HEAD_END = b"\r\n\r\n"
_LAST_BYTES = 5
"""The terminating chunk of a stream, `0\\r\\n\\r\\n`; of another reply as much of its JSON."""


class PartialTransport(asyncio.Transport):
    """Stands in for a connection while a reply is written, and passes on a part; the rest stays in `held`.

    Args:
        pipe: the connection.
        share: how much may pass.
    """

    def __init__(self, pipe: asyncio.Transport, share: Share) -> None:
        super().__init__()
        self._pipe = pipe
        self._share = share
        self._written = bytearray()
        self._passed = 0

    @property
    def held(self) -> bytes:
        """What did not pass so far."""
        return bytes(self._written[self._passed :])

    def write(self, data: Buffer) -> None:
        """Take bytes of the reply, and pass on what may pass by now."""
        self._written += data
        until = self._share(self._written)
        if until > self._passed:
            self._pipe.write(bytes(self._written[self._passed : until]))
            self._passed = until

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """As `write`."""
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        """Whether the connection is gone, or about to go."""
        return self._pipe.is_closing()

    def close(self) -> None:
        """Close the connection."""
        self._pipe.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._pipe.abort()

    def pause_reading(self) -> None:
        """Read no more requests for now."""
        self._pipe.pause_reading()

    def resume_reading(self) -> None:
        """Read requests again."""
        self._pipe.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as asyncio has it
        """What is known of the connection."""
        return self._pipe.get_extra_info(name, default)


def nothing(_: bytearray) -> int:
    """Not a byte passes."""
    return 0


def head(written: bytearray) -> int:
    """The status line and the headers pass."""
    end = written.find(_HEAD_END)
    return end + len(_HEAD_END) if end >= 0 else 0


def half_of_body(written: bytearray) -> int:
    """The head and half of the body pass."""
    return (head(written) + len(written)) // 2 if head(written) else 0


def all_but_the_end(written: bytearray) -> int:
    """All passes but the last few bytes."""
    return max(0, len(written) - _LAST_BYTES)


def end(pipe: asyncio.Transport, last: bytes = b"") -> None:
    """Send last bytes and the orderly end of a connection, together."""
    pipe.write(last)
    pipe.write_eof()
    pipe.close()


def reset(pipe: asyncio.Transport) -> None:
    """Break a connection off so that the client sees a reset and no orderly end."""
    connection = pipe.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pipe.abort()


_SHARES: dict[Point, Share] = {
    "start": nothing,
    "body": half_of_body,
    "end": all_but_the_end,
    "after": all_but_the_end,
}
