"""A call's way here: it is read, meets a fault or none, and is answered in its slot."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from simulator.engine import Engine, Turn
from simulator.faults import Fault, FaultPlan, Outages, garbage, reset
from simulator.replies import ApiError, Composer
from simulator.settings import Settings
from simulator.world_file import Model

Body = Mapping[str, Any]
"""A JSON object."""
_TEXTS = {
    500: "model runner has unexpectedly stopped, this may be due to resource limitations or an "
    "internal error, check ollama server logs for details",
    503: "server busy, please try again.  maximum pending requests exceeded",
}
"""By status, Ollama's words; any other status is that of a gateway."""


def as_json(payload: Body) -> bytes:
    """JSON in UTF-8; what UTF-8 cannot say is replaced."""
    return json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")


@dataclass(kw_only=True)
class State:
    """The parts of a running server, and what it counts beside its engine."""

    settings: Settings
    models: Mapping[str, Model]
    """By full name."""
    composer: Composer
    engine: Engine
    faults: FaultPlan
    outages: Outages
    in_flight: int = 0
    max_in_flight: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """By model."""

    def stats(self) -> dict[str, Any]:
        """What was counted since the last reset; durations in seconds."""
        return {
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
            "calls": self.calls.total(),
            "calls_by_model": dict(self.calls),
            **self.engine.stats(),
        }

    def reset(self) -> None:
        """Count from zero on."""
        self.engine.reset()
        self.max_in_flight = self.in_flight
        self.calls.clear()


STATE = web.AppKey("state", State)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a request asks for, once it is read."""

    model: str
    """The full name."""
    num_ctx: int
    """Tokens of context that the model is to have."""
    prompt_tokens: int
    tokens: int = 0
    whole: Callable[[Turn], Body]
    """The reply that is not streamed."""
    chunks: Callable[[Turn], Iterator[tuple[int, bytes]]] | None = None
    """The reply as it is streamed: what is sent when so many tokens are written."""
    content_type: str = "application/json"
    """Of the stream."""


async def answer(read: Callable[[State, bytes], Work], request: web.Request) -> web.StreamResponse:
    """Answer one call; a request that is rejected meets no fault."""
    state = request.app[STATE]
    arrived_s = state.engine.now_s()
    state.in_flight += 1
    state.max_in_flight = max(state.max_in_flight, state.in_flight)
    try:
        raw = await request.read()
        try:
            work = read(state, raw)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise ApiError(400, f"the request cannot be read: {error!r:.200}") from None
        state.calls[work.model] += 1
        if await state.outages.wait(request, is_call=True):
            arrived_s = state.engine.now_s()
        fault = state.faults.strike(request.path, raw, work.model)
        if fault is not None and fault.kind == "late":
            await asyncio.sleep(fault.seconds)
            arrived_s = state.engine.now_s()
        return await _respond(request, work, fault, arrived_s)
    finally:
        state.in_flight -= 1


async def _respond(
    request: web.Request, work: Work, fault: Fault | None, arrived_s: float
) -> web.StreamResponse:
    """Answer a call; a fault fails it, breaks its connection off or spoils its reply."""
    kind = fault.kind if fault else None
    if fault and kind == "status":
        if fault.status in _TEXTS:
            raise ApiError(fault.status, _TEXTS[fault.status])
        page = "<html>no</html>"
        return web.Response(status=fault.status, text=page, content_type="text/html")
    ends_at = fault.at if fault and kind in {"drop", "hang"} else None
    engine, response = request.app[STATE].engine, None
    async with engine.turn(
        work.model, work.num_ctx, work.prompt_tokens, work.tokens, arrived_s
    ) as turn:
        if work.chunks and kind != "garbage" and ends_at != "start":
            response = await _stream(request, engine, work, turn, half=ends_at == "body")
    if response is None:
        reply = work.whole(turn)
        body = garbage(fault.what, reply) if fault and kind == "garbage" else as_json(reply)
        if ends_at is None:
            return web.Response(body=body, content_type="application/json", charset="utf-8")
        response = await _part(request, body, ends_at)
    if ends_at in {None, "after"}:
        await response.write_eof()
    if kind == "hang":
        await asyncio.Event().wait()
    elif ends_at == "after" and request.transport is not None:
        request.transport.close()
    elif ends_at is not None:
        reset(request.transport)
    return response


async def _stream(
    request: web.Request, engine: Engine, work: Work, turn: Turn, *, half: bool
) -> web.StreamResponse:
    """Send a reply piece by piece, all of it or half; the caller ends the response."""
    response = web.StreamResponse(headers={"Content-Type": work.content_type})
    await response.prepare(request)
    for written, chunk in work.chunks(turn) if work.chunks else ():
        if half and written > work.tokens // 2:
            break
        await engine.reach(turn, written / max(work.tokens, 1))
        await response.write(chunk)
    return response


async def _part(request: web.Request, body: bytes, until: str) -> web.StreamResponse:
    """Send a reply as far as a point."""
    length = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    response = web.StreamResponse(headers=length)
    if until != "start":
        await response.prepare(request)
        await response.write(body[: {"body": len(body) // 2, "end": -1}.get(until)])
    return response
