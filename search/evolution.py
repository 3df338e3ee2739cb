"""Prompts that evolve: genetic search over system prompts, with many calls under way under one cap.

    results = EvolutionController(EvolutionConfig(), dispatcher=..., model=...).run_evolution()
    results = await AsyncEvolutionController(AsyncEvolutionConfig.balanced()).run_evolution_async()

A run is a pure function of its config, its prompts and the replies it gets: the concurrency changes its
pace alone, and the same run over a log of replies (`Dispatcher.keep_in`) asks for none of these again. Where
no server is named, the simulator stands in: searches can be tried without a model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from mutators.mutator import Mutator
from mutators.system_prompts import INSTRUCTION_CROSSOVERS, INSTRUCTION_MUTATORS
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Think
from records.metrics import finite
from scorers.comparison import compare
from search.call_pool import CallPool
from search.genetics.config import AsyncEvolutionConfig, EvolutionConfig
from search.genetics.fitness import (
    AsyncEvaluationPipeline,
    Evaluated,
    Problems,
    Trial,
    divide,
)
from search.genetics.genome import Example, Genome
from search.genetics.offspring import Offspring
from search.genetics.population import Generation, Population
from search.genetics.variation import Variation
from search.progress import SearchProgress
from search.rewording import Rewriter
from search.task import SEED_INSTRUCTIONS, Task, bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

__all__ = [
    "AsyncEvaluationPipeline",
    "AsyncEvolutionConfig",
    "AsyncEvolutionController",
    "Evaluated",
    "EvolutionConfig",
    "EvolutionController",
    "EvolutionProgress",
    "Example",
    "Generation",
    "Genome",
    "NothingScoredError",
]

SOLVER = "sim-solver"
"""The embedded server's model that solves problems."""
MUTATOR = "sim-mutator"
"""The embedded server's model that rewords prompts."""
TIME_SCALE = 0.1
"""The embedded server's seconds are so long, as in the commands: trying a search takes no patience."""

_BROKEN_OFF = "it was broken off"
_log = logging.getLogger(__name__)


@contextmanager
def embedded_dispatcher(slots: int, *, timeout_s: float) -> Iterator[Dispatcher]:
    """A dispatcher to a simulator in a process of its own; both end with the `with` block.

    Args:
        slots: calls that each of its models serves at once.
        timeout_s: the seconds after which an attempt without a whole reply counts as failed.

    Raises:
        ChildError: it does not start.
    """
    with EmbeddedServer(Settings(slots=slots, time_scale=TIME_SCALE)) as server:
        _log.warning(
            "SIMULATED: no dispatcher was given, so the embedded server at %s answers, at %g of its time",
            server.host,
            TIME_SCALE,
        )
        with Dispatcher(
            [server.host], timeout_s=timeout_s, ensure_running=server.ensure_running
        ) as dispatcher:
            yield dispatcher


@dataclass(frozen=True, kw_only=True)
class EvolutionProgress:
    """How far an evolution is."""

    generations: int
    """That are done; the first population is one of them."""
    of: int
    """That there are at most."""
    calls: int
    """That came to an end, over all generations."""
    best_fitness: float | None
    """Of the best prompt so far; None before the first generation is done, or where none was scored."""


class NothingScoredError(Exception):
    """No prompt could be scored, for the calls failed: there is nothing to evolve from."""


class Evolution:
    """An evolution under way.

    Args:
        config: sizes, rates, schedule, seed.
        pool: sends the calls.
        problems: by use.
        variation: makes the children.
        seeds: the genomes to begin with.
        pipeline_for: the pipeline that scores genomes on a task's problems under a config.
        on_generation: called with the record of each generation.
    """

    def __init__(
        self,
        config: EvolutionConfig,
        pool: CallPool,
        problems: Problems,
        variation: Variation,
        seeds: Sequence[Genome],
        *,
        pipeline_for: Callable[[Task, EvolutionConfig], AsyncEvaluationPipeline],
        on_generation: Callable[[Generation], None] = lambda _: None,
    ) -> None:
        self._config, self._pool, self._problems = config, pool, problems
        self._variation, self._seeds = variation, tuple(seeds)
        self._pipeline_for, self._on_generation = pipeline_for, on_generation
        self._pipeline = pipeline_for(problems.panel, config)
        self._population = Population(
            config, seeds=seeds, mutations=variation.mutations, crossings=variation.crossings
        )
        self._seeds_scored: dict[Genome, Evaluated] = {}
        self._history: list[Generation] = []
        self.found = self._results(_BROKEN_OFF, None)
        """The results as plain data: of the generations that are done, and at the end of the whole."""

    def play(self) -> None:
        """Evolve, and compare; `found` has the results, whatever ends it.

        Raises:
            NothingScoredError: the first population has no prompt that was scored in full.
        """
        reason, held_out = None, None
        try:
            while not self._population.is_over and reason is None:
                reason = self._generation()
            if reason is None:
                held_out = self._compare()
        except CallCancelledError:
            reason = "it was told to stop"
        self.found = self._results(reason, held_out)

    def _generation(self) -> str | None:
        """Play one; why it must be the last, if it must."""
        population = self._population
        specs, rival = population.ask(), population.rival
        panel = self._pipeline.panel
        offspring = Offspring(
            specs,
            self._variation,
            population.known,
            lambda genome: Trial(genome, panel, rival),
            self._config.schedule.drafts_ahead,
        )
        self._pipeline.play(offspring.plans())
        children = offspring.children()
        tried = [child.evaluated for child in children if child.evaluated is not None]
        self._seeds_scored |= {each.genome: each for each in tried if each.genome in self._seeds}
        record = population.tell(children)
        self._history.append(record)
        self.found = self._results(_BROKEN_OFF, None)
        self._log(record)
        self._on_generation(record)
        if tried and record.unscored == len(tried):
            failed = f"{record.unscored_problems} of {sum(each.asked for each in tried)} problems"
            reason = (
                f"no prompt of generation {record.generation} could be scored: {failed} got no reply, "
                f"the last as {tried[-1].error}"
            )
            if population.best is None:
                raise NothingScoredError(f"{reason}; see whether the server answers, then run again")
            return reason
        return None

    def _compare(self) -> dict[str, Any] | None:
        """The best prompt and the best seed on the problems held out, paired."""
        best, held_out = self._population.best, self._problems.held_out
        if best is None or held_out is None:
            return None
        genomes = list(dict.fromkeys((best.genome, self._seed())))
        # No early end: both must be put all problems, whatever failed.
        config = replace(self._config, max_unscored=1.0)
        scored = self._pipeline_for(held_out, config).evaluate(genomes)
        pairs = list(zip(scored[0].scores, scored[-1].scores, strict=True))
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        told = compare(*([[] if s is None else [s] for s in scores] for scores in zip(*pairs, strict=True)))
        best_mean, seed_mean = map(fmean, zip(*both, strict=True)) if both else (None, None)
        return {"best": best_mean, "seed": seed_mean, **finite(asdict(told))}

    def _seed(self) -> Genome:
        """The best of the seeds; the first where none was scored."""
        return max(self._seeds, key=lambda seed: self._fitness_of(seed) or 0.0)

    def _fitness_of(self, seed: Genome) -> float | None:
        scored = self._seeds_scored.get(seed)
        return scored.fitness if scored else None

    def _results(self, reason: str | None, held_out: Mapping[str, Any] | None) -> dict[str, Any]:
        best, seed = self._population.best, self._seed()
        return {
            "best_fitness": best.fitness if best else None,
            "best_prompt": best.genome.prompt if best else None,
            "best_genome": best.genome.to_json() if best else None,
            "population": [
                {**member.genome.to_json(), "fitness": member.fitness, "stopped": member.stopped}
                for member in self._population.members
            ],
            "seed_fitness": self._fitness_of(seed),
            "seed_prompt": seed.prompt,
            "held_out": held_out,
            "history": [record.to_json() for record in self._history],
            "births": [asdict(birth) for birth in self._population.births],
            "generations": len(self._history),
            "genomes": len(self._population.known),
            "panel_size": len(self._problems.panel.problems),
            "task": self._problems.panel.name,
            "seed": self._config.seed,
            "ended": reason or self._population.ending,
            "interrupted": reason is not None,
            "reason": reason,
        }

    def _log(self, record: Generation) -> None:
        if not self._config.schedule.logs_performance:
            return
        counts = self._pool.counts()
        _log.info(
            "generation %d: best %s, %d children, %d stopped, %d unscored; %d calls, %.1f a second, "
            "%.0f %% known already, %d under way at most, %d retries",
            record.generation,
            "-" if record.best_fitness is None else f"{record.best_fitness:.3f}",
            record.children,
            record.stopped,
            record.unscored,
            counts.calls,
            counts.throughput_per_s,
            100 * counts.hit_rate,
            counts.max_in_flight,
            counts.retries,
        )


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
        think: whether a thinking model thinks; None leaves it to the server.
        mutators: operators on one prompt; crossovers: on two. See `mutators/system_prompts.py`.
        on_generation: called with each generation's record, on the thread that runs the search.
        on_progress: called after each call with an `EvolutionProgress`, on any thread, one at a time.
        show_progress: whether stderr shows how far it is: a bar on a terminal, elsewhere a line now and then.

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
        think: Think | None = None,
        mutators: Sequence[Mutator] = INSTRUCTION_MUTATORS,
        crossovers: Sequence[Mutator] = INSTRUCTION_CROSSOVERS,
        on_generation: Callable[[Generation], None] = lambda _: None,
        on_progress: Callable[[EvolutionProgress], None] | None = None,
        show_progress: bool = False,
    ) -> None:
        if dispatcher is not None and model is None:
            raise ValueError("no model named; say which model of the server solves the problems: model=...")
        self.config = config or self._default_config()
        self._dispatcher = dispatcher
        self._task = task or bundled_task()
        prompts = [SEED_INSTRUCTIONS] if seed_prompts is None else seed_prompts
        self._seeds = [each if isinstance(each, Genome) else Genome(each) for each in prompts]
        self._model = model or SOLVER
        self._rewriter = Rewriter(model=mutator_model or model or MUTATOR, options=mutator_options or {})
        self._options, self._think = options, think
        self._mutators, self._crossovers = tuple(mutators), tuple(crossovers)
        self._on_generation, self._on_progress = on_generation, on_progress
        self._show_progress = show_progress
        self._pool: CallPool | None = None
        self._is_stopped = False
        self._latest: Generation | None = None
        self.results: dict[str, Any] = {}
        """Of the latest run, as `run_evolution` returns them; empty before its end. A run that Ctrl-C or an
        error broke off leaves those of the generations that were done."""

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
        where none is held out, or the run did not get there. `population` is the last one, best first.
        `history` has a `Generation` each, `births` a `Birth` for each genome that was tried. `ended` says why
        it was the last. A run that was stopped gives what it has, with `interrupted`, and `reason` says why,
        else None. All but `metrics` and `total_time` (seconds) depends on config, prompts and replies alone.

        Ctrl-C and errors are raised as they come; what was found by then stays in `results`:

            try:
                controller.run_evolution()
            except KeyboardInterrupt:
                print(controller.results["generations"], controller.results["best_prompt"])

        Raises:
            NothingScoredError: the calls failed so often that no prompt of the first population has a score.
            ValueError: the task has too few problems, or the seed prompts are no population.
            KeyboardInterrupt: Ctrl-C; calls under way are not waited for.
        """
        began_s = time.monotonic()
        self._latest, self.results = None, {}
        problems = divide(self._task, self.config)
        variation = Variation(
            mutators=self._mutators,
            crossovers=self._crossovers,
            rewriter=self._rewriter,
            examples=problems.examples,
            max_examples=self.config.max_examples,
            failures_shown=self.config.failures_shown,
        )
        with self._connection() as dispatcher, self._display(dispatcher, problems) as display:
            pool = self._pool = CallPool(dispatcher, self.config.schedule.concurrency)
            if self._is_stopped:
                pool.cancel()
            run = Evolution(
                self.config,
                pool,
                problems,
                variation,
                self._seeds,
                pipeline_for=lambda task, config: self._pipeline(
                    pool, task, config, lambda: self._end_call(pool, display)
                ),
                on_generation=lambda record: self._end_generation(record, display),
            )
            try:
                run.play()
            finally:
                pool.cancel()  # a call that waits for its next attempt would go on after Ctrl-C
                spent = {"metrics": self.metrics, "total_time": time.monotonic() - began_s}
                self.results = {**run.found, **spent}
        return self.results

    def stop(self) -> None:
        """End the run soon, for good: calls under way are waited for, no other is begun; from any thread."""
        self._is_stopped = True
        if self._pool is not None:
            self._pool.cancel()

    @staticmethod
    def _default_config() -> EvolutionConfig:
        return EvolutionConfig()

    def _pipeline(
        self, pool: CallPool, task: Task, config: EvolutionConfig, tick: Callable[[], None]
    ) -> AsyncEvaluationPipeline:
        return AsyncEvaluationPipeline(
            pool,
            task,
            model=self._model,
            config=config,
            options=self._options,
            think=self._think,
            tick=tick,
        )

    def _display(
        self, dispatcher: Dispatcher, problems: Problems
    ) -> AbstractContextManager[SearchProgress | None]:
        if not self._show_progress:
            return nullcontext()
        calls_each = self.config.most_calls(len(problems.panel.problems))
        return SearchProgress("generations", self._most_generations, dispatcher, calls_each=calls_each)

    @property
    def _most_generations(self) -> int:
        return self.config.max_generations + 1

    def _end_generation(self, record: Generation, display: SearchProgress | None) -> None:
        self._latest = record
        if display is not None:
            display.advance(record.generation + 1, record.best_fitness)
        self._on_generation(record)

    def _end_call(self, pool: CallPool, display: SearchProgress | None) -> None:
        latest = self._latest
        if display is not None:
            display.tick()
        if self._on_progress is not None:
            self._on_progress(
                EvolutionProgress(
                    generations=latest.generation + 1 if latest else 0,
                    of=self._most_generations,
                    calls=pool.counts().calls,
                    best_fitness=latest.best_fitness if latest else None,
                )
            )

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
            stack.enter_context(dispatcher.rate.limited(schedule.rate_per_minute))
            yield dispatcher


class AsyncEvolutionController(EvolutionController):
    """Runs an evolution beside an event loop; by default with many calls under way."""

    async def run_evolution_async(self) -> dict[str, Any]:
        """`run_evolution` on a thread: the loop stays free, and cancelling this stops the run.

        Ctrl-C under `asyncio.run` cancels it; what was found by then is in `results`, as it is after errors.
        """
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
