"""The routes under `/simulator/`: what the server saw, and what is wrong with it from now on."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from simulator.faults import listed, parse_faults
from simulator.outages import parse_outage, parse_pace
from simulator.settings import MOST_SLOTS
from simulator.state import STATE, State
from simulator.wire import json_reply


def control_routes() -> list[web.RouteDef]:
    """The routes under `/simulator/`."""
    return [
        web.get("/simulator/stats", get_stats),
        web.delete("/simulator/stats", delete_stats),
        web.get("/simulator/faults", get_faults),
        web.post("/simulator/faults", post_faults),
        web.post("/simulator/slots", post_slots),
        web.get("/simulator/outage", get_outage),
        web.post("/simulator/outage", post_outage),
        web.delete("/simulator/outage", delete_outage),
        web.post("/simulator/pace", post_pace),
        web.post("/simulator/digest", post_digest),
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
    """Play these faults from now on, as `simulator.faults` reads them."""
    try:
        wanted = parse_faults(await _payload(request))
    except ValueError as error:
        return _refused(error)
    request.app[STATE].faults.set(wanted)
    return json_reply({"faults": listed(wanted)})


async def post_slots(request: web.Request) -> web.Response:
    """Give every model this many slots: `{"slots": n}`."""
    try:
        slots = (await _payload(request))["slots"]
    except (ValueError, TypeError, KeyError):
        slots = None
    if type(slots) is not int or not 1 <= slots <= MOST_SLOTS:
        return _refused(f'expected {{"slots": n}} with n from 1 to {MOST_SLOTS}')
    request.app[STATE].engine.resize(slots)
    return json_reply({"slots": slots})


async def get_outage(request: web.Request) -> web.Response:
    """The outage that is played, null for none."""
    return json_reply({"outage": request.app[STATE].outages.shown()})


async def post_outage(request: web.Request) -> web.Response:
    """Play this outage from now on, as `simulator.outages` reads it."""
    try:
        outage = parse_outage(await _payload(request))
    except ValueError as error:
        return _refused(error)
    request.app[STATE].outages.set(outage)
    return await get_outage(request)


async def delete_outage(request: web.Request) -> web.Response:
    """End the outage, if there is one."""
    request.app[STATE].outages.set(None)
    return await get_outage(request)


async def post_pace(request: web.Request) -> web.Response:
    """Have everything take so many times as long as in the profile: `{"factor": 10}`."""
    try:
        factor = parse_pace(await _payload(request))
    except ValueError as error:
        return _refused(error)
    request.app[STATE].outages.set_pace(factor)
    return json_reply({"factor": factor})


async def post_digest(request: web.Request) -> web.Response:
    """Give a model another digest, as a pull does: `{"model": m, "digest": d}`; without one it is made up."""
    catalogue = request.app[STATE].catalogue
    try:
        payload = await _payload(request)
        model = catalogue.find(str(payload["model"]))
        if model is None:
            return _refused(f"model {payload['model']!r} not found", 404)
        catalogue.pull(model, payload.get("digest"))
    except (TypeError, KeyError, AttributeError):
        return _refused('expected {"model": m} or {"model": m, "digest": d}')
    except ValueError as error:
        return _refused(error)
    return json_reply({"model": model, "digest": catalogue.digest(model)})


async def _payload(request: web.Request) -> Any:  # noqa: ANN401 - JSON holds anything
    try:
        return json.loads(await request.read())
    except RecursionError:
        raise ValueError("the request is nested too deeply") from None


def _refused(why: object, status: int = 400) -> web.Response:
    return json_reply({"error": str(why)}, status)


def _stats(state: State) -> dict[str, Any]:
    settings = state.settings
    shown = {
        "slots": state.engine.slots,
        "profile": settings.profile,
        "time_scale": settings.time_scale,
        "pace_factor": state.outages.pace_factor,
        "outage": state.outages.shown(),
        "reply_tokens": settings.reply_tokens,
        "seed": settings.seed,
        "persona": state.persona.name,
    }
    return shown | state.engine.waiting() | state.counters.snapshot()
