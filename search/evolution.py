"""Prompts that evolve: genetic search over system prompts, with many calls under way under one cap.

    results = EvolutionController(EvolutionConfig(), dispatcher=..., model=...).run_evolution()
    results = await AsyncEvolutionController(AsyncEvolutionConfig.balanced()).run_evolution_async()

A run is a pure function of its config, its prompts and the replies it gets: the concurrency changes its
pace alone, and the same run over a log of replies (`Dispatcher.keep_in`) asks for none of these again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from mutators.instructions import INSTRUCTION_CROSSOVERS, INSTRUCTION_MUTATORS
from mutators.mutator import Mutator
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from search.call_pool import CallPool
from search.embedded import SOLVER, embedded_dispatcher
from search.genetics.config import AsyncEvolutionConfig, EvolutionConfig
from search.genetics.genome import Example, Genome
from search.genetics.pipeline import AsyncEvaluationPipeline
from search.genetics.population import Generation
from search.genetics.problems import divide
from search.genetics.run import NothingScoredError, Run
from search.genetics.trial import Evaluated
from search.genetics.variation import Variation
from search.task import SEED_INSTRUCTIONS, Task, bundled_task

__all__ = [
    "AsyncEvaluationPipeline",
    "AsyncEvolutionConfig",
    "AsyncEvolutionController",
    "Evaluated",
    "EvolutionConfig",
    "EvolutionController",
    "Example",
    "Generation",
    "Genome",
    "NothingScoredError",
]

MUTATOR = "sim-mutator"
"""The embedded server's model that rewords prompts."""


class EvolutionController:
    """Runs an evolution.

    Args:
        config: an EvolutionConfig, one call at a time, or an AsyncEvolutionConfig; None is the default one.
        dispatcher: sends the calls, and all who use it are held to the config's rate limit during the run;
            None starts the simulator for the run, and says so in the log.
        task: the problems; None is the bundled task.
        seed_prompts: what to begin with, texts or genomes; None is the bundled seed prompt.
        model: that solves the problems; needed with a dispatcher.
        mutator_model: that rewords prompts; None is the same one.
        options: Ollama's options for the solving calls; the temperature is 0 unless they say otherwise.
        mutator_options: those for the rewording calls; each has a seed of its own.
        think: whether a thinking model thinks; None leaves it to the server, and so does True for rewording.
        mutators: operators on one prompt; crossovers: on two. See `mutators/instructions.py`.
        on_generation: called with each generation's record, on the thread that runs the search.
        tick: called after each call, on any thread, one at a time.

    Raises:
        ValueError: a dispatcher without a model, or a seed prompt that is blank.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own, given by name
        self,
        config: EvolutionConfig | None = None,
        *,
        dispatcher: Dispatcher | None = None,
        task: Task | None = None,
        seed_prompts: Sequence[str | Genome] | None = None,
        model: str | None = None,
        mutator_model: str | None = None,
        options: Mapping[str, Any] | None = None,
        mutator_options: Mapping[str, Any] | None = None,
        think: bool | None = None,
        mutators: Sequence[Mutator] = INSTRUCTION_MUTATORS,
        crossovers: Sequence[Mutator] = INSTRUCTION_CROSSOVERS,
        on_generation: Callable[[Generation], None] = lambda _: None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        if dispatcher is not None and model is None:
            raise ValueError("no model named; say which model of the server solves the problems: model=...")
        self.config = config or self._default_config()
        self._dispatcher = dispatcher
        self._task = task or bundled_task()
        prompts = [SEED_INSTRUCTIONS] if seed_prompts is None else seed_prompts
        self._seeds = [each if isinstance(each, Genome) else Genome(each) for each in prompts]
        self._model = model or SOLVER
        self._mutator_model = mutator_model or model or MUTATOR
        self._options, self._mutator_options = options, dict(mutator_options or {})
        self._think = think
        self._mutators, self._crossovers = tuple(mutators), tuple(crossovers)
        self._on_generation, self._tick = on_generation, tick
        self._pool: CallPool | None = None
        self._is_stopped = False

    @property
    def metrics(self) -> dict[str, Any]:
        """What was asked so far: calls, hits, calls saved, throughput, calls under way; empty before."""
        return {} if self._pool is None else self._pool.counts().to_dict()

    def run_evolution(self) -> dict[str, Any]:
        """Evolve to the end; the results as plain data, ready for JSON.

        `best_fitness`, `best_prompt` and `best_genome` are those of the best genome that was scored in full,
        None without one; `seed_fitness` and `seed_prompt` of the best prompt that it began with. `held_out`
        compares these two on the problems held out: their means `best` and `seed` over the problems that both
        have a reply to, and the fields of a `Comparison`, None where one is no finite number; None itself
        where none is held out, or the run did not get there. `history` has a `Generation`
        each. `ended` says why it was the last. A run that was stopped gives what it has, with `interrupted`,
        and `reason` says why, else None. All but
        `metrics` and `total_time` (seconds) depends on config, prompts and replies alone.

        Raises:
            NothingScoredError: the calls failed so often that no prompt of the first population has a score.
            ValueError: the task has too few problems, or the seed prompts are no population.
        """
        began_s = time.monotonic()
        problems = divide(self._task, self.config)
        variation = Variation(
            mutators=self._mutators,
            crossovers=self._crossovers,
            ask=self._ask_mutator,
            examples=problems.examples,
            max_examples=self.config.max_examples,
        )
        with self._connection() as dispatcher:
            pool = self._pool = CallPool(dispatcher, self.config.schedule.concurrency)
            if self._is_stopped:
                pool.cancel()
            run = Run(
                self.config,
                pool,
                problems,
                variation,
                self._seeds,
                pipeline_for=lambda task, config: self._pipeline(pool, task, config),
                on_generation=self._on_generation,
            )
            results = run.play()
        return {**results, "metrics": self.metrics, "total_time": time.monotonic() - began_s}

    def stop(self) -> None:
        """End the run soon, for good: calls under way are waited for, no other is begun; from any thread."""
        self._is_stopped = True
        if self._pool is not None:
            self._pool.cancel()

    @staticmethod
    def _default_config() -> EvolutionConfig:
        return EvolutionConfig()

    def _pipeline(self, pool: CallPool, task: Task, config: EvolutionConfig) -> AsyncEvaluationPipeline:
        return AsyncEvaluationPipeline(
            pool,
            task,
            model=self._model,
            config=config,
            options=self._options,
            think=self._think,
            tick=self._tick,
        )

    def _ask_mutator(self, prompt: str, seed: int) -> Call:
        options = {**self._mutator_options, "seed": seed}
        # Who rewords is never made to think: it may be a model that cannot.
        return Call(model=self._mutator_model, prompt=prompt, options=options, think=self._think and None)

    @contextmanager
    def _connection(self) -> Iterator[Dispatcher]:
        """The dispatcher; as long as the run lasts, the config's rate limit holds for all who use it."""
        schedule = self.config.schedule
        with ExitStack() as stack:
            dispatcher = self._dispatcher
            if dispatcher is None:
                dispatcher = stack.enter_context(
                    embedded_dispatcher(schedule.concurrency, timeout_s=schedule.timeout_s)
                )
            stack.enter_context(dispatcher.limited(schedule.rate_per_minute))
            yield dispatcher


class AsyncEvolutionController(EvolutionController):
    """Runs an evolution beside an event loop; by default with many calls under way."""

    async def run_evolution_async(self) -> dict[str, Any]:
        """`run_evolution` on a thread: the loop stays free, and cancelling this stops the run."""
        running = asyncio.create_task(asyncio.to_thread(self.run_evolution))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([running])
            raise

    @staticmethod
    def _default_config() -> EvolutionConfig:
        return AsyncEvolutionConfig()
