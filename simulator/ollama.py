"""Ollama's HTTP API: what clients of an Ollama server send, and the fields that they read.

Fields of a request that are not named here are ignored. The texts of errors are Ollama's where a
client tells errors apart by them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any

from aiohttp import web

from simulator.engine import Turn
from simulator.replies import THINKING, ApiError, Question, Reply, count_tokens
from simulator.serving import STATE, Body, State, Work, answer, as_json
from simulator.settings import FORMAT

VERSION = "0.33.0"
"""The version of Ollama whose behaviour is played."""
_MODIFIED_AT = "2025-01-01T00:00:00Z"
_SIZE_BYTES = 4_000_000_000


def routes() -> list[web.RouteDef]:
    """Ollama's routes."""
    return [
        web.post("/api/generate", partial(answer, partial(_read_words, "generate"))),
        web.post("/api/chat", partial(answer, partial(_read_words, "chat"))),
        web.post("/api/embed", partial(answer, read_embed)),
        web.get("/", _greet),
        web.get("/api/version", _version),
        web.get("/api/tags", _tags),
        web.get("/api/ps", _ps),
        web.post("/api/show", _show),
    ]


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request, without its nulls; raises ApiError where it is none."""
    if not raw.strip():
        raise ApiError(400, "missing request body")
    try:
        body = dict(json.loads(raw.decode("utf-8", "replace")))
    except (ValueError, TypeError, RecursionError):
        raise ApiError(400, "invalid character in the request body: expected an object") from None
    return {name: value for name, value in body.items() if value is not None}


def full_name(name: str) -> str:
    """The name with its tag: `x` means `x:latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def find_model(state: State, name: str) -> str:
    """The full name of a model; raises ApiError where it is not here. Capitals do not count."""
    found = full_name(name.strip()).lower()
    if found not in state.models:
        raise ApiError(404, f"model '{name}' not found")
    return found


def _read_words(endpoint: str, state: State, raw: bytes) -> Work:
    """The work of `/api/generate` or `/api/chat`."""
    body = parse(raw)
    question = read_question(state, body, endpoint)
    reply = state.composer.reply(question)

    def whole(turn: Turn) -> Body:
        return chunk(reply.thinking, reply.text) | _done(reply, turn)

    def chunks(turn: Turn) -> Iterator[tuple[int, bytes]]:
        for written, thinking, text in reply.pieces():
            yield written, as_json(chunk(thinking, text)) + b"\n"
        yield reply.tokens, as_json(chunk("", "") | _done(reply, turn)) + b"\n"

    def chunk(thinking: str, text: str) -> dict[str, Any]:
        thoughts = {"thinking": thinking} if thinking else {}
        words: dict[str, Any] = {"response": text, **thoughts}
        if endpoint == "chat":
            words = {"message": {"role": "assistant", "content": text, **thoughts}}
        created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": body["model"], "created_at": created_at, **words, "done": False}

    return Work(
        model=question.model,
        num_ctx=question.num_ctx,
        prompt_tokens=reply.prompt_tokens,
        tokens=reply.tokens,
        whole=whole,
        chunks=chunks if body.get("stream", True) else None,
        content_type="application/x-ndjson",
    )


def read_question(state: State, body: Body, endpoint: str) -> Question:
    """The question of a request; raises ApiError where the model cannot do what is asked."""
    name, think = body.get("model", ""), body.get("think")
    model = find_model(state, name)
    able = state.models[model]
    if isinstance(think, str) and think not in THINKING:
        levels = ", ".join(f'"{level}"' for level in THINKING)
        raise ApiError(400, f'invalid think value: "{think}" (must be {levels}, true, or false)')
    if think and not able.thinks:
        raise ApiError(400, f'"{name}" does not support thinking')
    if able.role == "embedding":
        raise ApiError(400, f'"{name}" does not support {endpoint}')
    system, prompt = body.get("system", ""), body.get("prompt", "")
    history: tuple[tuple[str, str], ...] = ()
    if endpoint == "chat":
        system, prompt, history = _turns(body["messages"])
    options = body.get("options", {})
    return Question(
        model=model,
        prompt=prompt,
        system=system,
        history=history,
        think=think,
        format=body.get("format") or None,
        temperature=float(options.get("temperature", 0.8)),
        seed=int(options.get("seed", -1)),
        num_predict=int(options.get("num_predict", -1)),
        num_ctx=_context_tokens(state, body),
        stop=tuple(filter(None, options.get("stop", ()))),
    )


def _turns(messages: Sequence[Body]) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """The system texts of a chat, the user's last turn, and the other turns."""
    turns = [(each["role"], each.get("content") or "") for each in messages]
    system = "\n".join(text for role, text in turns if role == "system")
    turns = [turn for turn in turns if turn[0] != "system"]
    last = max((n for n, (role, _) in enumerate(turns) if role == "user"), default=len(turns) - 1)
    return system, turns.pop(last)[1] if turns else "", tuple(turns)


def _context_tokens(state: State, body: Body) -> int:
    """The tokens that a model holds, of those that a request asks for; 0 or less asks for all."""
    asked, most = int(body.get("options", {}).get("num_ctx", 0)), state.settings.num_ctx
    return min(asked, most) if asked > 0 else most


def read_embed(state: State, raw: bytes) -> Work:
    """The work of a request for embeddings, which both wires ask for in the same fields."""
    body = parse(raw)
    model, texts = find_model(state, body.get("model", "")), body.get("input") or []
    texts = [texts] if isinstance(texts, str) else texts
    most, counts = _context_tokens(state, body), [count_tokens(text) for text in texts]
    if max(counts, default=0) > most:
        raise ApiError(400, "the input length exceeds the context length")
    tokens = sum(counts)

    def whole(turn: Turn) -> Body:
        rows = [state.composer.world.embed(text) for text in texts]
        counted = {"prompt_eval_count": tokens, **_durations(turn)}
        return {"model": body["model"], "embeddings": rows, **counted}

    return Work(model=model, num_ctx=most, prompt_tokens=tokens, whole=whole)


def _done(reply: Reply, turn: Turn) -> dict[str, Any]:
    """The fields of a whole reply, or of the last chunk of a stream."""
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


def _entry(state: State, model: str, **more: object) -> Body:
    """What the lists say of a model."""
    able = state.models[model]
    thinking = ["thinking"] if able.thinks else []
    return {
        "name": model,
        "model": model,
        "modified_at": _MODIFIED_AT,
        "size": _SIZE_BYTES,
        "digest": digest(state, model),
        "capabilities": ["embedding"] if able.role == "embedding" else ["completion", *thinking],
        "details": {"format": FORMAT, "family": "simulator"},
        **more,
    }


async def _greet(_request: web.Request) -> web.Response:
    return web.Response(text="Ollama is running")


async def _version(_request: web.Request) -> web.Response:
    return web.json_response({"version": VERSION})


async def _tags(request: web.Request) -> web.Response:
    state = request.app[STATE]
    return web.json_response({"models": [_entry(state, model) for model in state.models]})


async def _ps(request: web.Request) -> web.Response:
    state = request.app[STATE]
    rows = [
        _entry(state, name, context_length=runner.num_ctx)
        for name, runner in state.engine.runners.items()
        if runner.loaded_s <= state.engine.now_s()
    ]
    return web.json_response({"models": rows})


async def _show(request: web.Request) -> web.Response:
    state, body = request.app[STATE], parse(await request.read())
    entry = _entry(state, find_model(state, str(body.get("model", ""))))
    info = {"simulator.context_length": state.settings.num_ctx}
    return web.json_response({**entry, "model_info": info})
