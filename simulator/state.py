"""Everything one running server holds, made from its settings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from simulator.counters import Counters
from simulator.engine import Engine
from simulator.faults import FaultPlan, read_faults
from simulator.models import Catalogue
from simulator.outages import Outages
from simulator.personas.persona import Persona
from simulator.personas.persona_file import load_persona
from simulator.profiles import PROFILES, Pace, ReplyLength, parse_reply_length
from simulator.settings import Settings


@dataclass(frozen=True, kw_only=True)
class State:
    """The parts of a running server."""

    settings: Settings
    persona: Persona
    catalogue: Catalogue
    counters: Counters
    engine: Engine
    faults: FaultPlan
    outages: Outages
    reply_length: ReplyLength


STATE = web.AppKey("state", State)
"""Where the application keeps its state."""


def make_state(settings: Settings) -> State:
    """A fresh state; called inside the event loop, whose clock it takes.

    Raises:
        PersonaError: the persona's file cannot be used.
    """
    clock = asyncio.get_running_loop().time
    persona = load_persona(settings.persona)
    catalogue = Catalogue(persona, f"{settings.seed} {settings.reply_tokens}")
    counters = Counters(clock)
    engine = Engine(
        pace=Pace(profile=PROFILES[settings.profile], time_scale=settings.time_scale),
        limits=settings.limits,
        models=catalogue.needs(),
        counters=counters,
        clock=clock,
    )
    return State(
        settings=settings,
        persona=persona,
        catalogue=catalogue,
        counters=counters,
        engine=engine,
        faults=FaultPlan(settings.seed, read_faults(settings.faults) if settings.faults else ()),
        outages=Outages(engine),
        reply_length=parse_reply_length(settings.reply_tokens),
    )
