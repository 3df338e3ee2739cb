"""The endpoints: their checks, in Ollama's order, and what they do.

Two groups: those that cost a model's time (words and embeddings, by Ollama's API or OpenAI's), and those that
tell of the server and its models. Those under `/simulator/` are in `simulator.control`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from aiohttp import web

from simulator import openai_api, wire
from simulator.composing import compose
from simulator.engine import Call, Turn
from simulator.faults import FaultyCall, Work
from simulator.models import VERSION, count_tokens
from simulator.names import is_name, registry_name
from simulator.replies import Endpoint, Lines, Reply, empty_reply
from simulator.requests import (
    Question,
    check_options,
    parse_body,
    read_chat,
    read_generate,
    read_inputs,
    unloads,
)
from simulator.state import STATE, State
from simulator.wire import ApiError, Body, json_reply

_BLIND = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"


class Job(NamedTuple):
    """A request that passed the endpoint's checks."""

    model: str
    """The full name."""
    work: Work
    stream: bool = False
    """Whether the reply comes piece by piece."""


Parse = Callable[[bytes], Body]
"""Reads a request's body; it raises ApiError where that cannot be."""
Check = Callable[[web.Request, State, Body, float], Job]
"""An endpoint's checks: the request, the state, the JSON body and the moment of arrival in seconds. It
raises ApiError for what Ollama rejects."""


def call_routes() -> list[web.RouteDef]:
    """The routes that cost a model's time."""
    checks: dict[str, Check] = {"generate": check_generate, "chat": check_chat, "embed": check_embed}
    ollama = [
        web.post(f"/api/{endpoint}", partial(_answer_call, endpoint, _parse_as(endpoint), check))
        for endpoint, check in checks.items()
    ]
    openai: dict[str, tuple[Parse, Check]] = {
        "chat/completions": (openai_api.parse_completion, partial(check_chat, endpoint="chat/completions")),
        "embeddings": (openai_api.parse_embeddings, partial(check_embed, endpoint="embeddings")),
    }
    return [
        *ollama,
        *(
            web.post(f"/v1/{endpoint}", partial(_answer_call, endpoint, parse, check))
            for endpoint, (parse, check) in openai.items()
        ),
    ]


def _parse_as(endpoint: str) -> Parse:
    return partial(parse_body, request=f"{endpoint.title()}Request")


async def _answer_call(endpoint: str, parse: Parse, check: Check, request: web.Request) -> web.StreamResponse:
    """Check a request, count it, and do its work; or fail where a fault strikes it.

    A request that Ollama rejects meets no fault.
    """
    state = request.app[STATE]
    counters, arrived_s = state.counters, state.engine.clock()
    failed = True
    counters.arrived()
    try:
        raw = await request.read()
        model, work, stream = check(request, state, parse(raw), arrived_s)
        counters.calls[model] += 1
        await state.outages.passed(request, "calls")
        fault = state.faults.strike(endpoint, raw, model)
        if fault is None:
            response = await work(stream=stream)
        else:
            counters.faults[fault.kind] += 1
            call = FaultyCall(fault=fault, request=request, endpoint=endpoint, work=work, stream=stream)
            response = await call.answer()
        failed = fault is not None and fault.fails_call
    except (asyncio.CancelledError, ConnectionError):
        counters.disconnected += 1
        raise
    finally:
        counters.in_flight -= 1
        counters.failed += failed
    return response


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


def check_generate(request: web.Request, state: State, body: Body, arrived_s: float) -> Job:
    """Words for a prompt."""
    model = find_model(state, body.get("model") or "")
    if not body.get("prompt"):
        return _load_or_unload(state, model, body, "generate")
    _check_abilities(state, model, body, "generate")
    if body.get("suffix"):
        raise ApiError(400, f"{registry_name(model)} does not support insert")
    question = read_generate(body, model)
    if body.get("images"):
        raise ApiError(500, _BLIND)
    work = partial(_answer, request, state, "generate", body, question, arrived_s)
    return Job(model, work, stream=_streams(body))


def _streams(body: Body) -> bool:
    return body.get("stream") is not False


def check_chat(
    request: web.Request, state: State, body: Body, arrived_s: float, *, endpoint: Endpoint = "chat"
) -> Job:
    """Words for the last turn of a conversation."""
    model = find_model(state, require_name(body.get("model")))
    if not body.get("messages"):
        return _load_or_unload(state, model, body, "chat")
    _check_abilities(state, model, body, "chat")
    if body.get("tools"):
        raise ApiError(400, f"{registry_name(model)} does not support tools")
    question = read_chat(body, model)
    if any(message.get("images") for message in body["messages"]):
        raise ApiError(500, _BLIND)
    work = partial(_answer, request, state, endpoint, body, question, arrived_s)
    return Job(model, work, stream=_streams(body))


def _check_abilities(state: State, model: str, body: Body, endpoint: Endpoint) -> None:
    """Refuse what the model cannot do: 400, in Ollama's words."""
    able = state.catalogue.capabilities(model)
    if body.get("think") and "thinking" not in able:
        raise ApiError(400, f'"{body["model"]}" does not support thinking')
    if "completion" not in able:
        raise ApiError(400, f'"{body["model"]}" does not support {endpoint}')


def _load_or_unload(state: State, model: str, body: Body, endpoint: Endpoint) -> Job:
    """A request without words, which loads the model, or unloads it whatever it can do."""
    reason = "unload" if unloads(body) else "load"
    if reason == "load":
        _check_abilities(state, model, body, endpoint)
        check_options(body.get("options"))

    async def work(*, stream: bool) -> web.StreamResponse:
        del stream  # one object either way
        if reason == "load":
            await state.engine.load(Call.of(model, body))
        else:
            state.engine.unload(model)
        return json_reply(empty_reply(endpoint, body, reason))

    return Job(model, work, stream=_streams(body))


async def _answer(
    request: web.Request,
    state: State,
    endpoint: Endpoint,
    body: Body,
    question: Question,
    arrived_s: float,
    *,
    stream: bool,
) -> web.StreamResponse:
    """Hold a slot for the reply's time and send it, whole or piece by piece."""
    reply = compose(state, endpoint, body, question)
    call = Call.of(question.model, body, prompt_tokens=reply.prompt_tokens, reply_tokens=reply.tokens)
    async with state.engine.turn(call, arrived_s=arrived_s) as turn:
        parts = _parts(endpoint, reply, body)
        response = await _send_pieces(request, state, reply, turn, parts) if stream else None
        await state.engine.written(turn, reply.tokens)
    state.counters.prompt_tokens += reply.prompt_tokens
    state.counters.completion_tokens += reply.tokens
    if response is None:
        written = openai_api.completion if endpoint == "chat/completions" else Reply.whole
        return json_reply(written(reply, turn))
    await response.write(parts.last(turn))
    await response.write_eof()
    return response


def _parts(endpoint: Endpoint, reply: Reply, body: Body) -> openai_api.Events | Lines:
    """The parts of a reply as they are streamed."""
    return openai_api.Events(reply, body) if endpoint == "chat/completions" else Lines(reply)


async def _send_pieces(
    request: web.Request, state: State, reply: Reply, turn: Turn, parts: openai_api.Events | Lines
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": parts.content_type})
    await response.prepare(request)
    for piece in reply.pieces():
        await state.engine.written(turn, piece.tokens)
        await response.write(parts.piece(piece))
    return response


def check_embed(
    request: web.Request,
    state: State,
    body: Body,
    arrived_s: float,
    *,
    endpoint: Literal["embed", "embeddings"] = "embed",
) -> Job:
    """Vectors for texts; without a text the model is only loaded."""
    del request
    name = body.get("model") or ""
    if not name.strip():
        raise ApiError(404, f"model '{name}' not found")
    texts = read_inputs(body)
    model = find_model(state, name, 'model "{}" not found, try pulling it first')
    num_ctx = int(check_options(body.get("options")).get("num_ctx") or 0)
    truncate = body.get("truncate") is not False
    tokens = sum(count_tokens(text, num_ctx, truncate=truncate) for text in texts)
    call = Call.of(model, body, prompt_tokens=tokens)

    async def work(*, stream: bool) -> web.StreamResponse:
        del stream  # embeddings come whole
        reply: dict[str, Any] = {"model": body["model"], "embeddings": []}
        if not texts:
            await state.engine.load(call)
            return json_reply(reply)
        async with state.engine.turn(call, arrived_s=arrived_s) as turn:
            rows = [state.persona.embed(text) for text in texts]
            await state.engine.written(turn, 0)
        state.counters.prompt_tokens += tokens
        rows = [_cut(row, body.get("dimensions") or 0) for row in rows]
        if endpoint == "embeddings":
            return json_reply(openai_api.embedding_list(body["model"], rows, tokens))
        reply["embeddings"] = rows
        counts = {
            "total_duration": wire.nanoseconds(turn.total_s),
            "load_duration": wire.nanoseconds(turn.load_s),
            "prompt_eval_count": tokens,
        }
        return json_reply(reply | wire.without_zeros(counts))

    return Job(model, work)


def _cut(row: list[float], dimensions: int) -> list[float]:
    """The first `dimensions` numbers, of length 1 again; all of them for 0."""
    if not 0 < dimensions < len(row):
        return row
    part = row[:dimensions]
    norm = math.hypot(*part)
    return [value / norm for value in part] if norm else [1.0, *part[1:]]


_NOT_PLAYED = (
    "/api/embeddings",
    "/api/pull",
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
"""What else Ollama serves: the embeddings of old, making models, its cloud, and the APIs of others."""


def listing_routes() -> list[web.RouteDef]:
    """The routes that list the server's models, and those that are not played."""
    return [
        web.get("/", get_root),
        web.get("/api/version", get_version),
        web.get("/api/tags", get_tags),
        web.get("/api/ps", get_ps),
        web.post("/api/show", post_show),
        web.get("/v1/models", get_models),
        web.get("/props", get_props),
        web.get("/slots", get_slots),
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
    return json_reply(state.catalogue.running(state.engine.loaded_models()))


async def post_show(request: web.Request) -> web.Response:
    """One model in detail."""
    state = request.app[STATE]
    body = parse_body(await request.read(), "ShowRequest")
    model = find_model(state, require_name(body.get("model") or body.get("name")))
    return json_reply(state.catalogue.show(model))


async def get_models(request: web.Request) -> web.Response:
    """The models that are here, as OpenAI's API lists them."""
    return json_reply(openai_api.model_list(request.app[STATE].catalogue.tags()["models"]))


async def get_props(request: web.Request) -> web.Response:
    """How many slots a model has, as llama.cpp's server tells it."""
    return json_reply(openai_api.props(request.app[STATE].engine.slots))


async def get_slots(request: web.Request) -> web.Response:
    """The slots of the model that `?model=` names, and which of them are in use."""
    state = request.app[STATE]
    model = find_model(state, require_name(request.query.get("model")))
    state.engine.waiting()  # brings what is counted up to this moment
    slots = openai_api.slot_list(state.engine.slots, state.counters.busy_slots(model))
    return web.json_response(slots)


async def refuse(request: web.Request) -> web.Response:
    """Say that the endpoint is Ollama's, but not played here."""
    raise ApiError(501, f"the simulator does not play {request.path}; docs/simulator.md says what it plays")
