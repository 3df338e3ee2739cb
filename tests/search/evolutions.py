"""Runs small evolutions on one simulator."""

from __future__ import annotations

from typing import Any

from ollama_utils.dispatcher import Dispatcher
from search.evolution_config import AsyncEvolutionConfig, EvolutionConfig
from search.evolve import EvolutionController
from simulator.process import EmbeddedServer

MODELS: dict[str, Any] = {"model": "sim-solver", "mutator_model": "sim-mutator"}
TIMES = ("metrics", "total_time")


def small(**settings: Any) -> AsyncEvolutionConfig:
    """Three generations of six prompts, scored on ten problems in two batches."""
    return AsyncEvolutionConfig(
        **{
            "population_size": 6,
            "max_generations": 2,
            "elite_size": 2,
            "panel_size": 10,
            "async_batch_size": 5,
            "held_out": 0.1,
            "rate_limit_per_minute": None,
            **settings,
        }
    )


def evolved(server: EmbeddedServer, config: EvolutionConfig, **more: Any) -> dict[str, Any]:
    """What an evolution finds."""
    with Dispatcher([server.host], backoff_s=0.01, timeout_s=0.5) as dispatcher:
        return EvolutionController(config, dispatcher=dispatcher, **MODELS, **more).run_evolution()


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    """Results without what may differ between equal runs."""
    return {key: value for key, value in results.items() if key not in TIMES}
