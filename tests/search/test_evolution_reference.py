"""The usage examples of the reference document, with other module paths and smaller sizes.

`async-genetic-evaluation.md`: recommended settings, basic usage, performance benchmarking, the
migration guide and the custom benchmark.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from search import (
    AsyncEvolutionConfig,
    AsyncEvolutionController,
    EvolutionConfig,
    EvolutionController,
    PerformanceBenchmark,
)

SMALL: dict[str, Any] = {"population_size": 2, "max_generations": 1, "panel_size": 2, "held_out": 0}
"""The plain config makes one call after another, at the simulator's pace."""


def test_basic_usage_and_the_migration_guide(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def run_async_evolution() -> dict[str, Any]:
        config = AsyncEvolutionConfig(
            **SMALL, enable_async_evaluation=True, async_batch_size=20, max_concurrent_requests=10
        )

        controller = AsyncEvolutionController(config=config)
        results = await controller.run_evolution_async()

        print(f"Best fitness: {results['best_fitness']:.3f}")  # noqa: T201 - as in the document
        print(f"Total time: {results['total_time']:.2f}s")  # noqa: T201 - as in the document
        return results

    # Run the evolution
    results = asyncio.run(run_async_evolution())
    assert capsys.readouterr().out.startswith("Best fitness: 0.")
    assert results["generations"] == 2
    assert "SIMULATED: " in caplog.text

    # Old
    config = EvolutionConfig(**SMALL)
    controller = EvolutionController(config)
    before = controller.run_evolution()
    for timed in ("metrics", "total_time"):
        before.pop(timed)
        results.pop(timed)
    assert before == results


def test_performance_benchmarking(capsys: pytest.CaptureFixture[str]) -> None:
    async def benchmark_performance() -> dict[str, Any]:
        # Balanced, of the recommended settings, but for the sizes.
        config = {
            "population_size": 3,
            "num_problems": 10,
            "enable_async_evaluation": True,
            "async_batch_size": 20,
            "max_concurrent_requests": 10,
            "genome_batch_size": 10,
            "max_concurrent_genomes": 5,
            "rate_limit_per_minute": 3500,
            "detailed_performance_logging": True,
            "time_scale": 0.1,  # only here: the simulator's seconds are shorter
        }

        benchmark = PerformanceBenchmark(config)
        results = await benchmark.run_comprehensive_benchmark()
        benchmark.print_results_summary()

        return results

    # Run benchmark
    results = asyncio.run(benchmark_performance())
    assert f"Speed-up {results['speedup']:.2f}x; results equal." in capsys.readouterr().out
    assert results["sequential"]["max_in_flight"] == 1
    assert results["async"]["max_in_flight"] == 10
    assert results["sequential"]["calls"] == results["async"]["calls"] == 30
