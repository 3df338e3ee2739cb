"""Evolution: a genetic search over system prompts, with many calls in flight under one cap.

    results = EvolutionController(EvolutionConfig(), dispatcher=..., model=...).run_evolution()
    results = await AsyncEvolutionController(AsyncEvolutionConfig.balanced()).run_evolution_async()

A child is a function on a thread: it rewords, then puts the panel's problems. Its chance is drawn
from a seed of its own, and a generation is taken in the order in which its children were asked for:
equal replies give equal results at any concurrency. Over a log of replies (`Dispatcher.keep_in`) a
run that begins anew asks for none of these again. Without a dispatcher the simulator answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
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
from ollama_utils.types import CALL_TIMEOUT_S, Completion, Think
from records.errors import RunStoppedError
from records.metrics import finite
from records.terminal import write_stderr
from scorers.comparison import compare
from search.async_llm import AsyncLLMInterface
from search.chance import seed_of
from search.evolution_config import AsyncEvolutionConfig, EvolutionConfig
from search.panel import AsyncEvaluationPipeline, Evaluated, divide
from search.progress import SearchProgress
from search.rewording import Breeder, Child, Rewriter
from search.task import SEED_INSTRUCTIONS, Task, bundled_task

MUTATOR = "sim-mutator"
"""The embedded server's model that rewords prompts."""

_log = logging.getLogger(__name__)


class NothingScoredError(Exception):
    """No prompt of the first population could be scored, for the calls failed."""


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
    """Of the best prompt so far; None before the first generation is done."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What a generation came to."""

    generation: int
    """0 is the first population."""
    best_fitness: float
    """Of the best prompt so far."""
    best_prompt: str
    mean_fitness: float
    """Over the population."""
    diversity: float
    """See `diversity`."""
    children: int
    """Prompts that were scored for the first time."""
    stopped: int
    """Children that were surely worse than the weakest elite before they were through."""
    unscored: int
    """Children of which too many calls failed."""
    duplicates: int
    """Children that were no new prompt: they cost their rewordings alone."""
    model_steps: int
    """Rewordings that a model was asked for."""
    failed_steps: int
    """Those of them whose call failed; they changed nothing."""
    step_error: str
    """Why the last of these failed."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain data, without the error, which may name a host."""
        return {name: value for name, value in asdict(self).items() if name != "step_error"}

    def metrics(self) -> dict[str, float | None]:
        """Its numbers by TensorBoard's names."""
        apart = ("generation", "best_prompt")
        numbers = {name: value for name, value in self.to_json().items() if name not in apart}
        return {f"evolve/{name}": value for name, value in numbers.items()}


class Population:
    """The prompts of a run: those that live, all that were scored, what each generation came to.

    Args:
        config: sizes.
        seeds: the prompts to begin with.

    Raises:
        ValueError: no seed, a blank one, the same one twice, or more than the population takes.
    """

    def __init__(self, config: EvolutionConfig, seeds: Sequence[str]) -> None:
        self._config, self.seeds = config, tuple(seed.strip() for seed in seeds)
        count, most = len(self.seeds), config.population_size
        if not 1 <= count <= most:
            raise ValueError(f"expected 1 to population_size ({most}) seed prompts, got {count}")
        if len(set(self.seeds)) < count:
            raise ValueError("the same seed prompt is given twice; give each one once")
        if not all(self.seeds):
            raise ValueError("a seed prompt is blank; expected a text")
        self.members: list[Evaluated] = []
        """Those that live, best first; the first was scored on the whole panel."""
        self.history: list[Generation] = []
        self.births: list[dict[str, Any]] = []
        """All that were scored, in order, with the places of their parents among them."""

    @property
    def elites(self) -> list[Evaluated]:
        """The best that were scored on the whole panel."""
        return [each for each in self.members if not each.stopped][: self._config.elites]

    @property
    def known(self) -> dict[str, float]:
        """The fitness of each prompt that ever had one."""
        births = [(birth["prompt"], birth["fitness"]) for birth in self.births]
        return {prompt: fitness for prompt, fitness in births if fitness is not None}

    @property
    def seed(self) -> str:
        """The best of the seeds; the first where none was scored."""
        known = self.known
        return max(self.seeds, key=lambda seed: known.get(seed, -1.0))

    @property
    def ending(self) -> str | None:
        """Why there is no further generation; None where there is one."""
        if len(self.history) > self._config.max_generations:
            return "all generations are done"
        # How long the best has been the best; it never falls.
        standing = [each.best_prompt == self.history[-1].best_prompt for each in self.history[1:]]
        if 0 < self._config.patience <= sum(standing):
            many = "s" * (sum(standing) > 1)
            return f"no better prompt in {sum(standing)} generation{many}"
        return None

    def take(self, children: Sequence[Child], scored: Mapping[str, Evaluated]) -> Generation:
        """Go on to the next generation: the best of members and children, so also the elites.

        Args:
            children: in the order in which they were asked for.
            scored: what the new prompts among theirs scored.

        Raises:
            NothingScoredError: no prompt has a fitness.
        """
        places = {birth["prompt"]: place for place, birth in enumerate(self.births)}
        new: dict[str, Evaluated] = {}
        for child in children:
            if child.text in new or child.text not in scored:
                continue
            new[child.text] = scored[child.text]
            places[child.text] = len(self.births)
            self.births.append(
                {
                    "generation": len(self.history),
                    "prompt": child.text,
                    "parents": [places[parent] for parent in child.parents],
                    "steps": list(child.steps),
                    "fitness": new[child.text].fitness,
                    "stopped": new[child.text].stopped,
                }
            )
        fit = [each for each in new.values() if each.fitness is not None]
        # A stable order: of equals the older one comes first.
        ranked = sorted(
            [*self.members, *fit], key=lambda each: (-(each.fitness or 0.0), each.stopped)
        )
        if not ranked:
            error = [each.error for each in new.values()][-1]
            raise NothingScoredError(f"no prompt of the first population could be scored: {error}")
        self.members = ranked[: self._config.population_size]
        fitnesses = [each.fitness or 0.0 for each in self.members]
        errors = [error for child in children for error in child.errors]
        self.history.append(
            Generation(
                generation=len(self.history),
                best_fitness=fitnesses[0],
                best_prompt=self.members[0].prompt,
                mean_fitness=fmean(fitnesses),
                diversity=diversity([each.prompt for each in self.members]),
                children=len(new),
                stopped=sum(each.stopped for each in new.values()),
                unscored=len(new) - len(fit),
                duplicates=len(children) - len(new),
                model_steps=sum(child.asked for child in children),
                failed_steps=len(errors),
                step_error=errors[-1] if errors else "",
            )
        )
        return self.history[-1]


def diversity(prompts: Sequence[str]) -> float:
    """The mean share of the words of two prompts that one of them lacks (Jaccard 1912), 0 to 1."""
    words = [set(prompt.casefold().split()) for prompt in prompts]
    shares = [len(a ^ b) / len(a | b) for a, b in combinations(words, 2)]
    return fmean(shares) if shares else 0.0


def paired(best: Sequence[float | None], seed: Sequence[float | None]) -> dict[str, Any]:
    """The scores of the best prompt beside those of the seed, as plain data; see `compare`.

    Args:
        best: by problem, each 0 to 1; None where there is none.
        seed: likewise.
    """
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
        model: that solves the problems; needed with a dispatcher.
        mutator_model: that rewords prompts; None is the same one.
        options: Ollama's options for the solving calls; the temperature is 0 unless they say
            otherwise.
        mutator_options: those for the rewording calls; each has a seed of its own.
        think: whether a thinking model thinks; None leaves it to the server.
        mutators: operators on one prompt; crossovers: on two. See `mutators/system_prompts.py`.
        on_generation: called with each generation's record, on the thread that runs the search.
        on_progress: called after each call, on any thread, one at a time.
        show_progress: whether stderr shows how far it is: a bar on a terminal, elsewhere a line now
            and then.

    Raises:
        ValueError: seed prompts that are no population.
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
        on_generation: Callable[[Generation], None] = lambda _: None,
        on_progress: Callable[[EvolutionProgress], None] = lambda _: None,
        show_progress: bool = False,
    ) -> None:
        self.config = self._default_config() if config is None else config
        self._population = Population(self.config, seed_prompts)
        self._dispatcher, self._task = dispatcher, task or bundled_task()
        self._model, self._options, self._think = model, options, think
        self._rewriter = Rewriter(
            model=mutator_model or model or MUTATOR, options=mutator_options or {}
        )
        self._mutators, self._crossovers = mutators, crossovers
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

        `best_prompt` and `best_fitness` are those of the best prompt that was scored on the whole
        panel, `seed_prompt` and `seed_fitness` of the best that it began with. `held_out` compares
        these two on the problems held out: their means `best` and `seed` over the problems that
        both have a reply to, and the fields of a `Comparison`, None where one is not finite; None
        itself where none is held out, or the run did not get there. `population` is the last one,
        best first; `history` has a `Generation` each. `births` has each prompt that was scored: the
        places of its parents among the births, and the steps that made it. `ended` says why it was
        the last generation, and `interrupted` whether it was stopped before. All but `metrics` and
        `total_time` (seconds) depends on config, prompts and replies alone.

        Ctrl-C and errors are raised as they come; what was found by then stays in `results`.

        Raises:
            NothingScoredError: the calls failed so often that no first prompt has a score.
            ValueError: the task has too few problems, or there is a dispatcher and no model.
            KeyboardInterrupt: Ctrl-C; calls in flight are not waited for.
        """
        self._is_stopped = False
        return self._run()

    def stop(self) -> None:
        """End the run that is under way; calls in flight are waited for; from any thread."""
        self._is_stopped = True
        if self._calls is not None:
            self._calls.cancel()

    def _run(self) -> dict[str, Any]:
        began_s, config = time.monotonic(), self.config
        panel, held_out = divide(self._task, config)
        self._population = Population(config, self._population.seeds)
        self._calls = calls = AsyncLLMInterface(
            self._dispatcher,
            model=self._model,
            max_concurrent_requests=config.at_once(config.max_concurrent_requests),
            rate_limit_per_minute=config.rate_limit_per_minute,
            timeout_s=config.async_timeout or CALL_TIMEOUT_S,
        )
        reason: str | None = "an error ended it"
        compared = None
        display: AbstractContextManager[SearchProgress | None] = nullcontext()
        if self._show_progress:
            total, most = config.max_generations + 1, config.most_calls(len(panel.problems))
            display = SearchProgress("generations", total, calls.dispatcher, calls_each=most)
        with closing(calls), display as self._progress:
            if self._is_stopped:
                calls.cancel()
            try:
                self._evolve(panel, calls)
                compared = self._compare(held_out, calls)
                reason = None
            except CallCancelledError:
                reason = "it was stopped"
                calls.drain()
            except KeyboardInterrupt:
                reason = "Ctrl-C ended it"
                raise
            finally:
                self.results = {
                    **self._results(panel, reason),
                    "held_out": compared,
                    "metrics": calls.metrics,
                    "total_time": time.monotonic() - began_s,
                }
        return self.results

    def _evolve(self, panel: Task, calls: AsyncLLMInterface) -> None:
        """Play the generations."""
        config, population = self.config, self._population
        breeder = Breeder(
            generate=lambda call: self._end_call(calls, calls.ask(call)),
            rewriter=self._rewriter,
            mutators=self._mutators,
            crossovers=self._crossovers,
            crossover_rate=config.crossover_rate,
            mutation_rate=config.mutation_rate,
            tournament_size=config.tournament_size,
            failures_shown=config.failures_shown,
        )
        pipeline = self._pipeline(panel, calls)
        while population.ending is None:
            record = population.take(*self._children(self._births(breeder), pipeline))
            if config.detailed_performance_logging:
                best = record.best_fitness
                _log.info("generation %d: best %s; %s", record.generation, best, calls.metrics)
            if self._progress is not None:
                self._progress.advance(record.generation + 1, record.best_fitness)
            self._on_generation(record)

    def _births(self, breeder: Breeder) -> list[Callable[[], Child]]:
        """What makes each child of the next generation."""
        config, population = self.config, self._population
        generation, seeds, members = len(population.history), population.seeds, population.members
        places = range(config.population_size - len(population.elites))
        keys = [seed_of(config.seed, "birth", generation, place) for place in places]
        if generation == 0:
            unchanged = [partial(Child, text=seed, parents=()) for seed in seeds]
            mutated = [
                # After one to three mutators, for few texts are one rewording away from a seed.
                partial(breeder.mutation, seeds[place % len(seeds)], keys[place], 1 + place % 3)
                for place in places[len(seeds) :]
            ]
            return [*unchanged, *mutated]
        texts = [each.prompt for each in members]
        fitnesses = [each.fitness or 0.0 for each in members]
        failures = {each.prompt: each.failures for each in members}
        return [partial(breeder.child, texts, fitnesses, key, failures) for key in keys]

    def _children(
        self, births: Sequence[Callable[[], Child]], pipeline: AsyncEvaluationPipeline
    ) -> tuple[list[Child], dict[str, Evaluated]]:
        """The children of a generation, each on a thread of its own, and the scores of new ones."""
        config, elites = self.config, self._population.elites
        rival = elites[-1] if len(elites) == config.elites else None
        begun: dict[str, object] = dict(self._population.known)
        scored = {}

        def play(birth: Callable[[], Child]) -> Child:
            child = birth()
            if (
                begun.setdefault(child.text, child) is child
            ):  # one of several equal ones, atomically
                scored[child.text] = pipeline.score(child.text, rival)
            return child

        width = config.at_once(config.genome_batch_size)
        return list(iterate_parallel(play, births, width)), scored

    def _compare(self, held_out: Task, calls: AsyncLLMInterface) -> dict[str, Any] | None:
        """The best prompt and the best seed on the problems held out, paired."""
        if not held_out.problems:
            return None
        prompts = [self._population.members[0].prompt, self._population.seed]
        best, seed = (each.scores for each in self._pipeline(held_out, calls).evaluate(prompts))
        return paired(best, seed)

    def _results(self, panel: Task, reason: str | None) -> dict[str, Any]:
        """What was found so far; `reason`: why it ended before its end, if it did."""
        population = self._population
        best, seed = next(iter(population.members), None), population.seed
        return {
            "best_fitness": best.fitness if best else None,
            "best_prompt": best.prompt if best else None,
            "seed_fitness": population.known.get(seed),
            "seed_prompt": seed,
            "population": [
                {"prompt": each.prompt, "fitness": each.fitness, "stopped": each.stopped}
                for each in population.members
            ],
            "history": [record.to_json() for record in population.history],
            "births": population.births,
            "generations": len(population.history),
            "genomes": len(population.known),
            "panel_size": len(panel.problems),
            "task": panel.name,
            "seed": self.config.seed,
            "ended": reason or population.ending,
            "interrupted": reason is not None,
        }

    def _pipeline(self, task: Task, calls: AsyncLLMInterface) -> AsyncEvaluationPipeline:
        return AsyncEvaluationPipeline(
            calls,
            task,
            config=self.config,
            options=self._options,
            think=self._think,
            on_reply=partial(self._end_call, calls),
        )

    def _end_call(self, calls: AsyncLLMInterface, reply: Completion) -> Completion:
        """Say how far it is, after each call."""
        with self._lock:
            if self._progress is not None:
                self._progress.tick()
            history = self._population.history
            self._on_progress(
                EvolutionProgress(
                    generations=len(history),
                    of=self.config.max_generations + 1,
                    calls=int(calls.metrics["calls"]),
                    best_fitness=history[-1].best_fitness if history else None,
                )
            )
        return reply


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
            self.stop()
            await asyncio.gather(running, return_exceptions=True)
            raise


def evolve_task(
    config: EvolutionConfig,
    record: Callable[..., None],
    **parts: Any,  # noqa: ANN401 - those of a controller
) -> dict[str, Any]:
    """Evolve to the end; the results as `EvolutionController.run_evolution` has them.

    Args:
        config: how.
        record: called after each generation with its number, its metrics, and by keyword `done`
            (how many generations are) and `best` (the best fitness).
        parts: of the controller, as its task and its model.

    Raises:
        RunStoppedError: nothing could be scored, or the evolution was stopped.
    """

    def record_generation(made: Generation) -> None:
        record(made.generation, made.metrics(), done=made.generation + 1, best=made.best_fitness)
        if made.failed_steps:
            write_stderr(
                f"generation {made.generation}: {made.failed_steps} of {made.model_steps} "
                f"rewordings by model failed: {' '.join(made.step_error.split())}"
            )

    controller = EvolutionController(config, on_generation=record_generation, **parts)
    try:
        results = controller.run_evolution()
    except NothingScoredError as error:
        raise RunStoppedError(f"{error}; see whether the server answers, then go on") from error
    if results.pop("interrupted"):
        raise RunStoppedError(f"the evolution stopped: {results['ended']}")
    return results
