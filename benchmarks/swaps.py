"""What it saves that models which do not fit together take turns: lanes on a server that holds one model.

python -m benchmarks.swaps

Each lane goes through its steps: a mutation, the target's answer, and with three roles the judge's verdict.
A share of the mutations is by rule, without a call, as among the default mutators. The same steps are taken
through one dispatcher, where models take turns, and through a dispatcher for each model, which know nothing
of each other. Swaps and seconds are the server's own (`GET /simulator/stats`), the seconds as they would be
at time scale 1.

Without turns chance decides how bad it is. Ollama lets calls join a model that is to be unloaded, so lanes
that meet at one stay together; who meets depends on milliseconds. With one call in flight none meet. The
client's own time per call counts, too, at a small time scale for much: 0.05 makes 5 ms of it 100 ms.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.reporting import Section, at_least, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.limits import MaxInFlight
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODELS = ("sim-mutator", "sim-target", "sim-judge")
_QUESTION = "How do I kill a Python process that hangs?"
_SETTINGS = Settings(profile="rtx4090", max_loaded_models=1, reply_tokens="lognormal:mean=64,sigma=0.5")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Lanes and the server that they meet."""

    roles: int = 2
    """2: mutator and target; 3: the judge, too."""
    rule_share: float = 0.0
    """The share of mutations by rule."""
    slots: int = 1
    """Calls that a model serves at once; Ollama's own default is 1."""
    max_in_flight: MaxInFlight = "auto"
    """As `Dispatcher` takes it."""
    lanes: int = 16
    steps: int = 6
    """Steps of each lane."""
    time_scale: float = 0.05


LOADS = (
    Load(max_in_flight=1, steps=5, time_scale=0.2),
    Load(),
    Load(roles=3, slots=4, rule_share=0.3),
)
"""One call in flight is what a server of one slot gets."""


def sections(*, quick: bool) -> Iterator[Section]:
    """Models that do not fit into memory together."""
    rows = [compare(replace(load, steps=1, time_scale=0.01) if quick else load) for load in LOADS]
    yield Section(
        title="Models that do not fit together",
        about=(
            "One model fits into memory. Swaps and seconds per 1,000 calls, as calls come and where models "
            "take turns; the seconds are those at time scale 1. Loading at 2 to 5 GB/s is an assumption. As "
            "calls come, chance decides: lanes that meet at a model stay together, for Ollama lets calls "
            "join a model that is to be unloaded. With one call in flight a model none meet."
        ),
        rows=rows,
        checks=[
            at_least("times fewer swaps, two roles, one call in flight each", 8, rows[0]["times fewer"]),
            at_least("times faster, two roles, one call in flight each", 3, rows[0]["times faster"]),
        ],
    )


def compare(load: Load) -> dict[str, Any]:
    """One row: the load as its calls come, and in turns; swaps and seconds are per 1,000 calls."""
    plain, in_turns = (measure(load, turns=turns) for turns in (False, True))
    return {
        "profile": _SETTINGS.profile,
        "roles": load.roles,
        "by rule": load.rule_share,
        "slots": load.slots,
        "in flight": load.max_in_flight,
        "swaps": plain["swaps"],
        "swaps in turns": in_turns["swaps"],
        "times fewer": plain["swaps"] / max(in_turns["swaps"], 1),
        "seconds": plain["seconds"],
        "seconds in turns": in_turns["seconds"],
        "times faster": plain["seconds"] / in_turns["seconds"],
    }


def measure(load: Load, *, turns: bool) -> dict[str, float]:
    """Swaps and seconds per 1,000 calls.

    Raises:
        OllamaError: a call failed.
    """
    settings = replace(_SETTINGS, slots=load.slots, time_scale=load.time_scale)
    with EmbeddedServer(settings) as simulator, ExitStack() as stack:

        def dispatcher() -> Dispatcher:
            made = Dispatcher([simulator.host], max_in_flight=load.max_in_flight, cache_size=0)
            return stack.enter_context(made)

        by_model = dict.fromkeys(MODELS, dispatcher()) if turns else {model: dispatcher() for model in MODELS}
        with ThreadPoolExecutor(load.lanes) as pool:
            list(pool.map(partial(_run_lane, by_model, load), range(load.lanes)))
        stats = simulator.stats()
    per_1000 = 1000 / stats["calls"]
    return {"swaps": stats["swaps"] * per_1000, "seconds": stats["window_s"] / load.time_scale * per_1000}


def _run_lane(by_model: Mapping[str, Dispatcher], load: Load, number: int) -> None:
    """One lane's steps, one call after another."""
    mutator, target, judge = MODELS
    chance = random.Random(number)
    for step in range(load.steps):
        ask = partial(_ask, by_model, seed=number * load.steps + step)
        by_rule = chance.random() < load.rule_share
        query = _QUESTION if by_rule else ask(mutator, f"Paraphrase this question: {_QUESTION}")
        reply = ask(target, query)
        if load.roles == len(MODELS):
            ask(judge, f"Question: {query}\nAnswer: {reply}\nIs it answered?")


def _ask(by_model: Mapping[str, Dispatcher], model: str, prompt: str, *, seed: int) -> str:
    reply = by_model[model].generate(Call(model=model, prompt=prompt, options={"seed": seed}))
    if reply.error is not None:
        raise reply.error
    return reply.text


if __name__ == "__main__":
    sys.exit(run("swaps", "performance.md"))
