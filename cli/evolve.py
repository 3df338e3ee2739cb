"""Evolve a system prompt for a task: a genetic search whose fitness is what a model answers.

Run it with `mutagym evolve --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --task mine.jsonl`;
without any flag it evolves on the bundled task and the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cli.formats import new_table, number, p_value, percent, with_interval
from cli.search_settings import (
    LimitedCallFlags,
    SearchConfig,
    load_task,
    located_prompt,
    prompt_fingerprints,
    read_prompt,
    task_fingerprint,
)
from cli.searching import Found, Search, SearchRecorder, open_session
from ollama_utils.connect import Connection, ServerConfig
from ollama_utils.types import think_of
from records.errors import RunStoppedError, UserError
from records.settings import Count, CountOrZero, with_flags
from records.terminal import write_stderr
from search.genetics.config import PRESETS, AsyncEvolutionConfig

if TYPE_CHECKING:
    from rich.table import Table

    from search.genetics.fitness import Problems
    from search.genetics.population import Generation
    from search.task import Task

MAY_CHANGE = (
    *("enable-async-evaluation", "max-concurrent-requests", "genome-batch-size", "max-concurrent-genomes"),
    *("async-timeout", "detailed-performance-logging", "max-generations", "patience"),
)
"""The options of its own that a resumed evolution may change."""
PANEL_SIZE = 40
"""Problems that prompts are scored on where nothing else is said, and there are as many."""
MOST_GENERATIONS = 12
"""Generations that the table shows, evenly spaced; metrics.jsonl has them all."""
HELD_OUT = (
    "On problems that the search did not see: the share that is solved, and the difference to the seed "
    "prompt in points, with a 95 % interval, paired by problem. p: a test of no difference (McNemar's for "
    "right or wrong answers, else sign flips). n: the problems that both have a score for; the others, "
    "{left_out} of {all} (a call failed), are left out of both rows."
)
HISTORY = (
    "Solved: of those problems of the panel that have a score, the same panel for all prompts; best: by the "
    "best prompt so far. Stopped: children that were surely worse than the weakest of the elite before they "
    "were through. Unscored: children of which too many calls failed; they are no parents. Failed: "
    "rewordings by model that got no reply; rules took their place."
)


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class EvolutionFlags(AsyncEvolutionConfig):
    """An evolution that ends within half an hour on a model that answers 5 calls a second."""

    population_size: Count = 16
    """Prompts in a generation, at least 2."""
    max_generations: CountOrZero = 10
    """Generations of children after the first population; 0 scores the first population alone."""
    panel_size: Count | None = None
    """Problems that every prompt is scored on, the same in all generations [40, or all where there are fewer
    that are neither held out nor set apart as examples]."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvolveConfig:
    """All settings of `mutagym evolve`. Defaults < --preset < --config FILE < flags."""

    preset: Literal["balanced", "conservative", "aggressive"] | None = None
    """What the flags of the evolution are where they are not given; the three differ in calls at once, and
    set limits of the rate for servers that have one [balanced, without such a limit]."""
    seed_prompt: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A prompt to begin with, as text or as a file (repeatable) [a plain one]."""
    evolution: EvolutionFlags = field(default_factory=EvolutionFlags)
    calls: LimitedCallFlags = field(default_factory=LimitedCallFlags)
    search: SearchConfig = field(default_factory=SearchConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> EvolveConfig:
        """The same with absolute paths, and each setting where it takes effect.

        The seed and the limit of the rate are flags of every search, the timeout is one of the server.
        """
        server, timeout_s = self.server.located(), self.evolution.async_timeout
        return replace(
            self,
            seed_prompt=tuple(map(located_prompt, self.seed_prompt)),
            evolution=replace(
                self.evolution,
                elite_size=self.evolution.elites,
                seed=self.search.seed,
                rate_limit_per_minute=self.search.rate_limit_per_minute or None,
                async_timeout=None,
            ),
            search=replace(
                self.search.located(), rate_limit_per_minute=self.search.rate_limit_per_minute or 0.0
            ),
            server=replace(server, call_timeout_s=timeout_s) if timeout_s else server,
        )


def preset_defaults(name: str | None) -> dict[str, Any]:
    """The flags that a preset sets, for what is not given; without one, `balanced` without its limit.

    A name that there is not sets none: it is refused as any bad flag is.
    """
    changed = PRESETS.get(name or "balanced", {})
    flags = {field.replace("_", "-"): value for field, value in changed.items()}
    if name is not None and name in PRESETS:
        flags["rate-limit-per-minute"] = AsyncEvolutionConfig.preset(name).rate_limit_per_minute
    return flags


def evolve(config: EvolveConfig = EvolveConfig()) -> None:
    """Evolve a system prompt for a task; the best one is compared with the seed prompt on held-out problems.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    config = config.located()
    config.search.check_places()
    seeds = [read_prompt(text, "--seed-prompt") for text in config.seed_prompt]
    task = load_task(config.search)
    problems = _divided(config.evolution, seeds, task)
    panel_size = len(problems.panel.problems)
    if config.evolution.panel_size is None and not config.search.resume:  # older runs took all
        panel_size = min(panel_size, PANEL_SIZE)
        config = replace(config, evolution=replace(config.evolution, panel_size=panel_size))
    from search.task import SEED_INSTRUCTIONS, ask_problem

    evolution = config.evolution
    held_out = len(problems.held_out.problems) if problems.held_out else 0
    with open_session("evolve", config, simulated_target="sim-solver", may_change=MAY_CHANGE) as session:
        connection = session.connection
        session.keep_replies(connection.digests(""))
        found = session.run(
            Search(
                config=config,
                says=f"{evolution.population_size} prompts, "
                f"{_counted(evolution.max_generations, 'generation')}, "
                f"{_counted(panel_size, 'problem')} of {len(task.problems)}",
                what="generations",
                total=evolution.max_generations + 1,
                calls_each=evolution.most_calls(panel_size),
                most_calls=evolution.most_calls_in_all(panel_size, held_out),
                width=evolution.schedule.concurrency,
                fingerprints=task_fingerprint(task)
                | prompt_fingerprints({f"seed {place}": text for place, text in enumerate(seeds)}),
                first=[
                    ask_problem(
                        task.problems[0],
                        seeds[0] if seeds else SEED_INSTRUCTIONS,
                        model=connection.roles.target,
                        options=config.calls.options,
                        think=think_of(config.calls.think),
                        seed=config.search.seed,
                    )
                ],
                run=lambda recorder: _evolve(config, task, seeds, connection, recorder),
            )
        )
        report = {key: value for key, value in found.results.items() if key != "births"}
        parts = [
            ([_history(report)], f"{_ending(report)} {HISTORY}"),
            ([_held_out(report)], _held_out_says(report)),
        ]
        session.report(report, parts, ["best prompt:", str(report["best_prompt"])])


def _evolve(
    config: EvolveConfig, task: Task, seeds: Sequence[str], connection: Connection, recorder: SearchRecorder
) -> Found:
    """Evolve, and record each generation.

    Raises:
        RunStoppedError: nothing could be scored, or the evolution ended before its time.
    """
    from search.evolution import AsyncEvolutionController, NothingScoredError

    def record_generation(generation: Generation) -> None:
        done, best = generation.generation + 1, generation.best_fitness
        recorder.record(generation.generation, _metrics(generation), done=done, best=best)
        if generation.failed_steps:
            write_stderr(_failed(generation))

    controller = AsyncEvolutionController(
        config.evolution,
        dispatcher=connection.dispatcher,
        task=task,
        seed_prompts=list(seeds) or None,
        model=connection.roles.target,
        mutator_model=connection.roles.mutator,
        options=config.calls.options,
        mutator_options=config.calls.options,
        think=think_of(config.calls.think),
        on_generation=record_generation,
    )
    try:
        results = controller.run_evolution()
    except NothingScoredError as error:
        raise RunStoppedError(str(error)) from error
    if results.pop("interrupted"):
        raise RunStoppedError(f"the evolution stopped: {results['reason']}")
    spent = {key: results.pop(key) for key in ("metrics", "total_time")}
    del results["reason"]
    return Found(results=results, spent=spent, files={"best_prompt.txt": f"{results['best_prompt']}\n"})


def _divided(evolution: EvolutionFlags, seeds: Sequence[str], task: Task) -> Problems:
    """The problems by use; what can be checked without a server is.

    Raises:
        UserError: the seed prompts are no population, or the task has too few problems.
    """
    from search.genetics.fitness import divide

    if len(set(seeds)) < len(seeds):
        raise UserError("--seed-prompt: the same prompt is given twice; give each one once")
    if len(seeds) > evolution.population_size:
        raise UserError(
            f"--seed-prompt is given {len(seeds)} times; expected at most --population-size, "
            f"{evolution.population_size}"
        )
    try:
        return divide(task, evolution)
    except ValueError as error:
        raise UserError(with_flags(error)) from error


def _metrics(record: Generation) -> dict[str, float | None]:
    """A generation's numbers by TensorBoard's names."""
    names = ("best_fitness", "mean_fitness", "diversity", "crossover_rate", "mutation_rate")
    counts = ("children", "stopped", "unscored", "unscored_problems", "duplicates")
    steps = ("model_steps", "failed_steps")
    return {f"evolve/{name}": getattr(record, name) for name in names + counts + steps}


def _failed(record: Generation) -> str:
    """The line on a generation whose rewordings failed."""
    failed = f"{record.failed_steps} of {_counted(record.model_steps, 'rewording')} by model failed"
    error = " ".join(record.step_error.split())
    return f"generation {record.generation}: {failed}: {error}; rules took their place"


def _history(report: Mapping[str, Any]) -> Table:
    history = report["history"]
    children, unscored = (sum(record[name] for record in history) for name in ("children", "unscored"))
    title = (
        f"{report['task']}: {_counted(children, 'prompt')} in "
        f"{_counted(report['generations'], 'generation')}, {unscored} of them unscored, each on "
        f"{_counted(report['panel_size'], 'problem')}"
    )
    counts = ("children", "stopped", "unscored")
    table = new_table(title, "generation", "best, solved %", "mean, solved %", "diversity", *counts, "failed")
    for record in _spaced(history):
        table.add_row(
            str(record["generation"]),
            *(percent(record[name]) for name in ("best_fitness", "mean_fitness")),
            number(record["diversity"], "{:.3f}"),
            *(str(record[name]) for name in counts),
            f"{record['failed_steps']} of {record['model_steps']}",
        )
    return table


def _ending(report: Mapping[str, Any]) -> str:
    """Why it ended, and how much of it the table shows."""
    total, shown = len(report["history"]), len(list(_spaced(report["history"])))
    some = f" {shown} of {total} generations shown; metrics.jsonl has all." if shown < total else ""
    return f"Ended: {report['ended']}.{some}"


def _held_out_says(report: Mapping[str, Any]) -> str:
    counts = report["held_out"] or {"queries": 0, "left_out": 0}
    return HELD_OUT.format(left_out=counts["left_out"], all=counts["queries"] + counts["left_out"])


def _held_out(report: Mapping[str, Any]) -> Table:
    table = new_table("held-out problems", "", "solved %", "difference, points", "p", "n")
    told = report["held_out"]
    if told:
        difference = with_interval(told, "difference", "{:+.1f}", 100)
        table.add_row("seed prompt", percent(told["seed"]), "", "", str(told["queries"]))
        table.add_row(
            "best prompt",
            percent(told["best"]),
            difference,
            p_value(told["p_value"]),
            str(told["queries"]),
        )
    return table


def _spaced(history: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The first, the last, and some between."""
    last, shown = len(history) - 1, min(MOST_GENERATIONS, len(history))
    for place in range(shown):
        yield history[round(place * last / max(shown - 1, 1))]


def _counted(number_of: int, what: str) -> str:
    """`1 generation`, `2 generations`."""
    return f"{number_of} {what}" if number_of == 1 else f"{number_of} {what}s"
