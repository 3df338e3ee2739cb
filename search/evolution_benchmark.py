"""How much sooner an evolution is through with many calls under way, by the simulator's own count.

    benchmark = PerformanceBenchmark({"population_size": 30, "num_problems": 50})
    results = await benchmark.run_comprehensive_benchmark()

The same generation is played twice, each time on a fresh simulator: with one call at a time, and with as
many as the configuration says. Times, calls and calls under way are those that the server counted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import IO, Any

from ollama_utils.dispatcher import Dispatcher
from records.errors import nearest
from search.evolution import MUTATOR, SOLVER, AsyncEvolutionConfig, EvolutionController
from simulator.process import EmbeddedServer
from simulator.settings import Settings

_TIMES = ("metrics", "total_time")
"""What two runs of one search may differ in."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(AsyncEvolutionConfig):
    """What is played, and on what server, which has as many slots as `max_concurrent_requests`.

    The rate limit is of the server's minutes, which pass sooner where `time_scale` is below 1.
    """

    population_size: int = 30
    """Genomes to score; all but the first are made by mutation."""
    max_generations: int = 0
    """Generations of children after the first population."""
    held_out: float = 0.0
    max_examples: int = 0
    num_problems: int = 50
    """Problems of the bundled task that each genome is scored on."""
    reply_tokens: str = "64"
    """Tokens of a reply: `64`, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: float = 0.5
    """The server's seconds are so long: 64 tokens take 0.26 of them."""

    def evolution(self, *, concurrent: bool) -> AsyncEvolutionConfig:
        """The configuration of one of the two runs."""
        rate = self.rate_limit_per_minute
        return replace(
            self,
            panel_size=self.num_problems,
            enable_async_evaluation=concurrent,
            rate_limit_per_minute=rate / self.time_scale if rate and self.time_scale else None,
        )


class PerformanceBenchmark:
    """Plays a generation one call at a time, and with many under way.

    Args:
        config: settings of BenchmarkConfig by name; what is left out has its default.

    Raises:
        ValueError: an unknown setting, or a bad value.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        names = [field.name for field in fields(BenchmarkConfig)]
        for name in config or {}:
            if name not in names:
                raise ValueError(f"unknown setting {name!r}; {nearest(name, names)}")
        self.config = BenchmarkConfig(**(config or {}))
        self.config.evolution(concurrent=True)
        self._server_settings()
        self.results: dict[str, Any] = {}
        """Of the last benchmark; empty before."""

    async def run_comprehensive_benchmark(self) -> dict[str, Any]:
        """The figures of both runs, how many times as fast the second is, and whether their results agree.

        Of each run: `time_s` and `calls_per_s` (wall clock, from the server's window), `calls`,
        `max_in_flight`, `mean_in_flight` (busy slots on average) and `utilisation` (the share of the slots
        that may be used).
        """
        sequential, before = await asyncio.to_thread(self._measure, concurrent=False)
        concurrent, after = await asyncio.to_thread(self._measure, concurrent=True)
        self.results = {
            "sequential": sequential,
            "async": concurrent,
            "speedup": sequential["time_s"] / concurrent["time_s"],
            "same_result": before == after,
            "simulated": True,
            "time_scale": self.config.time_scale,
        }
        return self.results

    def print_results_summary(self, file: IO[str] | None = None) -> str:
        """Write the figures as a small table to `file`, stdout where none is given; the text of it.

        Raises:
            ValueError: there are no results yet.
        """
        if not self.results:
            raise ValueError("no results yet; await run_comprehensive_benchmark() first")
        rows = [self._row(name, self.results[name]) for name in ("sequential", "async")]
        agree = "equal" if self.results["same_result"] else "DIFFERENT"
        sizes = f"{self.config.population_size} genomes, {self.config.num_problems} problems"
        text = "\n".join(
            [
                f"SIMULATED, as the server saw it: {sizes}",
                f"{'':12}{'seconds':>9}{'calls':>8}{'calls/s':>9}{'most':>6}{'mean':>7} in flight{'used':>6}",
                *rows,
                f"Speed-up {self.results['speedup']:.2f}x; results {agree}.",
            ]
        )
        # The reference's way to show results: a caller who wants none printed has the text in `results`.
        (file or sys.stdout).write(f"{text}\n")
        return text

    @staticmethod
    def _row(name: str, run: Mapping[str, float]) -> str:
        return (
            f"{name:12}{run['time_s']:9.2f}{run['calls']:8d}{run['calls_per_s']:9.1f}{run['max_in_flight']:6d}"
            f"{run['mean_in_flight']:7.2f}          {run['utilisation']:6.0%}"
        )

    def _server_settings(self) -> Settings:
        config = self.config
        return Settings(
            slots=config.max_concurrent_requests,
            reply_tokens=config.reply_tokens,
            time_scale=config.time_scale,
        )

    def _measure(self, *, concurrent: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the server saw of one run, and the run's results without what took time."""
        config = self.config.evolution(concurrent=concurrent)
        with (
            EmbeddedServer(self._server_settings()) as server,
            Dispatcher([server.host], max_in_flight=self.config.max_concurrent_requests) as dispatcher,
        ):
            controller = EvolutionController(
                config, dispatcher=dispatcher, model=SOLVER, mutator_model=MUTATOR
            )
            server.reset_stats()
            results = controller.run_evolution()
            stats = server.stats()
        in_flight = stats["busy_slot_s"] / stats["window_s"]
        figures = {
            "time_s": stats["window_s"],
            "calls": stats["calls"],
            "calls_per_s": stats["calls"] / stats["window_s"],
            "max_in_flight": stats["max_in_flight"],
            "mean_in_flight": in_flight,
            "utilisation": in_flight / config.schedule.concurrency,
        }
        return figures, {key: value for key, value in results.items() if key not in _TIMES}
