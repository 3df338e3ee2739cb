"""Evolution: a genetic search over system prompts, with many calls in flight under one cap.

    results = EvolutionController(EvolutionConfig(), dispatcher=..., model=...).run_evolution()
    results = await AsyncEvolutionController(AsyncEvolutionConfig()).run_evolution_async()

Each child is reworded and scored on a thread, with chance of its own, and a generation takes them
in the order in which they were begun: equal replies give equal results at any concurrency. Over a
log of replies (`Dispatcher.keep_in`) a run that begins anew asks for none of these again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from statistics import fmean
from typing import Any

from mutators.mutator import Mutator
from mutators.system_prompts import INSTRUCTION_CROSSOVERS, INSTRUCTION_MUTATORS
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.parallel import iterate_parallel
from ollama_utils.types import CALL_TIMEOUT_S, Call, Think
from records.errors import RunStoppedError
from records.metrics import finite
from scorers.comparison import compare
from search.async_llm import AsyncLLMInterface
from search.evolution_config import AsyncEvolutionConfig, EvolutionConfig
from search.genetics import Breeder, Child
from search.panel import AsyncEvaluationPipeline, Evaluated, divide
from search.session import SearchProgress
from search.task import SEED_INSTRUCTIONS, Task, bundled_task

MUTATOR = "sim-mutator"
"""The embedded server's model that rewords prompts."""

_log = logging.getLogger(__name__)

Record = dict[str, Any]
"""A generation as plain data.

`generation` is its number, 0 that of the first population. `best_fitness` and `best_prompt` are of
the best so far, `mean_fitness` and `diversity` of the population; the latter is the mean share of
the words of two prompts that only one of them has (Jaccard 1912). Of its prompts so many `children`
were scored for the first time; of these, `stopped` ones were surely worse than the weakest elite
before all problems were asked, and `unscored` ones have no fitness, as too many calls failed.
`duplicates` were no new prompt. `model_steps` are rewordings by a model, `failed_steps` those of
them whose call failed, `step_error` why the last of these did; it is not in the results, as it may
name a host.
"""


class NothingScoredError(RunStoppedError):
    """No prompt of the first population could be scored, for the calls failed."""


@dataclass(frozen=True, kw_only=True)
class EvolutionProgress:
    """How far an evolution is: generations done, of how many at most, and calls that ended."""

    generations: int
    of: int
    calls: int
    best_fitness: float | None
    """None before the first population is scored."""


class Population:
    """The prompts of a run: those that live, what all scored, and a record a generation.

    Raises ValueError if there is no seed, a blank one or one twice, or more than are to live.
    """

    def __init__(self, config: EvolutionConfig, seeds: Sequence[str]) -> None:
        self._config, self.seeds = config, tuple(seed.strip() for seed in seeds)
        count, most = len(self.seeds), config.population_size
        if not 1 <= count <= most:
            raise ValueError(f"expected 1 to population_size ({most}) seed prompts, got {count}")
        if len(set(self.seeds)) < count or not all(self.seeds):
            raise ValueError("the same seed prompt is given twice, or one is blank")
        self.members: list[Evaluated] = []
        """Those that live, best first; the first was scored on the whole panel."""
        self.history: list[Record] = []
        self.births: list[dict[str, Any]] = []
        """All that were scored, in order, with the indices of their parents in this list."""
        self.known: dict[str, float] = {}
        """The fitness of each prompt that ever had one."""

    @property
    def elites(self) -> list[Evaluated]:
        """The best that were scored on the whole panel."""
        return [each for each in self.members if not each.stopped][: self._config.elites]

    @property
    def seed(self) -> str:
        """The best of the seeds; the first where none was scored."""
        return max(self.seeds, key=lambda seed: self.known.get(seed, -1.0))

    @property
    def ending(self) -> str | None:
        """Why there is no further generation; None where there is one."""
        if len(self.history) > self._config.max_generations:
            return "all generations are done"
        # The best fitness never falls: equal prompts stand at the end.
        same = [each["best_prompt"] == self.members[0].prompt for each in self.history[1:]]
        if 0 < self._config.patience <= sum(same):
            return f"no better prompt in {sum(same)} generation{'s' * (sum(same) > 1)}"
        return None

    def take(self, children: Sequence[Child], scored: Mapping[str, Evaluated]) -> Record:
        """Go on to the next generation: the best of members and children, so also the elites.

        The children are in the order in which they were begun, `scored` has their new prompts.

        Raises:
            NothingScoredError: no prompt has a fitness.
        """
        index_of = {birth["prompt"]: index for index, birth in enumerate(self.births)}
        new: dict[str, Evaluated] = {}
        for child in children:
            if child.text in scored and child.text not in new:
                found = new[child.text] = scored[child.text]
                index_of[child.text] = len(self.births)
                self.births.append(
                    {
                        "generation": len(self.history),
                        "prompt": child.text,
                        "parents": [index_of[parent] for parent in child.parents],
                        "steps": [step.name for step in child.steps],
                        "fitness": found.fitness,
                        "stopped": found.stopped,
                    }
                )
        fit = [each for each in new.values() if each.fitness is not None]
        self.known |= {each.prompt: each.fitness or 0.0 for each in fit}
        # A stable order: of equals the older one comes first.
        ranked = sorted(
            [*self.members, *fit], key=lambda each: (-(each.fitness or 0.0), each.stopped)
        )
        if not ranked:
            raise NothingScoredError(
                f"no prompt of the first population could be scored: {found.error}; see whether "
                "the server answers, then go on"
            )
        self.members = ranked[: self._config.population_size]
        errors = [error for child in children for error in child.errors]
        record = {
            "generation": len(self.history),
            "best_fitness": self.members[0].fitness,
            "best_prompt": self.members[0].prompt,
            "mean_fitness": fmean(each.fitness or 0.0 for each in self.members),
            "diversity": _diversity([each.prompt for each in self.members]),
            "children": len(new),
            "stopped": sum(each.stopped for each in new.values()),
            "unscored": len(new) - len(fit),
            "duplicates": len(children) - len(new),
            "model_steps": sum(step.kind == "model" for child in children for step in child.steps),
            "failed_steps": len(errors),
        }
        self.history.append(record)
        return {**record, "step_error": errors[-1] if errors else ""}

    def to_json(self) -> dict[str, Any]:
        """What was found so far; see `EvolutionController.run_evolution`."""
        best = next(iter(self.members), None)
        return {
            "best_fitness": best.fitness if best else None,
            "best_prompt": best.prompt if best else None,
            "seed_fitness": self.known.get(self.seed),
            "seed_prompt": self.seed,
            "population": [
                {"prompt": each.prompt, "fitness": each.fitness, "stopped": each.stopped}
                for each in self.members
            ],
            "history": self.history,
            "births": self.births,
            "generations": len(self.history),
            "genomes": len(self.known),
        }


def _diversity(prompts: Sequence[str]) -> float:
    words = [set(prompt.casefold().split()) for prompt in prompts]
    shares = [len(a ^ b) / len(a | b) for a, b in combinations(words, 2)]
    return fmean(shares) if shares else 0.0


def paired(best: Sequence[float | None], seed: Sequence[float | None]) -> dict[str, Any]:
    """The scores of the best prompt beside those of the seed, by problem; see `compare`."""
    pairs = zip(best, seed, strict=True)
    both = [(mine, seeds) for mine, seeds in pairs if mine is not None and seeds is not None]
    best_mean, seed_mean = map(fmean, zip(*both, strict=True)) if both else (None, None)
    trials = [[[] if score is None else [score] for score in each] for each in (best, seed)]
    return {"best": best_mean, "seed": seed_mean, **finite(asdict(compare(*trials)))}


class EvolutionController:
    """Runs an evolution.

    Args:
        config: an EvolutionConfig, one call at a time, or an AsyncEvolutionConfig; None is the
            default one.
        dispatcher: sends the calls, and all who use it are held to the config's rate limit during
            the run; None starts the simulator for the run, and says so in the log.
        task: the problems; None is the bundled task.
        seed_prompts: what to begin with.
        model: solves the problems; needed with a dispatcher.
        mutator_model: rewords prompts; None is the same one.
        options: Ollama's, of the solving calls; the temperature is 0 unless set.
        mutator_options: those of the rewording calls; each has a seed of its own.
        think: whether a thinking model thinks; None leaves it to the server.
        mutators: operators on one prompt; crossovers: on two. See `mutators/system_prompts.py`.
        on_generation: called with each generation's record, on the thread that runs the search.
        on_progress: called after each call, on any thread, one at a time.
        show_progress: whether stderr shows how far it is.

    Raises:
        ValueError: seed prompts that are no population, or no mutator.
    """

    _default_config: type[EvolutionConfig] = EvolutionConfig

    def __init__(  # noqa: PLR0913 - each is a setting of its own, given by name
        self,
        config: EvolutionConfig | None = None,
        *,
        dispatcher: Dispatcher | None = None,
        task: Task | None = None,
        seed_prompts: Sequence[str] = (SEED_INSTRUCTIONS,),
        model: str | None = None,
        mutator_model: str | None = None,
        options: Mapping[str, Any] | None = None,
        mutator_options: Mapping[str, Any] | None = None,
        think: Think | None = None,
        mutators: Sequence[Mutator] = INSTRUCTION_MUTATORS,
        crossovers: Sequence[Mutator] = INSTRUCTION_CROSSOVERS,
        on_generation: Callable[[Record], None] = lambda _: None,
        on_progress: Callable[[EvolutionProgress], None] = lambda _: None,
        show_progress: bool = False,
    ) -> None:
        self.config = config = self._default_config() if config is None else config
        self._population = Population(config, seed_prompts)
        self._dispatcher, self._model, self._task = dispatcher, model, task or bundled_task()
        rewording = mutator_model or model or MUTATOR
        self._breeder = partial(
            Breeder,
            template=Call(model=rewording, prompt="", options=mutator_options or {}),
            seeds=self._population.seeds,
            rules=config,
            mutators=mutators,
            crossovers=crossovers,
        )
        self._pipeline = partial(
            AsyncEvaluationPipeline, config=config, options=options, think=think
        )
        self._on_generation, self._on_progress = on_generation, on_progress
        self._show_progress = show_progress
        self._progress: SearchProgress | None = None
        self._lock = threading.Lock()
        self._calls: AsyncLLMInterface | None = None
        self._is_stopped = False
        self.results: dict[str, Any] = {}
        """Of the latest run, as `run_evolution` returns them; empty before. A run that Ctrl-C or an
        error ended leaves those of the generations that were done."""

    def run_evolution(self) -> dict[str, Any]:
        """Evolve to the end; the results as plain data, ready for JSON.

        - `best_prompt`, `best_fitness`: the best prompt that was scored on the whole panel.
        - `seed_prompt`, `seed_fitness`: the best of the prompts that it began with.
        - `held_out`: the means `best` and `seed` of the two on the problems held out, where both
          have a reply, and the fields of a `Comparison`. None: the run did not get there.
        - `population`: the last one, the best first; `history`: a `Record` for each generation.
        - `births`: each prompt that was scored, with the indices of its parents in this list.
        - `generations`, `genomes`: how many there were, and how many prompts have a fitness.
        - `panel_size`, `task`, `seed`: what the prompts were scored on.
        - `ended`, `interrupted`: why the run ended, and whether that was before its end.
        - `metrics`, `total_time`: of the calls, and in seconds. All else is the same each time.

        Raises:
            NothingScoredError: the calls failed so often that no first prompt has a score.
            ValueError: the task has too few problems, or there is a dispatcher and no model.
            KeyboardInterrupt: Ctrl-C; calls in flight are not waited for.
        """
        self._is_stopped = False
        return self._run()

    def _run(self) -> dict[str, Any]:
        began_s, config = time.monotonic(), self.config
        panel, held_out = divide(self._task, config)
        self._population = population = Population(config, self._population.seeds)
        ended, compared = "Ctrl-C or an error ended it", None
        with ExitStack() as stack:
            self._calls = calls = AsyncLLMInterface(
                self._dispatcher,
                model=self._model,
                max_concurrent_requests=config.at_once(config.max_concurrent_requests),
                rate_limit_per_minute=config.rate_limit_per_minute,
                timeout_s=config.async_timeout or CALL_TIMEOUT_S,
                on_reply=self._report_progress,
            )
            stack.enter_context(closing(calls))
            if self._show_progress:
                total, most = config.max_generations + 1, config.most_calls(len(panel.problems))
                display = SearchProgress("generations", total, calls.dispatcher, calls_each=most)
                self._progress = stack.enter_context(display)
            if self._is_stopped:
                calls.cancel()
            try:
                self._evolve(self._breeder(generate=calls.ask), self._pipeline(calls, panel))
                if held_out.problems:
                    prompts = [population.members[0].prompt, population.seed]
                    found = self._pipeline(calls, held_out).evaluate(prompts)
                    compared = paired(*(each.scores for each in found))
                ended = ""
            except CallCancelledError:
                ended = "it was stopped"
                calls.drain()
            finally:
                self.results = {
                    **population.to_json(),
                    "panel_size": len(panel.problems),
                    "task": panel.name,
                    "seed": config.seed,
                    "ended": ended or population.ending,
                    "interrupted": bool(ended),
                    "held_out": compared,
                    "metrics": calls.metrics,
                    "total_time": time.monotonic() - began_s,
                }
        return self.results

    def _evolve(self, breeder: Breeder, pipeline: AsyncEvaluationPipeline) -> None:
        """Play the generations."""
        population = self._population
        while population.ending is None:
            record = population.take(*self._children(breeder, pipeline))
            number, best = record["generation"], record["best_fitness"]
            if self.config.detailed_performance_logging and self._calls:
                _log.info("generation %d: best %s; %s", number, best, self._calls.metrics)
            if self._progress is not None:
                self._progress.advance(number + 1, best)
            self._on_generation(record)

    def _children(
        self, breeder: Breeder, pipeline: AsyncEvaluationPipeline
    ) -> tuple[list[Child], dict[str, Evaluated]]:
        """The children of a generation, each on a thread of its own, and the scores of new ones."""
        config, population, elites = self.config, self._population, self._population.elites
        generation = len(population.history)
        ranked = [(each.prompt, each.fitness or 0.0, each.failures) for each in population.members]
        rival = elites[-1] if len(elites) == config.elites else None
        begun: dict[str, object] = dict(population.known)
        scored: dict[str, Evaluated] = {}

        def play(index: int) -> Child:
            child = breeder.breed(generation, index, ranked)
            if begun.setdefault(child.text, child) is child:  # the first of equal ones, atomically
                scored[child.text] = pipeline.score(child.text, rival)
            return child

        indices = range(config.population_size - len(elites))
        children = iterate_parallel(play, indices, config.at_once(config.genome_batch_size))
        return list(children), scored

    def _report_progress(self) -> None:
        """Say how far it is, after each call."""
        with self._lock:
            if self._progress is not None:
                self._progress.tick()
            history = self._population.history
            self._on_progress(
                EvolutionProgress(
                    generations=len(history),
                    of=self.config.max_generations + 1,
                    calls=int(self._calls.metrics["calls"]) if self._calls else 0,
                    best_fitness=history[-1]["best_fitness"] if history else None,
                )
            )


class AsyncEvolutionController(EvolutionController):
    """Runs an evolution beside an event loop; by default with many calls in flight."""

    _default_config = AsyncEvolutionConfig

    async def run_evolution_async(self) -> dict[str, Any]:
        """`run_evolution` on a thread: the loop stays free, and cancelling this stops the run.

        Ctrl-C under `asyncio.run` cancels it; what was found by then is in `results`.
        """
        self._is_stopped = False
        running = asyncio.create_task(asyncio.to_thread(self._run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._is_stopped = True
            if self._calls is not None:
                self._calls.cancel()
            await running  # and for the calls in flight
            raise
