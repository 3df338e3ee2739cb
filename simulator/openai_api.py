"""OpenAI's API to the same models: requests read as Ollama's, replies written as llama.cpp's server writes.

`/v1/chat/completions` (whole or streamed), `/v1/embeddings` and `/v1/models`, with llama.cpp's `timings`, and
what its `/props` and `/slots` tell of slots. As in Ollama's own `/v1`, a chat request is turned into one
of `/api/chat`, so that equal requests are answered equally on both.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from simulator.engine import Turn
from simulator.models import CONTEXT_TOKENS
from simulator.replies import Piece, Reply
from simulator.requests import check_options, json_name, parse_body
from simulator.wire import ApiError, Body, dumps, without_zeros

PATHS = ("/v1/", "/props", "/slots")
"""Where requests are this API's, or llama.cpp's own."""
_SAME = (
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repeat_penalty",
)
"""Ollama's options that are called so here, too."""
_MOST_TOKENS = ("max_completion_tokens", "max_tokens")
_MILLISECONDS = 1e3
_END = b"data: [DONE]\n\n"
_KINDS = {
    400: "invalid_request_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def error_body(status: int, text: str) -> Body:
    """An error as llama.cpp's server writes it."""
    return {"error": {"code": status, "message": text, "type": _KINDS.get(status, "server_error")}}


def parse_completion(raw: bytes) -> Body:
    """A request to `/v1/chat/completions` as the body of `/api/chat`.

    Raises:
        ApiError: 400, it is no JSON object, has no messages, or asks for what is not played.
    """
    body = parse_body(raw, "ChatCompletionRequest")
    if not body.get("messages"):
        raise ApiError(400, "'messages' is required")
    options = {name: body[name] for name in _SAME if body.get(name) is not None}
    if most := [body[name] for name in _MOST_TOKENS if body.get(name) is not None]:
        options["num_predict"] = most[0]
    if stop := body.get("stop"):
        options["stop"] = [stop] if isinstance(stop, str) else stop
    try:
        check_options(options)
    except ApiError as error:
        raise ApiError(400, error.text) from None
    return {
        "model": body.get("model"),
        "messages": body["messages"],
        "options": options,
        "format": _format(body.get("response_format")),
        "think": _dict(body.get("chat_template_kwargs")).get("enable_thinking"),
        "tools": body.get("tools"),
        "stream": bool(body.get("stream")),
        "include_usage": bool(_dict(body.get("stream_options")).get("include_usage")),
    }


def parse_embeddings(raw: bytes) -> Body:
    """A request to `/v1/embeddings` as the body of `/api/embed`.

    Raises:
        ApiError: 400, it is no JSON object, has no input, or asks for what is not played.
    """
    body = parse_body(raw, "ChatCompletionRequest")
    if body.get("stream"):
        raise ApiError(501, "the simulator does not stream embeddings")
    if not body.get("input"):
        raise ApiError(400, '"input" or "content" must be provided')
    if body.get("encoding_format") not in (None, "float"):  # anything at all, not hashable either
        raise ApiError(501, "the simulator gives embeddings as float alone")
    return {name: body.get(name) for name in ("model", "input", "dimensions")}


def completion(reply: Reply, turn: Turn) -> Body:
    """A reply as a chat completion, with llama.cpp's timings."""
    thought = without_zeros({"reasoning_content": reply.ending.text("thought")})
    message = {"role": "assistant", "content": reply.ending.text("word"), **thought}
    return {
        "choices": [{"finish_reason": reply.ending.reason, "index": 0, "message": message}],
        **_head(reply, "chat.completion"),
        "usage": _usage(reply.prompt_tokens, reply.tokens),
        "timings": _timings(reply, turn),
    }


class Events:
    """A reply as the server-sent events of a streamed chat completion.

    Args:
        reply: the reply.
        body: the request, as `parse_completion` gives it.
    """

    content_type = "text/event-stream"

    def __init__(self, reply: Reply, body: Body) -> None:
        self._reply = reply
        self._usage = bool(body.get("include_usage"))
        self._head = _head(reply, "chat.completion.chunk")

    def piece(self, piece: Piece) -> bytes:
        """A piece of the text."""
        return self._event({"content": piece.text} if piece.text else {"reasoning_content": piece.thinking})

    def last(self, turn: Turn) -> bytes:
        """Why it ends, what it cost where that was asked for, and the end."""
        reply, timings = self._reply, {"timings": _timings(self._reply, turn)}
        if not self._usage:
            return self._event({}, reply.ending.reason, **timings) + _END
        usage = {"choices": [], "usage": _usage(reply.prompt_tokens, reply.tokens)}
        return self._event({}, reply.ending.reason) + self._written(usage | timings) + _END

    def _event(self, delta: Body, reason: str | None = None, **more: Any) -> bytes:  # noqa: ANN401 - JSON
        return self._written({"choices": [{"finish_reason": reason, "index": 0, "delta": delta}], **more})

    def _written(self, part: Body) -> bytes:
        return b"data: " + dumps({**part, **self._head}) + b"\n\n"


def _head(reply: Reply, kind: str) -> Body:
    """The fields that a completion and each of its chunks have."""
    return {
        "created": int(time.time()),
        "model": reply.named,
        "system_fingerprint": "simulator",
        "object": kind,
        "id": f"chatcmpl-{uuid.uuid4().hex}",
    }


def _timings(reply: Reply, turn: Turn) -> Body:
    return {
        "cache_n": 0,
        **_timed("prompt", reply.prompt_tokens, turn.prefill_s),
        **_timed("predicted", reply.tokens, turn.decode_s),
    }


def embedding_list(model: str, rows: Sequence[Sequence[float]], tokens: int) -> Body:
    """The rows of one request, in the order of its texts."""
    return {
        "model": model,
        "object": "list",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "data": [
            {"embedding": list(row), "index": index, "object": "embedding"} for index, row in enumerate(rows)
        ],
    }


def model_list(entries: Iterable[Body]) -> Body:
    """The models, each with its digest as a tag: llama.cpp's fields know no digest.

    Args:
        entries: as `/api/tags` lists them.
    """
    return {
        "object": "list",
        "data": [
            {
                "id": entry["model"],
                "tags": [entry["digest"]],
                "object": "model",
                "created": int(time.time()),
                "owned_by": "library",
                "meta": {"n_ctx": CONTEXT_TOKENS, "size": entry["size"]},
            }
            for entry in entries
        ],
    }


def props(slots: int) -> Body:
    """What llama.cpp's `/props` tells of a server's slots and their context."""
    return {"default_generation_settings": {"n_ctx": CONTEXT_TOKENS}, "total_slots": slots}


def slot_list(slots: int, busy: int) -> list[dict[str, Any]]:
    """What llama.cpp's `/slots` tells of each slot."""
    return [
        {"id": number, "n_ctx": CONTEXT_TOKENS, "speculative": False, "is_processing": number < busy}
        for number in range(slots)
    ]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _format(wanted: object) -> object:
    """Ollama's `format` for a `response_format`."""
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind == "json_schema" and isinstance(wanted, dict):
        named = wanted.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        if isinstance(schema, dict):
            return schema
    found = json_name(wanted) if kind is None else repr(kind)
    raise ApiError(
        400, f'response_format type must be one of "text", "json_object" or "json_schema", got {found}'
    )


def _usage(prompt: int, predicted: int) -> Body:
    return {
        "completion_tokens": predicted,
        "prompt_tokens": prompt,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _timed(what: str, tokens: int, seconds: float) -> Body:
    return {
        f"{what}_n": tokens,
        f"{what}_ms": seconds * _MILLISECONDS,
        f"{what}_per_token_ms": seconds * _MILLISECONDS / max(1, tokens),
        f"{what}_per_second": tokens / seconds if seconds else 0.0,
    }
