"""Gives out replies: JSON at once, or a model's words as the engine's time passes."""

from __future__ import annotations

from aiohttp import web

from ollama_utils.simulator import wire
from ollama_utils.simulator.speech import Speech
from ollama_utils.simulator.state import State
from ollama_utils.simulator.turns import Call, Turn


def json_reply(payload: wire.Body, status: int = 200) -> web.Response:
    """A JSON response as Ollama's framework writes it."""
    return web.Response(
        body=wire.dumps(payload), status=status, content_type="application/json", charset="utf-8"
    )


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
