"""How much sooner an evolution is through with many calls in flight, by the simulator's own count.

benchmark = PerformanceBenchmark({"population_size": 30, "num_problems": 50})
results = await benchmark.run_comprehensive_benchmark()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_utils.dispatcher import Dispatcher
from search.async_llm import SOLVER
from search.evolution_config import AsyncEvolutionConfig
from search.evolve import MUTATOR, EvolutionController
from simulator.process import EmbeddedServer
from simulator.settings import Settings


class PerformanceBenchmark:
    """Plays one evolution twice, each time on a fresh simulator: one call at a time, and many.

    Args:
        config: settings of an `AsyncEvolutionConfig` by name, of which some have other defaults: 30
            prompts, all different from the start, no generations of children, nothing held out. And
            `num_problems` (50) of the bundled task that each prompt is scored on; of the server,
            which has as many slots as `max_concurrent_requests`, the `reply_tokens` ("64", or
            "lognormal:mean=64,sigma=1.0") and the `time_scale` (0.5: how long its seconds are; 64
            tokens take 0.13 s; its minutes, which the rate limit is of, are as much shorter).

    Raises:
        TypeError: there is no such setting.
        ValueError: one is out of its range.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        given = {"population_size": 30, "max_generations": 0, "held_out": 0.0, **(config or {})}
        self.time_scale = float(given.pop("time_scale", 0.5))
        self.reply_tokens = str(given.pop("reply_tokens", "64"))
        self.config = AsyncEvolutionConfig(panel_size=given.pop("num_problems", 50), **given)
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
        }
        return self.results

    def print_results_summary(self) -> None:
        """Print the figures of the last benchmark as a small table.

        Raises:
            ValueError: there are no results yet.
        """
        if not self.results:
            raise ValueError("no results yet; await run_comprehensive_benchmark() first")
        config, agree = self.config, "equal" if self.results["same_result"] else "DIFFERENT"
        lines = [f"SIMULATED: {config.population_size} prompts, {config.panel_size} problems"]
        for name in ("sequential", "async"):
            run = self.results[name]
            lines.append(
                f"{name}: {run['calls']} calls in {run['time_s']:.2f} s, {run['calls_per_s']:.1f} "
                f"a second, {run['max_in_flight']} at once at most, {run['utilisation']:.0%} of "
                "the slots used"
            )
        lines.append(f"Speed-up {self.results['speedup']:.2f}x; results {agree}.")
        print("\n".join(lines))  # noqa: T201 - what it is for

    def _measure(self, *, is_async: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the server saw of one run, and what that found."""
        scale, rate = self.time_scale, self.config.rate_limit_per_minute
        config = replace(
            self.config,
            enable_async_evaluation=is_async,
            rate_limit_per_minute=rate / scale if rate and scale else None,
        )
        slots = config.max_concurrent_requests
        settings = Settings(slots=slots, reply_tokens=self.reply_tokens, time_scale=scale)
        seeds = [f"Solve it as guide {k} says." for k in range(config.population_size)]
        models: dict[str, Any] = {"model": SOLVER, "mutator_model": MUTATOR}
        with (
            EmbeddedServer(settings) as server,
            Dispatcher([server.host], max_in_flight=slots) as dispatcher,
        ):
            server.reset_stats()
            found = EvolutionController(
                config, dispatcher=dispatcher, seed_prompts=seeds, **models
            ).run_evolution()
            stats = server.stats()
        del found["metrics"], found["total_time"]
        return {
            "time_s": stats["window_s"],
            "calls": stats["calls"],
            "calls_per_s": stats["calls"] / stats["window_s"],
            "max_in_flight": stats["max_in_flight"],
            "utilisation": stats["busy_slot_s"] / stats["window_s"] / config.at_once(slots),
        }, found
