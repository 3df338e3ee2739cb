"""`/api/embed`: unit vectors from the persona's embedding model."""

from __future__ import annotations

import math
from typing import Any

from ollama_utils.simulator import wire
from ollama_utils.simulator.catalogue import CONTEXT_TOKENS
from ollama_utils.simulator.state import State


async def embed(state: State, model: str, body: wire.Body, arrived_s: float) -> dict[str, Any]:
    """The reply to an embedding request: one vector for each input, of length 1.

    Raises:
        ApiError: `input` is neither a text nor a list of texts, an option has another type, or a text is
            longer than the context and `truncate` is false.
    """
    inputs = wire.read_inputs(body)
    options = wire.check_options(body.get("options"))
    wanted = int(options.get("num_ctx") or 0)
    context = min(wanted, CONTEXT_TOKENS) if wanted > 0 else CONTEXT_TOKENS
    lengths = [wire.count_tokens(text) for text in inputs]
    if body.get("truncate") is False and max(lengths, default=0) > context:
        raise wire.ApiError(400, "the input length exceeds the context length")
    tokens = sum(min(length, context) for length in lengths)
    held = state.engine.turn(model, prompt_tokens=tokens, reply_tokens=0, arrived_s=arrived_s)
    async with held as turn:
        rows = [_cut(state.persona.embed(text), body.get("dimensions") or 0) for text in inputs]
        await state.engine.sleep_until(turn.due_s)
    state.counters.answered(tokens, 0)
    counts = {
        "total_duration": wire.nanoseconds(state.engine.clock() - turn.arrived_s),
        "prompt_eval_count": tokens,
    }
    return {"model": body["model"], "embeddings": rows} | wire.without_zeros(counts)


def _cut(row: list[float], dimensions: int) -> list[float]:
    """The first `dimensions` numbers, of length 1 again; all of them for 0."""
    if not 0 < dimensions < len(row):
        return row
    part = row[:dimensions]
    norm = math.hypot(*part)
    return [value / norm for value in part] if norm else [1.0, *part[1:]]
