"""The endpoints that cost a model's time: their checks, in Ollama's order, and what they do.

Gives out replies: JSON at once, or a model's words as the engine's time passes.

`/api/embed`: unit vectors from the persona's embedding model.

The endpoints that tell of the server and its models, and plain words for those that are not played.

The routes under `/simulator/`: what the server saw, and what it is to do.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from simulator import wire
from simulator.composing import prepare
from simulator.engine import Call, Turn
from simulator.fault_injection import Answer, Job, sabotaged
from simulator.faults import listed, parse_faults
from simulator.models import VERSION, count_tokens
from simulator.names import is_name, registry_name
from simulator.replies import Endpoint, Speech, bare_reply
from simulator.requests import Ask, check_options, parse_body, read_chat, read_generate, read_inputs, unloads
from simulator.state import STATE, State
from simulator.wire import ApiError, Body, dumps, json_reply


async def speak(
    request: web.Request, state: State, call: Call, speech: Speech, arrived_s: float, *, stream: bool
) -> web.StreamResponse:
    """Hold a slot for the reply's time and send it, whole or piece by piece.

    Raises:
        ApiError: there is no room for the request, or none for the model.
    """
    async with state.engine.turn(call, arrived_s=arrived_s) as turn:
        response = await _stream(request, state, speech, turn) if stream else None
        await state.engine.written(turn, speech.tokens)
    state.counters.answered(speech.prompt_tokens, speech.tokens)
    if response is None:
        return json_reply(speech.whole(turn))
    await response.write(wire.dumps(speech.final(turn)) + b"\n")
    await response.write_eof()
    return response


async def _stream(request: web.Request, state: State, speech: Speech, turn: Turn) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for piece in speech.pieces():
        await state.engine.written(turn, piece.tokens)
        await response.write(wire.dumps(speech.chunk(piece)) + b"\n")
    return response


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What an embedding request asks for."""

    inputs: list[str]
    tokens: int
    """Of all texts together, each cut at the context's length."""


def read_texts(body: wire.Body) -> Texts:
    """The texts of an embedding request.

    Raises:
        ApiError: `input` is neither a text nor a list of texts, an option has another type, or a text is
            longer than the context and `truncate` is false.
    """
    inputs = read_inputs(body)
    options = check_options(body.get("options"))
    num_ctx, truncate = int(options.get("num_ctx") or 0), body.get("truncate") is not False
    tokens = sum(count_tokens(text, num_ctx, truncate=truncate) for text in inputs)
    return Texts(inputs=inputs, tokens=tokens)


async def embed(state: State, model: str, body: wire.Body, texts: Texts, arrived_s: float) -> dict[str, Any]:
    """The reply to an embedding request: one vector for each input, of length 1; without any it only loads.

    Raises:
        ApiError: there is no room for the request, or none for the model.
    """
    call = Call.of(model, body, prompt_tokens=texts.tokens)
    if not texts.inputs:
        await state.engine.load(call)
        return {"model": body["model"], "embeddings": []}
    async with state.engine.turn(call, arrived_s=arrived_s) as turn:
        rows = [_cut(state.persona.embed(text), body.get("dimensions") or 0) for text in texts.inputs]
        await state.engine.written(turn, 0)
    state.counters.answered(texts.tokens, 0)
    counts = {
        "total_duration": wire.nanoseconds(turn.total_s),
        "load_duration": wire.nanoseconds(turn.load_s),
        "prompt_eval_count": texts.tokens,
    }
    return {"model": body["model"], "embeddings": rows} | wire.without_zeros(counts)


def _cut(row: list[float], dimensions: int) -> list[float]:
    """The first `dimensions` numbers, of length 1 again; all of them for 0."""
    if not 0 < dimensions < len(row):
        return row
    part = row[:dimensions]
    norm = math.hypot(*part)
    return [value / norm for value in part] if norm else [1.0, *part[1:]]


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


_NOT_PLAYED = (
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/push",
    "/api/blobs/{digest}",
    "/api/status",
    "/api/me",
    "/api/signout",
    "/api/user/keys/{key}",
    "/api/experimental/{rest:.*}",
    "/v1/{rest:.*}",
)
"""What Ollama serves beside its models' time: making models, its cloud, and the APIs of others."""
_NO_MANIFEST = "pull model manifest: file does not exist"


def listing_routes() -> list[web.RouteDef]:
    """The routes, to be added to the application."""
    return [
        web.get("/", get_root),
        web.get("/api/version", get_version),
        web.get("/api/tags", get_tags),
        web.get("/api/ps", get_ps),
        web.post("/api/show", post_show),
        web.post("/api/pull", post_pull),
        *(web.route("*", path, refuse) for path in _NOT_PLAYED),
    ]


async def get_root(request: web.Request) -> web.Response:
    """The greeting by which clients tell that a server is there."""
    del request
    return web.Response(text="Ollama is running")


async def get_version(request: web.Request) -> web.Response:
    """The version of Ollama that is played."""
    del request
    return json_reply({"version": VERSION})


async def get_tags(request: web.Request) -> web.Response:
    """The models that are here."""
    return json_reply(request.app[STATE].catalogue.tags())


async def get_ps(request: web.Request) -> web.Response:
    """The models that were called."""
    state = request.app[STATE]
    return json_reply(state.catalogue.running(state.engine.residents()))


async def post_show(request: web.Request) -> web.Response:
    """One model in detail."""
    state = request.app[STATE]
    body = parse_body(await request.read(), "ShowRequest")
    model = find_model(state, require_name(body.get("model") or body.get("name")))
    return json_reply(state.catalogue.show(model))


async def post_pull(request: web.Request) -> web.StreamResponse:
    """The steps of fetching a model: the persona's are all here, and no other can be had."""
    state = request.app[STATE]
    body = parse_body(await request.read(), "PullRequest")
    name = body.get("model") or body.get("name") or ""
    if not is_name(name):
        raise ApiError(400, "invalid model name")
    model = state.catalogue.find(name)
    if body.get("stream") is False:
        if model is None:
            raise ApiError(500, _NO_MANIFEST)
        return json_reply({"status": "success"})
    failing = [{"status": "pulling manifest"}, {"error": _NO_MANIFEST}]
    steps = failing if model is None else state.catalogue.pull_steps(model)
    lines = b"".join(dumps(step) + b"\n" for step in steps)
    return web.Response(body=lines, content_type="application/x-ndjson")


async def refuse(request: web.Request) -> web.Response:
    """Say plainly that the endpoint is Ollama's, but not played here."""
    raise ApiError(501, f"the simulator does not play {request.path}; docs/simulator.md says what it plays")


def control_routes() -> list[web.RouteDef]:
    """The routes, to be added to the application."""
    return [
        web.get("/simulator/stats", get_stats),
        web.delete("/simulator/stats", delete_stats),
        web.get("/simulator/faults", get_faults),
        web.post("/simulator/faults", post_faults),
        web.post("/simulator/slots", post_slots),
    ]


async def get_stats(request: web.Request) -> web.Response:
    """What the server saw since the start or the last reset."""
    return json_reply(_stats(request.app[STATE]))


async def delete_stats(request: web.Request) -> web.Response:
    """Zero the counts; answers with what they were."""
    state = request.app[STATE]
    before = _stats(state)
    state.counters.reset()
    return json_reply(before)


async def get_faults(request: web.Request) -> web.Response:
    """The faults that are played, each with all that can be said of its kind."""
    return json_reply({"faults": listed(request.app[STATE].faults.faults)})


async def post_faults(request: web.Request) -> web.Response:
    """Play these faults from now on, as `simulator.faults` reads them."""
    try:
        wanted = parse_faults(json.loads(await request.read()))
    except ValueError as error:
        return json_reply({"error": str(error)}, 400)
    request.app[STATE].faults.set(wanted)
    return json_reply({"faults": listed(wanted)})


async def post_slots(request: web.Request) -> web.Response:
    """Give every model this many slots: `{"slots": n}`."""
    try:
        slots = json.loads(await request.read())["slots"]
    except (ValueError, TypeError, KeyError):
        slots = None
    if type(slots) is not int or slots < 1:
        return json_reply({"error": 'expected {"slots": n} with n at least 1'}, 400)
    request.app[STATE].engine.resize(slots)
    return json_reply({"slots": slots})


def _stats(state: State) -> dict[str, Any]:
    settings = state.settings
    told = {
        "slots": state.engine.slots,
        "profile": settings.profile,
        "time_scale": settings.time_scale,
        "reply_tokens": settings.reply_tokens,
        "seed": settings.seed,
        "persona": state.persona.name,
    }
    return told | state.engine.waiting() | state.counters.snapshot()
