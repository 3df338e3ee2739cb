"""OpenAI's API to the same models, in the fields of llama.cpp's server.

As in Ollama's own `/v1`, a request becomes one of `/api/chat` or `/api/embed`, so that equal
requests are answered equally on both wires. Thoughts stand in `reasoning_content`, as llama.cpp has
them, and in `reasoning`, as Ollama and vLLM do.
"""

from __future__ import annotations

import base64
import re
import time
import uuid
from array import array
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from simulator import ollama
from simulator.engine import Turn
from simulator.serving import STATE, ApiError, Body, State, Work, answer, as_json

PATHS = ("/v1/", "/props")
"""Where requests are this API's, or llama.cpp's own."""
_SAME = ("temperature", "top_p", "seed", "top_k", "min_p", "repeat_penalty")
"""Ollama's options that are called so here, too."""
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "ultra", "max", "none")
_THINK: dict[str, bool | str] = {"minimal": "low", "xhigh": "max", "ultra": "max", "none": False}
"""Ollama's `think` for an effort, where it is not called so there, too."""
_PICTURE = re.compile(
    "data:(image/(jpe?g|png|webp))?;base64,([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(=|[A-Za-z0-9+/])=)?"
)
_NO_URLS = "image URLs are not currently supported, please use base64 encoded data instead"
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 503: "unavailable_error"}


def routes() -> list[web.RouteDef]:
    """OpenAI's routes, and llama.cpp's `/props`."""
    return [
        web.post("/v1/chat/completions", partial(answer, _read_completion)),
        web.post("/v1/embeddings", partial(answer, _read_embeddings)),
        web.get("/v1/models", _models),
        web.get("/props", _props),
    ]


def error_body(status: int, text: str) -> Body:
    """An error as llama.cpp's server writes it."""
    kind = _KINDS.get(status, "server_error")
    return {"error": {"code": status, "message": text, "type": kind}}


def _read_completion(state: State, raw: bytes) -> Work:
    """The work of `/v1/chat/completions`."""
    body = ollama.checked(ollama.parse(raw))
    if not body.get("messages"):
        raise ApiError(400, "'messages' is required")
    stop, options = body.get("stop", []), {name: body[name] for name in _SAME if name in body}
    options["stop"] = [stop] if isinstance(stop, str) else stop
    options["num_predict"] = body.get("max_completion_tokens", body.get("max_tokens", -1))
    asked = {
        "model": body.get("model", ""),
        "messages": [_joined(message) for message in body["messages"]],
        "options": options,
        "format": _format(body.get("response_format")),
        "think": _think(body),
        "tools": body.get("tools") or [],
    }
    asked = ollama.checked(asked)
    model = ollama.find_model(state, asked["model"])
    reply = state.composer.reply(ollama.read_question(state, model, asked, "chat"))
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

    def event(choices: list[Body], **more: Any) -> bytes:  # noqa: ANN401 - JSON
        part = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + as_json(part) + b"\n\n"

    def choice(delta: Body, reason: str | None = None) -> list[Body]:
        return [{"index": 0, "delta": delta, "finish_reason": reason}]

    def chunks(turn: Turn) -> Iterator[tuple[int, bytes]]:
        yield 0, event(choice({"role": "assistant", "content": ""}))
        for piece in reply.pieces():
            said = _thoughts(piece.thinking) or {"content": piece.text}
            yield piece.tokens, event(choice(said))
        yield reply.tokens, event(choice({}, reply.reason), timings=timings(turn))
        if _table(body.get("stream_options")).get("include_usage"):
            yield reply.tokens, event([], usage=usage)
        yield reply.tokens, b"data: [DONE]\n\n"

    return Work(
        model=model,
        options={},
        prompt_tokens=reply.prompt_tokens,
        tokens=reply.tokens,
        whole=whole,
        chunks=chunks if body.get("stream") else None,
        content_type="text/event-stream",
    )


def _read_embeddings(state: State, raw: bytes) -> Work:
    """The work of `/v1/embeddings`."""
    body = ollama.checked(ollama.parse(raw))
    if not body.get("input"):
        raise ApiError(400, '"input" or "content" must be provided')
    encoding = body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):  # of any type: not a set, for it may not be hashable
        raise ApiError(400, f"Invalid value for 'encoding_format' = {encoding}.")
    work = ollama.embed_work(state, body)

    def whole(turn: Turn) -> Body:
        reply = work.whole(turn)
        rows = [row if encoding == "float" else _base64(row) for row in reply["embeddings"]]
        data = [
            {"object": "embedding", "index": place, "embedding": row}
            for place, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": work.prompt_tokens, "total_tokens": work.prompt_tokens}
        return {"object": "list", "model": reply["model"], "data": data, "usage": usage}

    return replace(work, whole=whole)


def _base64(row: list[float]) -> str:
    return base64.b64encode(array("f", row).tobytes()).decode()


def _thoughts(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _joined(message: object) -> object:
    """A message with its content as one text, and apart from it what no model here can read.

    Raises:
        ApiError: 400, a part is none that Ollama reads.
    """
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(parts, list):
        return message
    texts, images = [], []
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": str(url) | {"url": str(url)}}:
                if _PICTURE.fullmatch(url) is None:
                    is_web = url.startswith(("http://", "https://"))
                    raise ApiError(400, _NO_URLS if is_web else "invalid image input")
                images.append(url)
            case {"type": "input_audio", "input_audio": {"data": str(sound)}}:
                images.append(sound)
            case {"type": "input_audio", "input_audio": dict()}:
                raise ApiError(400, "invalid input_audio format: missing data")
            case {"type": "input_audio"}:
                raise ApiError(400, "invalid input_audio format")
            case _:
                raise ApiError(400, "invalid message format")
    return message | {"content": "\n\n".join(texts), "images": images}


def _think(body: Body) -> bool | str | None:
    """Whether to think, or how hard: OpenAI's effort, else llama.cpp's `chat_template_kwargs`."""
    effort = body.get("reasoning_effort")
    if "reasoning" in body:
        effort = _table(body["reasoning"]).get("effort")
    if effort in (None, ""):  # of any type: not a set, for it may not be hashable
        enabled = _table(body.get("chat_template_kwargs")).get("enable_thinking")
        return enabled if isinstance(enabled, bool) else None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        *others, last = (f'"{each}"' for each in _EFFORTS)
        expected = f"{', '.join(others)}, or {last}"
        raise ApiError(400, f'invalid reasoning value: "{effort}" (must be {expected})')
    return _THINK.get(effort, effort)


def _format(wanted: object) -> object:
    """Ollama's `format` for a `response_format`."""
    kind = _table(wanted).get("type")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return "json"
    schema = _table(_table(wanted).get("json_schema")).get("schema")
    if kind == "json_schema" and isinstance(schema, dict):
        return schema
    known = '"text", "json_object" or "json_schema"'
    raise ApiError(400, f"response_format type must be one of {known}, got {kind!r}")


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


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
