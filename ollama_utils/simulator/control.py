"""The routes under `/simulator/`: what the server saw, and what it is to do."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from ollama_utils.simulator.delivery import json_reply
from ollama_utils.simulator.fault_list import listed, parse_faults
from ollama_utils.simulator.state import STATE, State


def control_routes() -> list[web.RouteDef]:
    """The routes, to be added to the application."""
    return [
        web.get("/simulator/stats", get_stats),
        web.delete("/simulator/stats", delete_stats),
        web.get("/simulator/faults", get_faults),
        web.post("/simulator/faults", post_faults),
        web.post("/simulator/slots", post_slots),
    ]


async def get_stats(request: web.Request) -> web.Response:
    """What the server saw since the start or the last reset."""
    return json_reply(_stats(request.app[STATE]))


async def delete_stats(request: web.Request) -> web.Response:
    """Zero the counts; answers with what they were."""
    state = request.app[STATE]
    before = _stats(state)
    state.counters.reset()
    return json_reply(before)


async def get_faults(request: web.Request) -> web.Response:
    """The faults that are played, each with all that can be said of its kind."""
    return json_reply({"faults": listed(request.app[STATE].faults.faults)})


async def post_faults(request: web.Request) -> web.Response:
    """Play these faults from now on, as `ollama_utils.simulator.fault_list` reads them."""
    try:
        wanted = parse_faults(json.loads(await request.read()))
    except ValueError as error:
        return json_reply({"error": str(error)}, 400)
    request.app[STATE].faults.set(wanted)
    return json_reply({"faults": listed(wanted)})


async def post_slots(request: web.Request) -> web.Response:
    """Give every model this many slots: `{"slots": n}`."""
    try:
        slots = json.loads(await request.read())["slots"]
    except (ValueError, TypeError, KeyError):
        slots = None
    if type(slots) is not int or slots < 1:
        return json_reply({"error": 'expected {"slots": n} with n at least 1'}, 400)
    request.app[STATE].engine.resize(slots)
    return json_reply({"slots": slots})


def _stats(state: State) -> dict[str, Any]:
    settings = state.settings
    told = {
        "slots": state.engine.slots,
        "profile": settings.profile,
        "time_scale": settings.time_scale,
        "reply_tokens": settings.reply_tokens,
        "seed": settings.seed,
        "persona": state.persona.name,
    }
    return told | state.engine.waiting() | state.counters.snapshot()
