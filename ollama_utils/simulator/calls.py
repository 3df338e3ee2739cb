"""The endpoints that cost a model's time: their checks, in Ollama's order, and what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from ollama_utils.simulator.asks import Ask, read_chat, read_generate
from ollama_utils.simulator.composing import prepare
from ollama_utils.simulator.delivery import json_reply, speak
from ollama_utils.simulator.embedding import Texts, embed, read_texts
from ollama_utils.simulator.names import is_name, registry_name
from ollama_utils.simulator.options import check_options
from ollama_utils.simulator.requests import read_inputs, unloads
from ollama_utils.simulator.sabotage import Answer, Job, sabotaged
from ollama_utils.simulator.speech import Endpoint, bare_reply
from ollama_utils.simulator.state import STATE, State
from ollama_utils.simulator.turns import Call
from ollama_utils.simulator.wire import ApiError, Body

_BLIND = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"

_NOT_RAW = ("template", "system", "context")


def call_routes() -> list[web.RouteDef]:
    """The routes, to be added to the application."""
    return [
        web.post("/api/generate", _counted(sabotaged("generate", post_generate))),
        web.post("/api/chat", _counted(sabotaged("chat", post_chat))),
        web.post("/api/embed", _counted(sabotaged("embed", post_embed))),
        web.post("/api/embeddings", _counted(sabotaged("embeddings", post_embeddings))),
    ]


def find_model(state: State, name: str, missing: str = "model '{}' not found") -> str:
    """The full name of a model that is here.

    Raises:
        ApiError: 400, no model can be called so; 404, it is not here.
    """
    if name.strip() and not is_name(name):
        raise ApiError(400, "invalid model name")
    found = state.catalogue.find(name)
    if found is None:
        raise ApiError(404, missing.format(name))
    return found


def require_name(name: str | None) -> str:
    """The name, for endpoints that want one before they look for the model.

    Raises:
        ApiError: 400, there is none.
    """
    if not name or not name.strip():
        raise ApiError(400, "model is required")
    return name


def post_generate(request: web.Request, state: State, body: Body, arrived_s: float) -> Job:
    """Words for a prompt."""
    model = find_model(state, body.get("model") or "")
    if body.get("prompt"):
        _require(state, model, body, "generate", *(["insert"] if body.get("suffix") else []))
        ask = _seen(state, read_generate(body, model))
        return Job(model, partial(_say, request, state, "generate", body, ask, arrived_s))
    return _bare(state, model, body, "generate")


def post_chat(request: web.Request, state: State, body: Body, arrived_s: float) -> Job:
    """Words for the last turn of a conversation."""
    model = find_model(state, require_name(body.get("model")))
    if body.get("messages"):
        _require(state, model, body, "chat", *(["tools"] if body.get("tools") else []))
        ask = _seen(state, read_chat(body, model))
        return Job(model, partial(_say, request, state, "chat", body, ask, arrived_s))
    return _bare(state, model, body, "chat")


def post_embed(request: web.Request, state: State, body: Body, arrived_s: float) -> Job:
    """Vectors for texts."""
    del request
    name = body.get("model") or ""
    if not name.strip():
        raise ApiError(404, f"model '{name}' not found")
    read_inputs(body)
    model = find_model(state, name, 'model "{}" not found, try pulling it first')
    return Job(model, partial(_embed, state, model, body, read_texts(body), arrived_s))


def post_embeddings(request: web.Request, state: State, body: Body, arrived_s: float) -> Job:
    """The vector of one text, as Ollama gave it before `/api/embed`."""
    del request
    name = require_name(body.get("model"))
    model = find_model(state, name, 'model "{}" not found, try pulling it first')
    try:
        texts = read_texts({"input": body.get("prompt"), "options": body.get("options"), "truncate": False})
    except ApiError as error:
        raise ApiError(500, error.text) from None
    return Job(model, partial(_embed_one, state, model, body, texts, arrived_s))


async def _embed(
    state: State, model: str, body: Body, texts: Texts, arrived_s: float, *, stream: bool
) -> web.StreamResponse:
    del stream  # embeddings come whole
    return json_reply(await embed(state, model, body, texts, arrived_s))


async def _embed_one(
    state: State, model: str, body: Body, texts: Texts, arrived_s: float, *, stream: bool
) -> web.StreamResponse:
    del stream  # as above
    reply = await embed(state, model, body, texts, arrived_s)
    return json_reply({"embedding": reply["embeddings"][0] if reply["embeddings"] else []})


async def _say(
    request: web.Request,
    state: State,
    endpoint: Endpoint,
    body: Body,
    ask: Ask,
    arrived_s: float,
    *,
    stream: bool,
) -> web.StreamResponse:
    speech = prepare(state, endpoint, body, ask)
    call = Call.of(ask.model, body, prompt_tokens=speech.prompt_tokens, reply_tokens=speech.tokens)
    return await speak(request, state, call, speech, arrived_s, stream=stream)


def _bare(state: State, model: str, body: Body, endpoint: Endpoint) -> Job:
    """A request without words, which loads the model, or unloads it whatever it can do."""
    reason = "unload" if unloads(body) else "load"
    if reason == "load":
        _require(state, model, body, endpoint)
        check_options(body.get("options"))

    async def work(*, stream: bool) -> web.StreamResponse:
        del stream  # one object either way
        if reason == "load":
            await state.engine.load(Call.of(model, body))
        else:
            state.engine.unload(model)
        return json_reply(bare_reply(endpoint, body, reason))

    return Job(model, work)


def _require(state: State, model: str, body: Body, endpoint: Endpoint, *more: str) -> None:
    """Refuse what does not go together, or what the model cannot do: 400, in Ollama's wordings."""
    if endpoint == "generate" and body.get("raw") and any(map(body.get, _NOT_RAW)):
        raise ApiError(400, "raw mode does not support template, system, or context")
    able = state.catalogue.capabilities(model)
    if body.get("think") and "thinking" not in able:
        raise ApiError(400, f'"{body["model"]}" does not support thinking')
    if "completion" not in able:
        raise ApiError(400, f'"{body["model"]}" does not support {endpoint}')
    for ability in more:
        if ability not in able:
            raise ApiError(400, f"{registry_name(model)} does not support {ability}")


def _seen(state: State, ask: Ask) -> Ask:
    """The question, when the model can see the pictures in it."""
    if ask.images and "vision" not in state.catalogue.capabilities(ask.model):
        raise ApiError(500, _BLIND)
    return ask


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
