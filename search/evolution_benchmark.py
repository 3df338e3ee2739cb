"""How much sooner an evolution is through with many calls in flight, by the simulator's own count.

benchmark = PerformanceBenchmark({"population_size": 30, "num_problems": 50})
results = await benchmark.run_comprehensive_benchmark()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ollama_utils.dispatcher import Dispatcher
from records.errors import nearest
from search.async_llm import SOLVER
from search.evolution_config import AsyncEvolutionConfig, schedule_of
from search.evolve import MUTATOR, EvolutionController
from simulator.process import EmbeddedServer
from simulator.settings import Settings

_NOT_COMPARED = ("metrics", "total_time")
"""What two runs of one search may differ in."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(AsyncEvolutionConfig):
    """The evolution, and its server, which has as many slots as `max_concurrent_requests`."""

    population_size: int = 30
    """Prompts to score, all different from the start."""
    max_generations: int = 0
    """Generations of children after the first population."""
    held_out: float = 0.0
    num_problems: int = 50
    """Problems of the bundled task that each prompt is scored on."""
    reply_tokens: str = "64"
    """Tokens of a reply: `64`, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: float = 0.5
    """The server's seconds are so long: 64 tokens take 0.13 s. Its minutes, which the rate limit is
    of, are as much shorter."""


class PerformanceBenchmark:
    """Plays one evolution twice, each time on a fresh simulator: one call at a time, and many.

    Args:
        config: settings of `BenchmarkConfig` by name; what is left out has its default.

    Raises:
        ValueError: a setting is unknown, or out of its range.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        names = [field.name for field in fields(BenchmarkConfig)]
        for name in config or {}:
            if name not in names:
                raise ValueError(f"unknown setting {name!r}; {nearest(name, names)}")
        self.config = BenchmarkConfig(**(config or {}))
        self.results: dict[str, Any] = {}
        """Of the last benchmark; empty before."""

    async def run_comprehensive_benchmark(self) -> dict[str, Any]:
        """The figures of both runs, `speedup`, and `same_result`: whether they found the same.

        Of each run, `sequential` and `async`: `time_s` and `calls_per_s` (wall clock, from the
        first call to the last), `calls`, `max_in_flight`, `mean_in_flight` (busy slots on average)
        and `utilisation` (the share of the slots that may be used).
        """
        sequential, before = await asyncio.to_thread(self._measure, is_async=False)
        concurrent, after = await asyncio.to_thread(self._measure, is_async=True)
        self.results = {
            "sequential": sequential,
            "async": concurrent,
            "speedup": sequential["time_s"] / concurrent["time_s"],
            "same_result": before == after,
            "simulated": True,
            "time_scale": self.config.time_scale,
        }
        return self.results

    def print_results_summary(self) -> str:
        """Print the figures as a small table; returns its text.

        Raises:
            ValueError: there are no results yet.
        """
        if not self.results:
            raise ValueError("no results yet; await run_comprehensive_benchmark() first")
        agree = "equal" if self.results["same_result"] else "DIFFERENT"
        prompts, problems = self.config.population_size, self.config.num_problems
        lines = [
            f"SIMULATED: {prompts} prompts, {problems} problems",
            "              seconds   calls  calls/s  in flight  most   used",
        ]
        for name in ("sequential", "async"):
            run = self.results[name]
            lines.append(
                f"{name:12}{run['time_s']:9.2f}{run['calls']:8d}{run['calls_per_s']:9.1f}"
                f"{run['mean_in_flight']:11.2f}{run['max_in_flight']:6d}{run['utilisation']:7.0%}"
            )
        lines.append(f"Speed-up {self.results['speedup']:.2f}x; results {agree}.")
        text = "\n".join(lines)
        print(text)  # noqa: T201 - what it is for
        return text

    def _measure(self, *, is_async: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the server saw of one run, and what that found."""
        config, rate = self.config, self.config.rate_limit_per_minute
        evolution = replace(
            config,
            panel_size=config.num_problems,
            enable_async_evaluation=is_async,
            rate_limit_per_minute=rate / config.time_scale if rate and config.time_scale else None,
        )
        slots = config.max_concurrent_requests
        settings = Settings(
            slots=slots, reply_tokens=config.reply_tokens, time_scale=config.time_scale
        )
        with (
            EmbeddedServer(settings) as server,
            Dispatcher([server.host], max_in_flight=slots) as dispatcher,
        ):
            controller = EvolutionController(
                evolution,
                dispatcher=dispatcher,
                model=SOLVER,
                mutator_model=MUTATOR,
                seed_prompts=[
                    f"Solve it as guide {k} says." for k in range(config.population_size)
                ],
            )
            server.reset_stats()
            found = controller.run_evolution()
            stats = server.stats()
        in_flight = stats["busy_slot_s"] / stats["window_s"]
        figures = {
            "time_s": stats["window_s"],
            "calls": stats["calls"],
            "calls_per_s": stats["calls"] / stats["window_s"],
            "max_in_flight": stats["max_in_flight"],
            "mean_in_flight": in_flight,
            "utilisation": in_flight / schedule_of(evolution).max_concurrent_requests,
        }
        return figures, {name: each for name, each in found.items() if name not in _NOT_COMPARED}
