"""The endpoints that cost a model's time: checks, counts and faults around the words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from ollama_utils.simulator import wire
from ollama_utils.simulator.control import json_reply
from ollama_utils.simulator.embedding import embed
from ollama_utils.simulator.faults import FaultKind
from ollama_utils.simulator.speech import Endpoint, empty_reply, loaded_reply, prepare, speak
from ollama_utils.simulator.state import STATE, State

Answer = Callable[[web.Request, State, float], Awaitable[web.StreamResponse]]
"""An endpoint: the request, the server's state and the moment of arrival in seconds."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CRASH = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
    "error, check ollama server logs for details"
)
_BUSY = "server busy, please try again.  maximum pending requests exceeded"


class _Fault(Exception):  # noqa: N818 - it is played on purpose, and an answer
    """A call that fails because it was asked to."""

    def __init__(self, kind: FaultKind) -> None:
        super().__init__(kind)
        self.kind = kind


def call_routes() -> list[web.RouteDef]:
    """The routes, to be added to the application."""
    return [
        web.post("/api/generate", _counted(post_generate)),
        web.post("/api/chat", _counted(post_chat)),
        web.post("/api/embed", _counted(post_embed)),
    ]


def find_model(state: State, name: str) -> str:
    """The full name of a model that is here.

    Raises:
        ApiError: 404, it is not.
    """
    found = state.catalogue.find(name)
    if found is None:
        raise wire.ApiError(404, f"model '{name}' not found")
    return found


async def post_generate(request: web.Request, state: State, arrived_s: float) -> web.StreamResponse:
    """Words for a prompt."""
    raw = await request.read()
    body = wire.parse_body(raw, "GenerateRequest")
    ask = wire.read_generate(body, find_model(state, body.get("model") or ""))
    return await _words(request, state, _Words("generate", raw, body, ask), arrived_s)


async def post_chat(request: web.Request, state: State, arrived_s: float) -> web.StreamResponse:
    """Words for the last turn of a conversation."""
    raw = await request.read()
    body = wire.parse_body(raw, "ChatRequest")
    if not body.get("model"):
        raise wire.ApiError(400, "model is required")
    ask = wire.read_chat(body, find_model(state, body["model"]))
    return await _words(request, state, _Words("chat", raw, body, ask), arrived_s)
