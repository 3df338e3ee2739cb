"""How much sooner an evolution is through with many calls in flight, by the simulator's own count.

benchmark = PerformanceBenchmark({"population_size": 30, "num_problems": 50})
results = await benchmark.run_comprehensive_benchmark()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ollama_utils.dispatcher import Dispatcher
from search.async_llm import SOLVER
from search.evolution_config import AsyncEvolutionConfig
from search.evolve import MUTATOR, EvolutionController
from simulator.process import EmbeddedServer
from simulator.settings import Settings


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
        TypeError: there is no such setting.
        ValueError: one is out of its range.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = BenchmarkConfig(**(config or {}))
        self.results: dict[str, Any] = {}
        """Of the last benchmark; empty before."""

    async def run_comprehensive_benchmark(self) -> dict[str, Any]:
        """The figures of both runs, `speedup`, and `same_result`: whether they found the same.

        Of each run, `sequential` and `async`: `time_s` and `calls_per_s` (wall clock, from the
        first call to the last), `calls`, `max_in_flight` and `utilisation` (the share of the slots
        that may be used which were busy, on average).
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

    def print_results_summary(self) -> None:
        """Print the figures as a small table.

        Raises:
            ValueError: there are no results yet.
        """
        if not self.results:
            raise ValueError("no results yet; await run_comprehensive_benchmark() first")
        size = f"{self.config.population_size} prompts, {self.config.num_problems} problems"
        lines = [f"SIMULATED: {size}"]
        for name in ("sequential", "async"):
            run = self.results[name]
            lines.append(
                f"{name}: {run['calls']} calls in {run['time_s']:.2f} s, {run['calls_per_s']:.1f} "
                f"a second, {run['max_in_flight']} at once at most, {run['utilisation']:.0%} of "
                "the slots used"
            )
        agree = "equal" if self.results["same_result"] else "DIFFERENT"
        lines.append(f"Speed-up {self.results['speedup']:.2f}x; results {agree}.")
        print("\n".join(lines))  # noqa: T201 - what it is for

    def _measure(self, *, is_async: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the server saw of one run, and what that found."""
        scale, rate = self.config.time_scale, self.config.rate_limit_per_minute
        config = replace(
            self.config,
            panel_size=self.config.num_problems,
            enable_async_evaluation=is_async,
            rate_limit_per_minute=rate / scale if rate and scale else None,
        )
        slots = config.max_concurrent_requests
        settings = Settings(slots=slots, reply_tokens=config.reply_tokens, time_scale=scale)
        seeds = [f"Solve it as guide {k} says." for k in range(config.population_size)]
        with (
            EmbeddedServer(settings) as server,
            Dispatcher([server.host], max_in_flight=slots) as dispatcher,
        ):
            controller = EvolutionController(
                config,
                dispatcher=dispatcher,
                model=SOLVER,
                mutator_model=MUTATOR,
                seed_prompts=seeds,
            )
            server.reset_stats()
            found = controller.run_evolution()
            stats = server.stats()
        del found["metrics"], found["total_time"]
        return {
            "time_s": stats["window_s"],
            "calls": stats["calls"],
            "calls_per_s": stats["calls"] / stats["window_s"],
            "max_in_flight": stats["max_in_flight"],
            "utilisation": stats["busy_slot_s"] / stats["window_s"] / config.at_once(slots),
        }, found
