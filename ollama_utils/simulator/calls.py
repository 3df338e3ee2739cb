"""The endpoints that cost a model's time: checks, counts and a persona's words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from ollama_utils.simulator import wire
from ollama_utils.simulator.control import json_reply
from ollama_utils.simulator.delivery import speak
from ollama_utils.simulator.embedding import embed
from ollama_utils.simulator.sabotage import Answer, sabotaged
from ollama_utils.simulator.speech import Endpoint, bare_reply, prepare
from ollama_utils.simulator.state import STATE, State


def call_routes() -> list[web.RouteDef]:
    """The routes, to be added to the application."""
    return [
        web.post("/api/generate", _counted(sabotaged("generate", post_generate))),
        web.post("/api/chat", _counted(sabotaged("chat", post_chat))),
        web.post("/api/embed", _counted(sabotaged("embed", post_embed))),
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


def find_named_model(state: State, name: str | None) -> str:
    """As `find_model`, for endpoints that want a name before they look for the model.

    Raises:
        ApiError: 400, there is no name; 404, there is no such model.
    """
    if not name:
        raise wire.ApiError(400, "model is required")
    return find_model(state, name)


async def post_generate(request: web.Request, state: State, arrived_s: float) -> web.StreamResponse:
    """Words for a prompt."""
    raw = await request.read()
    body = wire.parse_body(raw, "GenerateRequest")
    model = find_model(state, body.get("model") or "")
    _require_words(state, model, body, "generate")
    ask = wire.read_generate(body, model)
    return await _say(request, state, "generate", body, ask, arrived_s)


async def post_chat(request: web.Request, state: State, arrived_s: float) -> web.StreamResponse:
    """Words for the last turn of a conversation."""
    raw = await request.read()
    body = wire.parse_body(raw, "ChatRequest")
    model = find_named_model(state, body.get("model"))
    _require_words(state, model, body, "chat")
    ask = wire.read_chat(body, model)
    return await _say(request, state, "chat", body, ask, arrived_s)


async def post_embed(request: web.Request, state: State, arrived_s: float) -> web.StreamResponse:
    """Vectors for texts."""
    raw = await request.read()
    body = wire.parse_body(raw, "EmbedRequest")
    name = body.get("model") or ""
    model = state.catalogue.find(name)
    if not name:
        raise wire.ApiError(404, "model '' not found")
    if model is None:
        raise wire.ApiError(404, f'model "{name}" not found, try pulling it first')
    return json_reply(await embed(state, model, body, arrived_s))


async def _say(
    request: web.Request, state: State, endpoint: Endpoint, body: wire.Body, ask: wire.Ask, arrived_s: float
) -> web.StreamResponse:
    if not ask.prompt and not ask.history:
        return json_reply(bare_reply(endpoint, body, "unload" if wire.unloads(body) else "load"))
    speech = prepare(state, endpoint, body, ask)
    stream = body.get("stream") is not False
    return await speak(request, state, ask.model, speech, arrived_s, stream=stream)


def _require_words(state: State, model: str, body: wire.Body, endpoint: Endpoint) -> None:
    capabilities = state.catalogue.capabilities(model)
    if body.get("think") and "thinking" not in capabilities:
        raise wire.ApiError(400, f'"{body["model"]}" does not support thinking')
    if "completion" not in capabilities:
        raise wire.ApiError(400, f'"{body["model"]}" does not support {endpoint}')


def _counted(answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The endpoint as a handler that counts its calls."""

    async def handle(request: web.Request) -> web.StreamResponse:
        state = request.app[STATE]
        failed = True
        state.counters.arrived()
        try:
            response = await answer(request, state, state.engine.clock())
            failed = False
        except (asyncio.CancelledError, ConnectionError):
            state.counters.disconnected()
            raise
        finally:
            state.counters.left(failed=failed)
        return response

    return handle
