"""A call's way here: it is read, meets a fault or none, and is answered in its slot."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from simulator.engine import BusyError, Engine, Turn
from simulator.faults import Fault, FaultPlan, Outages, garbage, reset
from simulator.replies import Composer, SchemaError
from simulator.settings import Settings
from simulator.world_file import Model

Body = Mapping[str, Any]
"""A JSON object."""
BUSY = "server busy, please try again.  maximum pending requests exceeded"
CRASH = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
    "error, check ollama server logs for details"
)
_TEXTS = {500: CRASH, 503: BUSY}
"""By status, Ollama's words; any other status is that of a gateway."""


def as_json(payload: Body) -> bytes:
    """JSON in UTF-8; what UTF-8 cannot say is replaced."""
    return json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")


class ApiError(Exception):
    """A request that the server rejects: the status and the text of its error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


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
    failed: int = 0
    """Requests that got an error or a fault, or nothing because their client left."""
    calls: Counter[str] = field(default_factory=Counter)
    """By model."""
    struck: Counter[str] = field(default_factory=Counter)
    """Calls that a fault struck, by its kind."""

    def stats(self) -> dict[str, Any]:
        """What was counted since the last reset; durations in seconds."""
        of_settings = ("slots", "world", "time_scale", "reply_tokens", "seed")
        own = ("failed", "in_flight", "max_in_flight")
        return {
            **{name: getattr(self.settings, name) for name in of_settings},
            **{name: getattr(self, name) for name in own},
            "calls": self.calls.total(),
            "calls_by_model": dict(self.calls),
            "faults": dict(self.struck),
            **self.engine.stats(),
        }

    def reset(self) -> None:
        """Count from zero on."""
        self.engine.reset()
        self.max_in_flight, self.failed = self.in_flight, 0
        self.calls.clear()
        self.struck.clear()


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
    """Answer one call; a request that is rejected meets no fault.

    Args:
        read: reads a request's body; it raises ApiError for what is rejected.
        request: the call.
    """
    state = request.app[STATE]
    arrived_s, failed = state.engine.now_s(), True
    state.in_flight += 1
    state.max_in_flight = max(state.max_in_flight, state.in_flight)
    try:
        raw = await request.read()
        try:
            work = read(state, raw)
        except SchemaError as error:
            raise ApiError(500, f"invalid format: {error}") from None
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise ApiError(400, f"the request cannot be read: {error!r:.200}") from None
        state.calls[work.model] += 1
        await state.outages.passed(request, is_call=True)
        fault = state.faults.strike(request.path, raw, work.model)
        if fault is not None:
            state.struck[fault.kind] += 1
        response = await _struck(request, state, work, fault, arrived_s)
        failed = fault is not None and fault.fails_call
    except BusyError:
        raise ApiError(503, BUSY) from None
    finally:
        state.in_flight -= 1
        state.failed += failed
    return response


async def _struck(
    request: web.Request, state: State, work: Work, fault: Fault | None, arrived_s: float
) -> web.StreamResponse:
    """Answer a call; a fault fails it, delays it, breaks its connection off or spoils its reply."""
    if fault is None:
        return await _whole(request, state, work, arrived_s)
    if fault.kind == "status":
        if fault.status in _TEXTS:
            raise ApiError(fault.status, _TEXTS[fault.status])
        page = "<html>no</html>"
        return web.Response(status=fault.status, text=page, content_type="text/html")
    if fault.kind == "late":
        await asyncio.sleep(fault.seconds)
        return await _whole(request, state, work, state.engine.now_s())
    if fault.kind == "garbage":
        async with _turn(state, work, arrived_s) as turn:
            pass
        return _json_response(garbage(fault, request.path, work.whole(turn)))
    return await _broken(request, state, work, fault, arrived_s)


def _turn(state: State, work: Work, arrived_s: float) -> AbstractAsyncContextManager[Turn]:
    """The time in a slot that the work takes."""
    return state.engine.turn(work.model, work.num_ctx, work.prompt_tokens, work.tokens, arrived_s)


def _json_response(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def _whole(
    request: web.Request, state: State, work: Work, arrived_s: float
) -> web.StreamResponse:
    """Answer a call as it should be, streamed or not."""
    async with _turn(state, work, arrived_s) as turn:
        streams = work.chunks is not None
        response = await _stream(request, state, work, turn, half=False) if streams else None
    if response is None:
        return _json_response(as_json(work.whole(turn)))
    await response.write_eof()
    return response


async def _broken(
    request: web.Request, state: State, work: Work, fault: Fault, arrived_s: float
) -> web.StreamResponse:
    """Answer a call up to the point where its connection breaks off."""
    half, streams = fault.at == "body", work.chunks is not None and fault.at != "start"
    async with _turn(state, work, arrived_s) as turn:
        response = await _stream(request, state, work, turn, half=half) if streams else None
    if response is None:
        response = await _part(request, as_json(work.whole(turn)), fault.at)
    await _break_off(request, response, fault)
    return response


async def _break_off(request: web.Request, response: web.StreamResponse, fault: Fault) -> None:
    """Send no more: the connection falls silent, is reset, or is closed once all is sent."""
    if fault.kind == "hang":
        await asyncio.Event().wait()
    if fault.at != "after":
        reset(request.transport)
        return
    await response.write_eof()
    if request.transport is not None:
        request.transport.close()


async def _stream(
    request: web.Request, state: State, work: Work, turn: Turn, *, half: bool
) -> web.StreamResponse:
    """Send a reply piece by piece, all of it or half; the caller ends the response."""
    response = web.StreamResponse(headers={"Content-Type": work.content_type})
    await response.prepare(request)
    for written, chunk in work.chunks(turn) if work.chunks is not None else ():
        if half and written > work.tokens // 2:
            break
        await state.engine.reach(turn, written / max(work.tokens, 1))
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
