"""Plays the faults that were asked for.

In place of a reply, at once: `error_500` (a runner crash), `busy_503` (a full queue), `not_json` (a
gateway's page, with `status`); after `seconds` without a word: `stall` (a load that is stuck until Ollama
gives it up).

The reply that would have come, in its time: `latency` (`seconds` late), `empty` (without words), `enormous`
(`bytes` long: words over and over, or blanks before embeddings), `wrong_type` (a `field` of another type),
`not_done` (it says that more will come, as after Ollama's repeat guard), `cut_json` (half of its JSON in a
body of the right length). All but the first come in one line when the reply is streamed.

That reply on a connection that fails: `hang` (no more bytes come), `drop` (a reset), both `at` a place in
the reply, or with `drop` an orderly end `after` it, which the client's next call meets; `truncated` (an
orderly end halfway through the body); `dribble` (its bytes come one by one, or few by few, in `seconds`
altogether: all of them, or those of the body).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from aiohttp import web

from ollama_utils.simulator import valve, wire
from ollama_utils.simulator.delivery import json_reply
from ollama_utils.simulator.faults import WORDY, Fault, Place
from ollama_utils.simulator.requests import parse_body, request_name
from ollama_utils.simulator.residence import BUSY
from ollama_utils.simulator.spoiling import spoilt
from ollama_utils.simulator.state import State

Answer = Callable[[web.Request, State, float], Awaitable[web.StreamResponse]]
"""An endpoint: the request, the server's state and the moment of arrival in seconds."""

_CRASH = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
    "error, check ollama server logs for details"
)
_STUCK = "timed out waiting for llama runner to start - progress 0.00 - "
_PAGE = b"<html><head><title>Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n"
_SHORTEST_GAP_S = 0.01
_SHARES: dict[Place, valve.Share] = {
    "start": valve.nothing,
    "body": valve.half_of_body,
    "end": valve.all_but_the_end,
    "after": valve.all_but_the_end,
}


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


def sabotaged(endpoint: str, check: Check) -> Answer:
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
        response = await _Play(request, endpoint, work, stream, fault).perform()
        if fault.spoils:
            state.counters.spoilt()
        return response

    return handle


@dataclass(frozen=True)
class _Play:
    """One call and the fault that it meets."""

    request: web.Request
    endpoint: str
    work: Work
    stream: bool
    fault: Fault

    async def perform(self) -> web.StreamResponse:
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
        return await self._spoil()

    async def _no_reply(self) -> web.Response:
        if self.fault.kind == "not_json":
            return web.Response(body=_PAGE, status=self.fault.status, content_type="text/html")
        if self.fault.kind == "busy_503":
            return json_reply({"error": BUSY}, 503)
        await asyncio.sleep(self.fault.seconds)
        return json_reply({"error": _STUCK if self.fault.kind == "stall" else _CRASH}, 500)

    async def _spoil(self) -> web.Response:
        """A body that came whole but is no good; a stream is one line."""
        reply = cast("web.Response", await self.work(stream=False))
        body = spoilt(self.fault, self.endpoint, json.loads(cast("bytes", reply.body)))
        streamed = self.stream and self.endpoint in WORDY
        return web.Response(
            body=body + b"\n" if streamed else body,
            content_type="application/x-ndjson" if streamed else reply.content_type,
            charset=None if streamed else reply.charset,
        )

    async def _break_off(self) -> web.StreamResponse:
        """The reply up to a place, and then no more of it."""
        at: Place = "body" if self.fault.kind == "truncated" else self.fault.at
        response, pipe, rest = await self._write(_SHARES[at])
        if self.fault.kind == "hang":
            await asyncio.Event().wait()
        if at == "after":
            valve.end(pipe, rest)
        elif self.fault.kind == "truncated":
            valve.end(pipe)
        else:
            valve.reset(pipe)
        return response

    async def _dribble(self) -> web.StreamResponse:
        """The reply, the rest of it bit by bit."""
        response, pipe, rest = await self._write(valve.nothing if self.fault.at == "start" else valve.head)
        pieces = min(len(rest), math.ceil(self.fault.seconds / _SHORTEST_GAP_S))
        for piece in range(pieces):
            await asyncio.sleep(self.fault.seconds / pieces)
            pipe.write(rest[piece * len(rest) // pieces : (piece + 1) * len(rest) // pieces])
        return response

    async def _write(self, share: valve.Share) -> tuple[web.StreamResponse, asyncio.Transport, bytes]:
        """Write the whole reply, of which the share goes out: the reply, its connection and the rest."""
        pipe = self.request.transport
        if pipe is None:
            raise ConnectionResetError("the client left")
        gate = self.request.protocol.transport = valve.Valve(pipe, share)
        try:
            response = await self.work(stream=self.stream)
            await response.prepare(self.request)
            await response.write_eof()
        finally:
            if self.request.transport is gate:
                self.request.protocol.transport = pipe
        return response, pipe, gate.held
