"""What it saves that models which do not fit together take turns: lanes on a server that holds one model.

    python -m benchmarks.swaps
    python -m benchmarks.swaps --time-scale 0.2 --json swaps.json

Each lane goes through its steps: a mutation, the target's answer, and with three roles the judge's verdict.
A share of the mutations is by rule, without a call, as among the default mutators. The same steps are taken
with and without turns, through the gates that the dispatcher uses. Swaps and seconds are the server's own
(`GET /simulator/stats`), the seconds as they would be at time scale 1.

Without turns chance decides how bad it is. Ollama lets calls join a model that is to be unloaded, so lanes
that meet at one stay together; who meets depends on milliseconds. With one call in flight none meet. The
client's own time per call counts, too, at a small time scale for much: 0.05 makes 5 ms of it 100 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ollama_utils.client import OllamaClient
from ollama_utils.limits import MaxInFlight, Server
from ollama_utils.types import Call
from records.errors import UserError
from records.run_folder import check_writable
from simulator.process import EmbeddedServer
from simulator.settings import Settings

_USAGE_ERROR = 2
_QUESTION = "How do I kill a Python process that hangs?"


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
    steps: int = 10
    """Steps of each lane."""
    profile: str = "rtx4090"
    reply_tokens: str = "lognormal:mean=64,sigma=0.5"
    time_scale: float = 0.05


LOADS = (
    Load(max_in_flight=1),
    Load(max_in_flight=1, rule_share=0.3),
    Load(max_in_flight=1, roles=3),
    Load(),
    Load(slots=4),
    Load(roles=3),
    Load(roles=3, slots=4, rule_share=0.3),
    Load(roles=3, slots=16, rule_share=0.3),
    Load(roles=3, slots=16, rule_share=0.3, max_in_flight=64),
)
"""What is measured by default."""


def measure(load: Load, *, turns: bool) -> dict[str, Any]:
    """One row: the load, and what the server says of it.

    Args:
        load: what is asked of the server.
        turns: whether models that do not fit together take turns.

    Raises:
        OllamaError: a call failed.
    """
    settings = Settings(
        slots=load.slots,
        profile=load.profile,
        max_loaded_models=1,
        reply_tokens=load.reply_tokens,
        time_scale=load.time_scale,
    )
    with EmbeddedServer(settings) as simulator:
        server = Server(OllamaClient(simulator.host), max_in_flight=load.max_in_flight)
        if not turns:
            server.watchers.remove(server.swaps)
        with ThreadPoolExecutor(load.lanes) as pool:
            list(pool.map(partial(_lane, server, load), range(load.lanes)))
        stats = simulator.stats()
        server.close()
    wall_s = stats["window_s"] / load.time_scale
    return asdict(load) | {
        "simulated": True,
        "turns": turns,
        "calls": stats["calls"],
        "swaps": stats["swaps"],
        "wall_s": wall_s,
        "swaps_per_1000": 1000 * stats["swaps"] / stats["calls"],
        "wall_s_per_1000": 1000 * wall_s / stats["calls"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is measured; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.swaps", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--time-scale", type=float, default=0.05, help="multiplies the server's durations")
    parser.add_argument("--json", type=Path, help="a file for all rows")
    given = parser.parse_args(argv)
    try:
        check_writable(given.json)
        loads = [Load(**asdict(load) | {"time_scale": given.time_scale}) for load in LOADS]
        rows = _show(loads)
    except (OSError, ValueError, UserError) as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_ERROR
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def _lane(server: Server, load: Load, number: int) -> None:
    """One lane's steps, one call after another."""
    chance = random.Random(number)
    for step in range(load.steps):
        ask = partial(_ask, server, seed=number * load.steps + step)
        by_rule = chance.random() < load.rule_share
        query = _QUESTION if by_rule else ask("sim-mutator", f"Paraphrase this question: {_QUESTION}")
        reply = ask("sim-target", query)
        if load.roles > 2:  # noqa: PLR2004 - the third
            ask("sim-judge", f"Question: {query}\nAnswer: {reply}\nIs it answered?")


def _ask(server: Server, model: str, prompt: str, *, seed: int) -> str:
    call = Call(model=model, prompt=prompt, options={"seed": seed})
    with server.admit(model) as admission:
        reply = server.client.generate(call)
        admission.usage = reply.usage
    return reply.text


def _show(loads: Sequence[Load]) -> list[dict[str, Any]]:
    print("SIMULATED: one model fits into memory; per 1,000 calls without and with turns, at time scale 1")
    print(f"{'profile':<9}{'roles':>6}{'by rule':>9}{'slots':>7}{'at once':>9}{'swaps':>19}{'seconds':>22}")
    rows = []
    for load in loads:
        plain, taken = (measure(load, turns=turns) for turns in (False, True))
        pairs = [(plain[key], taken[key]) for key in ("swaps_per_1000", "wall_s_per_1000")]
        shown = "".join(f"{old:>8.0f}{new:>7.0f}{old / max(new, 1e-9):>6.1f}x" for old, new in pairs)
        given = (
            f"{load.profile:<9}{load.roles:>6}{load.rule_share:>9.0%}{load.slots:>7}{load.max_in_flight:>9}"
        )
        print(f"{given}{shown}", flush=True)
        rows += [plain, taken]
    return rows


if __name__ == "__main__":
    sys.exit(main())
