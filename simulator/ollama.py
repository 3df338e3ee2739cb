"""Ollama's HTTP API: requests read with its checks and in its order, replies in its fields.

Played is what clients of an Ollama server send and read; fields that are not named here are
ignored. The texts of errors are Ollama's where a client tells errors apart by them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from aiohttp import web

from simulator.engine import Turn
from simulator.replies import THINKING, Piece, Question, Reply, count_tokens
from simulator.serving import STATE, ApiError, Body, State, Work, answer, as_json
from simulator.settings import FORMAT

VERSION = "0.33.0"
"""The version of Ollama whose behaviour is played."""
_STAYS = timedelta(minutes=5)
_MODIFIED_AT = "2025-01-01T00:00:00Z"
_SIZE_BYTES = 4_000_000_000
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("model", "name", "prompt", "system", "template"), str),
    **dict.fromkeys(("stream", "raw", "truncate", "shift"), bool),
    **dict.fromkeys(("messages", "tools", "images", "context"), list),
    "options": dict,
    "dimensions": int,
}
"""The fields whose types are checked."""
_OPTIONS = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repeat_penalty"), "float32"),
    **dict.fromkeys(("seed", "num_predict", "num_ctx", "num_batch", "num_gpu", "top_k"), "integer"),
    "stop": "array",
}
"""The options whose types are checked, and what messages call these."""
_GO = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_HUGE = 1e300
_AT_ONCE = {"0", "0s", "0m", "0h", "0.0"}
"""Values of `keep_alive` that unload a model."""
_ROLES = ("system", "user", "assistant", "tool")


def routes() -> list[web.RouteDef]:
    """Ollama's routes."""
    return [
        web.post("/api/generate", partial(answer, partial(_read_words, "generate"))),
        web.post("/api/chat", partial(answer, partial(_read_words, "chat"))),
        web.post("/api/embed", partial(answer, _read_embed)),
        web.get("/", _greet),
        web.get("/api/version", _version),
        web.get("/api/tags", _tags),
        web.get("/api/ps", _ps),
        web.post("/api/show", _show),
    ]


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        ApiError: 400, there is no body, or it is not a JSON object.
    """
    if not raw.strip():
        raise ApiError(400, "missing request body")
    try:
        body = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid character in the request body: it is not JSON") from None
    _check_type(body, dict, "Request")
    return {name: value for name, value in body.items() if value is not None}


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """A request whose fields have their types, without nulls.

    Raises:
        ApiError: 400, a field has another type; 500, an option has.
    """
    for name, kind in _TYPES.items():
        if name in body:
            _check_type(body[name], kind, f"Request.{name}")
    given = body.get("options", {}).items()
    options = {name: value for name, value in given if value is not None}
    for name in filter(_OPTIONS.__contains__, options):
        value, wanted = options[name], _OPTIONS[name]
        is_number = type(value) in {int, float} and abs(value) < _HUGE
        is_texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
        if not (is_texts if wanted == "array" else is_number):
            raise ApiError(500, f'option "{name}" must be of type {wanted}')
    return body | {"options": options}


def _check_type(value: object, kind: type, field: str) -> None:
    if type(value) is not kind:
        found = _GO.get(type(value), "null")
        raise ApiError(400, f"json: cannot unmarshal {found} into Go struct field {field}")


def full_name(name: str) -> str:
    """The name with its tag: `x` means `x:latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def find_model(state: State, name: str, missing: str = "model '{}' not found") -> str:
    """The full name of a model that is here; capitals do not count.

    Raises:
        ApiError: 404, it is not here.
    """
    found = full_name(name.strip()).lower()
    if found not in state.models:
        raise ApiError(404, missing.format(name))
    return found


def _read_words(endpoint: str, state: State, raw: bytes) -> Work:
    """The work of `/api/generate` or `/api/chat`; without words it loads or unloads the model."""
    body = checked(parse(raw))
    if endpoint == "chat" and not body.get("model", "").strip():
        raise ApiError(400, "model is required")
    model = find_model(state, body.get("model", ""))
    has_words = body.get("prompt" if endpoint == "generate" else "messages")
    unloads = not has_words and str(body.get("keep_alive")) in _AT_ONCE
    reply = Reply(prompt_tokens=0, text="", text_tokens=0, reason="unload" if unloads else "load")
    if has_words:
        reply = state.composer.reply(read_question(state, model, body, endpoint))
    chunk = partial(_chunk, body["model"], endpoint)

    def whole(turn: Turn) -> Body:
        if unloads:
            state.engine.unload(model)
        return chunk(Piece(reply.tokens, reply.thinking, reply.text)) | _done(reply, turn)

    def chunks(turn: Turn) -> Iterator[tuple[int, bytes]]:
        for piece in reply.pieces():
            yield piece.tokens, as_json(chunk(piece)) + b"\n"
        last = chunk(Piece(reply.tokens, "", "")) | _done(reply, turn)
        yield reply.tokens, as_json(last) + b"\n"

    return Work(
        model=model,
        options=body["options"],
        prompt_tokens=reply.prompt_tokens,
        tokens=reply.tokens,
        whole=whole,
        chunks=chunks if has_words and body.get("stream", True) else None,
        content_type="application/x-ndjson",
    )


def read_question(state: State, model: str, body: Body, endpoint: str) -> Question:
    """The question of a checked request with words.

    Raises:
        ApiError: the model cannot do what is asked, or what is asked cannot be.
    """
    able, name = state.models[model], body["model"]
    think, shape = body.get("think"), body.get("format")
    levels = ", ".join(f'"{level}"' for level in THINKING) + ", true, or false)"
    if isinstance(think, str) and think not in THINKING:
        raise ApiError(400, f'invalid think value: "{think}" (must be {levels}')
    if think is not None and not isinstance(think, str | bool):
        raise ApiError(400, f"think must be a boolean or string ({levels}")
    if think and not able.thinks:
        raise ApiError(400, f'"{name}" does not support thinking')
    if able.role == "embedding":
        raise ApiError(400, f'"{name}" does not support {endpoint}')
    pictures = body.get("images") or any(map(_has_pictures, body.get("messages", ())))
    for asked, ability in ((body.get("tools"), "tools"), (pictures, "vision")):
        if asked:
            raise ApiError(400, f"registry.ollama.ai/library/{model} does not support {ability}")
    if shape and shape != "json" and not isinstance(shape, dict):
        expected = 'expected "json" or a valid JSON Schema object'
        raise ApiError(500, f"invalid format: {shape!r:.100}; {expected}")
    system, prompt = body.get("system", ""), body.get("prompt", "")
    history: tuple[tuple[str, str], ...] = ()
    if endpoint == "chat":
        system, prompt, history = _turns(body["messages"])
    more = {field: body[field] for field in ("template", "raw", "context") if body.get(field)}
    options = body["options"]
    return Question(
        model=model,
        prompt=prompt,
        system=system,
        history=history,
        more=json.dumps(more) if more else "",
        think=think,
        format=shape or None,
        temperature=float(options.get("temperature", 0.8)),
        seed=int(options.get("seed", -1)),
        num_predict=int(options.get("num_predict", -1)),
        num_ctx=_context_tokens(state, options),
        stop=tuple(filter(None, options.get("stop", ()))),
        truncate=body.get("truncate", True),
        shift=body.get("shift", True),
    )


def _has_pictures(message: object) -> bool:
    return isinstance(message, dict) and bool(message.get("images"))


def _turns(messages: Sequence[Any]) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """The system texts of a chat, the user's last turn, and the other turns."""
    turns = []
    for message in messages:
        _check_type(message, dict, "Request.messages")
        role, content = message.get("role"), message.get("content")
        _check_type(role, str, "Request.messages.role")
        _check_type(content or "", str, "Request.messages.content")
        if role.lower() not in _ROLES:
            roles = '"system", "user", "assistant", or "tool"'
            raise ApiError(400, f"invalid role: {role}. Must be one of {roles}")
        turns.append((role.lower(), content or ""))
    system = "\n".join(text for role, text in turns if role == "system")
    turns = [turn for turn in turns if turn[0] != "system"]
    last = max((n for n, (role, _) in enumerate(turns) if role == "user"), default=len(turns) - 1)
    return system, turns.pop(last)[1] if turns else "", tuple(turns)


def _context_tokens(state: State, options: Body) -> int:
    """The tokens that a model holds, of those that a request asks for; 0 or less asks for all."""
    asked, most = int(options.get("num_ctx", 0)), state.settings.num_ctx
    return min(asked, most) if asked > 0 else most


def _read_embed(state: State, raw: bytes) -> Work:
    """The work of `/api/embed`."""
    return embed_work(state, checked(parse(raw)))


def embed_work(state: State, body: Body) -> Work:
    """The work of a checked request for embeddings.

    Raises:
        ApiError: as Ollama answers.
    """
    missing = 'model "{}" not found, try pulling it first'
    model, texts = find_model(state, body.get("model", ""), missing), body.get("input") or []
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "invalid input type")
    options = body["options"]
    most, counts = _context_tokens(state, options), [count_tokens(text) for text in texts]
    if max(counts, default=0) > most and not body.get("truncate", True):
        raise ApiError(400, "the input length exceeds the context length")
    tokens = sum(min(count, most) for count in counts)

    def whole(turn: Turn) -> Body:
        rows = [state.composer.world.embed(text) for text in texts]
        shortened = [_shortened(row, body.get("dimensions", 0)) for row in rows]
        counted = {"prompt_eval_count": tokens, **_durations(turn)}
        return {"model": body["model"], "embeddings": shortened, **counted}

    return Work(model=model, options=options, prompt_tokens=tokens, whole=whole)


def _shortened(row: list[float], dimensions: int) -> list[float]:
    """The first `dimensions` numbers, of length 1 again; all of them for 0."""
    part = row[:dimensions] if dimensions > 0 else row
    norm = math.hypot(*part)
    return [value / norm for value in part] if norm else [1.0, *part[1:]]


def _chunk(named: str, endpoint: str, piece: Piece) -> dict[str, Any]:
    """A piece of a reply with the fields that every chunk has."""
    thinking = {"thinking": piece.thinking} if piece.thinking else {}
    words: dict[str, Any] = {"response": piece.text, **thinking}
    if endpoint == "chat":
        words = {"message": {"role": "assistant", "content": piece.text, **thinking}}
    created_at = datetime.fromtimestamp(time.time(), UTC).isoformat().replace("+00:00", "Z")
    return {"model": named, "created_at": created_at, **words, "done": False}


def _done(reply: Reply, turn: Turn) -> dict[str, Any]:
    counts = {
        "prompt_eval_count": reply.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(turn.reading_s),
        "eval_count": reply.tokens,
        "eval_duration": _nanoseconds(turn.writing_s),
    }
    shown = {name: value for name, value in counts.items() if value}  # Go leaves zeros out
    return {"done": True, "done_reason": reply.reason, **shown, **_durations(turn)}


def _durations(turn: Turn) -> dict[str, int]:
    load, total = (_nanoseconds(each - turn.arrived_s) for each in (turn.loaded_s, turn.due_s))
    return {"total_duration": max(1, total), **({"load_duration": load} if load else {})}


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def digest(state: State, model: str) -> str:
    """64 hexadecimal digits that stand for all that decides what a model says, but the request."""
    settings, world = state.settings, state.composer.world.fingerprint
    parts = (model, world, settings.seed, settings.reply_tokens)
    return sha256(repr(parts).encode()).hexdigest()


def _entry(state: State, model: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """What the lists say of a model."""
    able = state.models[model]
    thinking = ["thinking"] if able.thinks else []
    family = {"family": "simulator", "families": [f"simulator-{able.role}"]}
    return {
        "name": model,
        "model": model,
        "size": _SIZE_BYTES,
        "digest": digest(state, model),
        "capabilities": ["embedding"] if able.role == "embedding" else ["completion", *thinking],
        "details": {
            "format": FORMAT,
            **family,
            "parameter_size": "0B",
            "quantization_level": "none",
        },
        **more,
    }


async def _greet(_request: web.Request) -> web.Response:
    return web.Response(text="Ollama is running")


async def _version(_request: web.Request) -> web.Response:
    return web.json_response({"version": VERSION})


async def _tags(request: web.Request) -> web.Response:
    state = request.app[STATE]
    rows = [_entry(state, model, modified_at=_MODIFIED_AT) for model in state.models]
    return web.json_response({"models": rows})


async def _ps(request: web.Request) -> web.Response:
    state = request.app[STATE]
    until = (datetime.now(UTC) + _STAYS).isoformat().replace("+00:00", "Z")
    more = {"expires_at": until, "size_vram": _SIZE_BYTES}
    rows = [
        _entry(state, name, **more, context_length=_context_tokens(state, runner.options))
        for name, runner in state.engine.runners.items()
    ]
    return web.json_response({"models": rows})


async def _show(request: web.Request) -> web.Response:
    state, body = request.app[STATE], checked(parse(await request.read()))
    name = body.get("model") or body.get("name", "")
    if not name:
        raise ApiError(400, "model is required")
    context = {"simulator.context_length": state.settings.num_ctx}
    entry = _entry(state, find_model(state, name), modified_at=_MODIFIED_AT)
    info = {"general.architecture": "simulator", **context}
    return web.json_response({**entry, "template": "{{ .Prompt }}", "model_info": info})
