"""One evolution from its first population to its final comparison."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from scorers.comparison import compare
from search.call_pool import CallPool
from search.genetics.config import EvolutionConfig
from search.genetics.genome import Genome
from search.genetics.nursery import Nursery
from search.genetics.pipeline import AsyncEvaluationPipeline
from search.genetics.plans import SearchStoppedError
from search.genetics.population import Generation, Population
from search.genetics.problems import Problems
from search.genetics.trial import Evaluated, Trial
from search.genetics.variation import Variation
from search.plain import finite
from search.task import Task

_log = logging.getLogger(__name__)


class NothingScoredError(Exception):
    """No prompt could be scored, for the calls failed: there is nothing to evolve from."""


class Run:
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

    def play(self) -> dict[str, Any]:
        """Evolve, compare, and give the results as plain data.

        Raises:
            NothingScoredError: the first population has no prompt that was scored in full.
        """
        reason, held_out = None, None
        try:
            while not self._population.is_over and reason is None:
                reason = self._generation()
            if reason is None:
                held_out = self._compare()
        except SearchStoppedError:
            reason = "it was told to stop"
        return self._results(reason, held_out)

    def _generation(self) -> str | None:
        """Play one; why it must be the last, if it must."""
        population = self._population
        births, rival = population.ask(), population.rival
        panel = self._pipeline.panel
        nursery = Nursery(
            births,
            self._variation,
            population.known,
            lambda genome: Trial(genome, panel, rival),
            self._config.schedule.drafts_ahead,
        )
        self._pipeline.play(nursery.lanes())
        children = nursery.children()
        tried = [child.evaluated for child in children if child.evaluated is not None]
        self._seeds_scored |= {each.genome: each for each in tried if each.genome in self._seeds}
        record = population.tell(children)
        self._history.append(record)
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
            "seed_fitness": self._fitness_of(seed),
            "seed_prompt": seed.prompt,
            "held_out": held_out,
            "history": [record.to_json() for record in self._history],
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
