"""Gives out a reply as the engine's time passes, whole or piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterator

from aiohttp import web

from ollama_utils.simulator import wire
from ollama_utils.simulator.control import json_reply
from ollama_utils.simulator.engine import Turn
from ollama_utils.simulator.speech import Speech
from ollama_utils.simulator.state import State

_PIECE = re.compile(r"\s*\S+|\s+$")


async def speak(
    request: web.Request, state: State, model: str, speech: Speech, arrived_s: float, *, stream: bool
) -> web.StreamResponse:
    """Hold a slot for the reply's time and send it, whole or piece by piece."""
    held = state.engine.turn(
        model, prompt_tokens=speech.prompt_tokens, reply_tokens=speech.tokens, arrived_s=arrived_s
    )
    async with held as turn:
        response = await _stream(request, state, speech, turn) if stream else None
        await state.engine.sleep_until(turn.due_s)
    state.counters.answered(speech.prompt_tokens, speech.tokens)
    now_s = state.engine.clock()
    if response is None:
        return json_reply(speech.final(speech.text, turn, now_s))
    await response.write(wire.dumps(speech.final("", turn, now_s)) + b"\n")
    await response.write_eof()
    return response


async def _stream(request: web.Request, state: State, speech: Speech, turn: Turn) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for due_s, piece in _schedule(speech.text, turn):
        await state.engine.sleep_until(due_s)
        await response.write(wire.dumps(speech.chunk(piece)) + b"\n")
    return response


def _schedule(text: str, turn: Turn) -> Iterator[tuple[float, str]]:
    """Each piece with the moment it is due: evenly over the decoding, the last at its end."""
    pieces = _PIECE.findall(text)
    gap_s = (turn.due_s - turn.decoding_s) / max(1, len(pieces))
    for place, piece in enumerate(pieces, start=1):
        yield turn.decoding_s + place * gap_s, piece
