"""Evolve a system prompt on a task: rewordings by model, crossovers, one cap on calls."""

from __future__ import annotations

from ollama_utils.dispatcher import Dispatcher
from search import AsyncEvolutionConfig, AsyncEvolutionController
from simulator.process import EmbeddedServer
from simulator.settings import Settings


def main(generations: int = 4, panel_size: int = 50) -> None:
    """Evolve 10 prompts on the bundled task, and print the best one beside the seed prompt."""
    config = AsyncEvolutionConfig(
        population_size=10,
        max_generations=generations,
        panel_size=panel_size,
        max_concurrent_requests=16,
        rate_limit_per_minute=None,
    )
    with (
        EmbeddedServer(Settings(slots=16, time_scale=0.0)) as server,
        Dispatcher([server.host]) as dispatcher,
    ):
        results = AsyncEvolutionController(
            config, dispatcher=dispatcher, model="sim-solver", mutator_model="sim-mutator"
        ).run_evolution()
    print(f"seed prompt {results['seed_fitness']:.2f}, best {results['best_fitness']:.2f}:")
    print(results["best_prompt"])


if __name__ == "__main__":
    main()
