"""OpenAI's API to the same models, in the fields of llama.cpp's server.

As in Ollama's own `/v1`, a request becomes one of `/api/chat` or `/api/embed`, so that equal
requests are answered equally on both wires. Thoughts stand in `reasoning_content`, as llama.cpp has
them, and in `reasoning`, as Ollama and vLLM do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from simulator import ollama
from simulator.engine import Turn
from simulator.replies import ApiError
from simulator.serving import STATE, Body, State, Work, answer, as_json

PATHS = ("/v1/", "/props")
"""Where requests are this API's, or llama.cpp's own."""
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 503: "unavailable_error"}


def routes() -> list[web.RouteDef]:
    """OpenAI's routes, and llama.cpp's `/props`."""
    return [
        web.post("/v1/chat/completions", partial(answer, _read_completion)),
        web.post("/v1/embeddings", partial(answer, _read_embeddings)),
        web.get("/v1/models", _models),
        web.get("/props", _props),
    ]


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as llama.cpp's server writes it."""
    kind = _KINDS.get(error.status, "server_error")
    parts = {"code": error.status, "message": str(error), "type": kind}
    return {"error": {**parts, **error.more}}


def _read_completion(state: State, raw: bytes) -> Work:
    """The work of `/v1/chat/completions`."""
    body = ollama.parse(raw)
    if not body.get("messages"):
        raise ApiError(400, "'messages' is required")
    stop = body.get("stop", [])
    options: dict[str, Any] = {k: body[k] for k in ("temperature", "seed") if k in body}
    options["stop"] = [stop] if isinstance(stop, str) else stop
    options["num_predict"] = body.get("max_completion_tokens", body.get("max_tokens", -1))
    asked = {
        "model": body.get("model", ""),
        "messages": [_joined(message) for message in body["messages"]],
        "options": options,
        "format": _format(body.get("response_format")),
        "think": _think(body),
    }
    question = ollama.read_question(state, asked, "chat")
    reply = state.composer.reply(question)
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
    head["model"] = asked["model"]
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens}
    usage["total_tokens"] = reply.prompt_tokens + reply.tokens

    def timings(turn: Turn) -> Body:
        read = {"prompt_n": reply.prompt_tokens, "prompt_ms": turn.reading_s * 1e3}
        return {**read, "predicted_n": reply.tokens, "predicted_ms": turn.writing_s * 1e3}

    def whole(turn: Turn) -> Body:
        message = {"role": "assistant", "content": reply.text, **_thoughts(reply.thinking)}
        choices = [{"finish_reason": reply.reason, "index": 0, "message": message}]
        counted = {"usage": usage, "timings": timings(turn)}
        return {**head, "object": "chat.completion", "choices": choices, **counted}

    def event(delta: Body, reason: str | None = None, **more: Any) -> bytes:  # noqa: ANN401 - JSON
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        part = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + as_json(part) + b"\n\n"

    def chunks(turn: Turn) -> Iterator[tuple[int, bytes]]:
        yield 0, event({"role": "assistant", "content": ""})
        for written, thinking, text in reply.pieces():
            yield written, event(_thoughts(thinking) or {"content": text})
        yield reply.tokens, event({}, reply.reason, timings=timings(turn))
        if body.get("stream_options", {}).get("include_usage"):
            yield reply.tokens, event({}, choices=[], usage=usage)
        yield reply.tokens, b"data: [DONE]\n\n"

    return Work(
        model=question.model,
        num_ctx=question.num_ctx,
        prompt_tokens=reply.prompt_tokens,
        tokens=reply.tokens,
        whole=whole,
        chunks=chunks if body.get("stream") else None,
        content_type="text/event-stream",
    )


def _read_embeddings(state: State, raw: bytes) -> Work:
    """The work of `/v1/embeddings`."""
    work = ollama.read_embed(state, raw)

    def whole(turn: Turn) -> Body:
        reply = work.whole(turn)
        data = [
            {"object": "embedding", "index": place, "embedding": row}
            for place, row in enumerate(reply["embeddings"])
        ]
        usage = {"prompt_tokens": work.prompt_tokens, "total_tokens": work.prompt_tokens}
        return {"object": "list", "model": reply["model"], "data": data, "usage": usage}

    return replace(work, whole=whole)


def _thoughts(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _joined(message: Body) -> Body:
    """A message with its content as one text; raises ApiError where a part is no text."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    if any(part.get("type") != "text" for part in parts):
        raise ApiError(400, "invalid message format: no model here reads other parts than text")
    return {**message, "content": "\n\n".join(part["text"] for part in parts)}


def _think(body: Body) -> Any:  # noqa: ANN401 - JSON
    """Whether to think, or how hard: OpenAI's effort, else llama.cpp's `chat_template_kwargs`."""
    if effort := body.get("reasoning_effort"):
        return False if effort == "none" else effort
    return body.get("chat_template_kwargs", {}).get("enable_thinking")


def _format(wanted: Body | None) -> Any:  # noqa: ANN401 - "json", a schema or None
    """Ollama's `format` for a `response_format`."""
    match wanted:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return "json"
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return schema
    known = '"text", "json_object" or "json_schema"'
    raise ApiError(400, f"response_format type must be one of {known}, got {wanted!r:.100}")


async def _models(request: web.Request) -> web.Response:
    """The models, each with its digest as a tag: llama.cpp's fields know no digest."""
    state = request.app[STATE]
    more = {"object": "model", "created": int(time.time()), "owned_by": "library"}
    more["meta"] = {"n_ctx": state.settings.num_ctx}
    rows = [{"id": each, "tags": [ollama.digest(state, each)], **more} for each in state.models]
    return web.json_response({"object": "list", "data": rows})


async def _props(request: web.Request) -> web.Response:
    """How many slots a model has, as llama.cpp's server tells it."""
    settings = request.app[STATE].settings
    context = {"n_ctx": settings.num_ctx}
    props = {"default_generation_settings": context, "total_slots": settings.slots}
    return web.json_response(props)
