"""Genomes scored side by side on a fixed panel, under one cap on the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from search.call_pool import CallPool
from search.genetics.config import AsyncEvolutionConfig, EvolutionConfig
from search.genetics.genome import Genome
from search.genetics.plans import CallPlan
from search.genetics.trial import Evaluated, Panel, Trial
from search.streams import play_plans
from search.task import Task, ask_problem

T = TypeVar("T")


class AsyncEvaluationPipeline:
    """Puts a task's problems to a model under each of many system prompts.

    Args:
        pool: sends the calls, so many at once at most, whoever else uses it.
        task: whose problems are the panel, in this order.
        model: that answers, as the server lists it.
        config: the schedule, and when a genome is stopped or unscored.
        options: more of Ollama's options for these calls.
        think: whether a thinking model thinks; None leaves it to the server.
        tick: called after each call, on any thread, one at a time.
    """

    def __init__(
        self,
        pool: CallPool,
        task: Task,
        *,
        model: str,
        config: EvolutionConfig | None = None,
        options: Mapping[str, Any] | None = None,
        think: bool | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        config = config or AsyncEvolutionConfig()
        schedule = config.schedule
        self._pool, self._tick = pool, tick
        self.panel = Panel(
            problems=task.problems,
            scorer=task.scorer,
            ask=lambda problem, prompt: ask_problem(
                problem, prompt, model=model, options=options, think=think, seed=config.seed
            ),
            batch_size=schedule.batch_size,
            batches_at_once=schedule.batches_at_once,
            max_unscored=config.max_unscored,
            hopeless=config.hopeless,
        )

    def evaluate(self, genomes: Sequence[Genome], rival: Evaluated | None = None) -> list[Evaluated]:
        """What each genome scores, in their order.

        Args:
            genomes: equal ones are asked once.
            rival: what is surely worse than this one is stopped; None lets all finish.

        Raises:
            SearchStoppedError: the calls were cancelled.
            Exception: whatever the scorer raises.
        """
        return self.play([self._try(Trial(genome, self.panel, rival)) for genome in genomes])

    async def evaluate_population(self, genomes: Sequence[Genome]) -> list[Evaluated]:
        """`evaluate` for an event loop, which stays free meanwhile."""
        return await asyncio.to_thread(self.evaluate, genomes)

    def play(self, plans: Sequence[CallPlan[T]]) -> list[T]:
        """What these plans return, their calls side by side under the pool's cap."""
        # More than the cap: who waits for another attempt, or for a score, holds no place under it.
        return play_plans(plans, lambda asking: asking.answer(self._pool.ask), self._pool.callers, self._tick)

    def _try(self, trial: Trial) -> CallPlan[Evaluated]:
        while not trial.is_over:
            yield from trial.go_on()
        return trial.result()
