"""`/api/embed`: unit vectors from the persona's embedding model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ollama_utils.simulator import wire
from ollama_utils.simulator.context import count_tokens
from ollama_utils.simulator.options import check_options
from ollama_utils.simulator.requests import read_inputs
from ollama_utils.simulator.state import State
from ollama_utils.simulator.turns import Call


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
