"""Plays the faults that were asked for: calls that fail on purpose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ollama_utils.simulator import wire
from ollama_utils.simulator.control import json_reply
from ollama_utils.simulator.faults import FaultKind
from ollama_utils.simulator.speech import bare_reply
from ollama_utils.simulator.state import State

Answer = Callable[[web.Request, State, float], Awaitable[web.StreamResponse]]
"""An endpoint: the request, the server's state and the moment of arrival in seconds."""

_CRASH = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
    "error, check ollama server logs for details"
)
_BUSY = "server busy, please try again.  maximum pending requests exceeded"


def sabotaged(endpoint: str, answer: Answer) -> Answer:
    """The endpoint as one that fails where the fault plan says so; calls to models are counted here."""

    async def handle(request: web.Request, state: State, arrived_s: float) -> web.StreamResponse:
        raw = await request.read()
        body = wire.parse_body(raw, f"{endpoint.title()}Request")
        model = state.catalogue.find(body.get("model") or "")
        if model is None:
            return await answer(request, state, arrived_s)
        state.counters.called(model)
        kind = state.faults.strike(endpoint, raw, model)
        if kind is None:
            return await answer(request, state, arrived_s)
        state.counters.faulted(kind)
        return _play(request, endpoint, body, kind)

    return handle


def _play(request: web.Request, endpoint: str, body: wire.Body, kind: FaultKind) -> web.StreamResponse:
    if kind == "error_500":
        return json_reply({"error": _CRASH}, 500)
    if kind == "busy_503":
        return json_reply({"error": _BUSY}, 503)
    if kind == "empty":
        return json_reply(_empty(endpoint, body))
    if kind == "drop" and request.transport is not None:
        request.transport.abort()
    return web.Response(body=b"<html>Bad gateway</html>", content_type="text/html")


def _empty(endpoint: str, body: wire.Body) -> wire.Body:
    """The endpoint's reply without content."""
    if endpoint == "embed":
        return {"model": body["model"], "embeddings": []}
    return bare_reply("chat" if endpoint == "chat" else "generate", body, "stop")
