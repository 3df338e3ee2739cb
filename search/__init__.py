"""Searches for system prompts, and selection among models, prompts and mutators."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search.async_llm import AsyncLLMInterface
    from search.evolution_benchmark import PerformanceBenchmark
    from search.evolution_config import AsyncEvolutionConfig, EvolutionConfig
    from search.evolve import AsyncEvolutionController, EvolutionController, EvolutionProgress
    from search.optimize import (
        ActorCriticParams,
        HybridOptimizationFlow,
        generate_candidates,
        generate_candidates_parallel,
    )
    from search.panel import AsyncEvaluationPipeline
    from search.select import make_selector

__all__ = [
    "ActorCriticParams",
    "AsyncEvaluationPipeline",
    "AsyncEvolutionConfig",
    "AsyncEvolutionController",
    "AsyncLLMInterface",
    "EvolutionConfig",
    "EvolutionController",
    "EvolutionProgress",
    "HybridOptimizationFlow",
    "PerformanceBenchmark",
    "generate_candidates",
    "generate_candidates_parallel",
    "make_selector",
]

_MODULES = {
    "search.async_llm": ("AsyncLLMInterface",),
    "search.evolution_benchmark": ("PerformanceBenchmark",),
    "search.evolution_config": ("AsyncEvolutionConfig", "EvolutionConfig"),
    "search.evolve": ("AsyncEvolutionController", "EvolutionController", "EvolutionProgress"),
    "search.panel": ("AsyncEvaluationPipeline",),
    "search.optimize": (
        "ActorCriticParams",
        "HybridOptimizationFlow",
        "generate_candidates",
        "generate_candidates_parallel",
    ),
    "search.select": ("make_selector",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    """Import a name when it is first needed, so that importing this package is cheap."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
