"""Runs small evolutions on one simulator."""

from __future__ import annotations

from typing import Any

from ollama_utils.dispatcher import Dispatcher
from search.evolution import AsyncEvolutionConfig, EvolutionConfig, EvolutionController
from simulator.process import EmbeddedServer

MODELS: dict[str, Any] = {"model": "sim-solver", "mutator_model": "sim-mutator"}
TIMES = ("metrics", "total_time")


def small(**settings: Any) -> AsyncEvolutionConfig:  # noqa: ANN401 - any of them
    population_size = settings.pop("population_size", 8)
    return AsyncEvolutionConfig(
        **{
            "population_size": population_size,
            "max_generations": 3,
            "elite_size": min(2, population_size // 2),
            "panel_size": 20,
            "async_batch_size": 5,
            "rate_limit_per_minute": None,
            **settings,
        }
    )


def evolved(
    server: EmbeddedServer,
    config: EvolutionConfig,
    **more: Any,  # noqa: ANN401 - any of the controller's
) -> dict[str, Any]:
    with Dispatcher([server.host], backoff_s=0.01, timeout_s=0.5) as dispatcher:
        return EvolutionController(config, dispatcher=dispatcher, **MODELS, **more).run_evolution()


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key not in TIMES}
