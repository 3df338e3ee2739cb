"""Evolve a system prompt for a task: a genetic search whose fitness is what a model answers.

Run it with `mutagym evolve --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --task mine.jsonl`;
without any flag it evolves on the bundled task and the simulator.

The flags of `mutagym evolve`: the fields of `search.evolution.AsyncEvolutionConfig`, over a preset.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from cli.search_settings import (
    SearchConfig,
    load_task,
    located_prompt,
    prints_of,
    prompt_prints,
    read_prompt,
    with_flags,
)
from cli.searching import Outcome, Parts, Search, carry_out
from cli.tables import new_table, number, p_value, with_interval
from ollama_utils.connect import Connection, ServerConfig
from records.errors import RunStoppedError, UserError
from records.settings import Count, Positive, Share
from search.task import LimitedCallFlags

if TYPE_CHECKING:
    from search.evolution import AsyncEvolutionConfig

_ZERO_IS_NONE = {"early_stop_level", "patience"}
CountOrNone = Annotated[int, Parameter(validator=Number(gte=0))]
"""A whole number, 0 included."""


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class EvolutionFlags:
    """How prompts evolve; what is not given is as the preset says."""

    population_size: Count | None = None
    """Prompts in a generation [50]."""
    max_generations: CountOrNone | None = None
    """Generations of children after the first population [100]."""
    crossover_rate: Share | None = None
    """The share of children made from two parents; the others are always mutated [0.8]."""
    mutation_rate: Share | None = None
    """The share of children that are mutated again [0.2]."""
    elite_size: Count | None = None
    """The best prompts, kept as they are, at most half of the population [5, or half of a smaller one]."""
    tournament_size: Count | None = None
    """Prompts that meet in a tournament [3]."""
    selection: Literal["tournament", "rank", "roulette"] | None = None
    """How parents are chosen [tournament]."""
    adaptive_rates: bool | None = None
    """Whether the rates follow what helps [yes]."""
    panel_size: Count | None = None
    """Problems that every prompt is scored on, the same in all generations [all that are neither held out nor
    set apart as examples]."""
    held_out: Share | None = None
    """The share of the problems that only the final comparison sees; 0 makes none [0.3]."""
    max_examples: CountOrNone | None = None
    """The most worked examples in a prompt [2]."""
    example_pool: CountOrNone | None = None
    """Problems set apart to be shown as examples [10]."""
    max_unscored: Share | None = None
    """A prompt with a larger share of its problems unscored is no parent and no elite [0.1]."""
    early_stop_level: Annotated[Share | None, Parameter(name=("--early-stop-level", "--hopeless"))] = None
    """The chance of stopping a prompt early that is no worse than the weakest elite; 0 stops none [0.05]."""
    patience: CountOrNone | None = None
    """Ends after so many generations without a better best; 0 goes on to the last one [10]."""
    enable_async_evaluation: bool | None = None
    """Many calls at once, or one after another [many]."""
    async_batch_size: Count | None = None
    """Problems of a prompt after which it is judged whether to stop it [20]."""
    max_concurrent_requests: Count | None = None
    """The cap: calls under way at once, over all prompts [10]."""
    genome_batch_size: Count | None = None
    """Children that are made ahead of being scored [10]."""
    max_concurrent_genomes: Count | None = None
    """Prompts that should suffice to give every place work [5]."""
    async_timeout: Positive | None = None
    """Seconds after which one call is given up [--call-timeout-s]."""
    detailed_performance_logging: bool | None = None
    """Whether each generation's performance goes to log.txt in the run folder [as the preset says]."""


def evolution_config(
    flags: EvolutionFlags, preset: str | None, seed: int, rate_limit_per_minute: float | None
) -> AsyncEvolutionConfig:
    """The configuration that the flags amount to.

    Args:
        flags: those that were given.
        preset: what the others are; None: the defaults, without a limit of the rate, as models of one's own
            need none.
        seed: of all chance.
        rate_limit_per_minute: attempts in a minute; 0 sets no limit, None is as the preset says.

    Raises:
        UserError: a value is bad.
    """
    from search.evolution import AsyncEvolutionConfig

    given: dict[str, Any] = {
        each.name: value for each in fields(flags) if (value := getattr(flags, each.name)) is not None
    }
    if rate_limit_per_minute is not None or preset is None:
        given["rate_limit_per_minute"] = rate_limit_per_minute or None
    for name in _ZERO_IS_NONE & given.keys():
        given[name] = given[name] or None
    try:
        return AsyncEvolutionConfig.preset(preset or "balanced", **given, seed=seed)
    except ValueError as error:
        raise UserError(with_flags(error, *(each.name for each in fields(EvolutionFlags)))) from error


def resolved_flags(flags: EvolutionFlags, config: AsyncEvolutionConfig) -> EvolutionFlags:
    """The flags that amount to this configuration whatever a preset says."""
    own = {each.name: getattr(config, each.name) for each in fields(flags) if each.name != "async_timeout"}
    own |= {name: own[name] or 0 for name in _ZERO_IS_NONE}
    # The server's flags have the timeout.
    return replace(flags, **own | {"elite_size": config.elites}, async_timeout=None)


if TYPE_CHECKING:
    from rich.table import Table

    from cli.searching import Recorder
    from search.evolution import AsyncEvolutionConfig, Generation
    from search.task import Task

MOST_STEPS = 2
"""Rewordings that make a child: it may be crossed, and mutated."""
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvolveConfig:
    """Everything an evolution is told. Defaults < --preset < --config FILE < flags."""

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
        """The same with absolute paths, and the timeout where the server's flags have it."""
        server, timeout_s = self.server.located(), self.evolution.async_timeout
        return replace(
            self,
            seed_prompt=tuple(map(located_prompt, self.seed_prompt)),
            search=self.search.located(),
            server=replace(server, call_timeout_s=timeout_s) if timeout_s else server,
        )


def evolve(config: EvolveConfig = EvolveConfig()) -> None:
    """Evolve a system prompt for a task; the best one is compared with the seed prompt on held-out problems.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    config = config.located()
    config.search.check_places()
    carry_out(_Evolve(config))


class _Evolve:
    """What `mutagym evolve` adds to the course of a search."""

    name = "evolve"
    simulated_target = "sim-solver"
    named_by = "--target-model"
    may_change: tuple[str, ...] = (
        *(
            "enable-async-evaluation",
            "max-concurrent-requests",
            "genome-batch-size",
            "max-concurrent-genomes",
        ),
        *("async-timeout", "detailed-performance-logging", "max-generations", "patience"),
    )

    def __init__(self, config: EvolveConfig) -> None:
        self.config = config
        told = config.search
        self._evolution = evolution_config(
            config.evolution, config.preset, told.seed, told.rate_limit_per_minute
        )
        self._seeds = [read_prompt(text, "--seed-prompt") for text in config.seed_prompt]
        self._task = load_task(told)
        panel_size = _panel_size(self._evolution, self._seeds, self._task)
        self._calls_each = self._evolution.population_size * (panel_size + MOST_STEPS)

    def digests(self, connection: Connection) -> Mapping[str, str]:
        """What stands for the weights of each model that may be asked."""
        return connection.digests("")

    def search(self, connection: Connection) -> Search:
        """The evolution."""
        config, evolution = self.config, self._evolution
        limit = evolution.rate_limit_per_minute or 0.0
        return Search(
            config=replace(
                config,
                evolution=resolved_flags(config.evolution, evolution),
                search=replace(config.search, rate_limit_per_minute=limit),
                server=connection.resolve(config.server),
            ),
            says=f"{evolution.population_size} prompts, {_counted(evolution.max_generations, 'generation')}, "
            f"{_counted(len(self._task.problems), 'problem')}, at most {self._calls_each} calls a generation",
            what="generations",
            total=evolution.max_generations + 1,
            calls_each=self._calls_each,
            width=evolution.schedule.concurrency,
            prints=prints_of(self._task)
            | prompt_prints({f"seed {place}": text for place, text in enumerate(self._seeds)}),
            run=lambda recorder: self._run(recorder, connection),
        )

    def report(self, results: Mapping[str, Any], spent: Mapping[str, Any]) -> dict[str, Any]:
        """The results; times are told by the progress line alone."""
        del spent
        return dict(results)

    def tables(self, report: Mapping[str, Any]) -> tuple[Parts, Iterable[str]]:
        """The generations, the comparison, and the best prompt itself."""
        parts = [
            ([_history(report)], f"{_told(report)} {HISTORY}"),
            ([_held_out(report)], _held_out_says(report)),
        ]
        return parts, ["best prompt:", str(report["best_prompt"])]

    def _run(self, recorder: Recorder, connection: Connection) -> Outcome:
        from search.evolution import AsyncEvolutionController, NothingScoredError

        def told(record: Generation) -> None:
            done = record.generation + 1
            recorder.record(record.generation, _metrics(record), done=done, best=record.best_fitness)
            if record.failed_steps:
                print(_failed(record), file=sys.stderr)

        calls = self.config.calls
        controller = AsyncEvolutionController(
            self._evolution,
            dispatcher=connection.dispatcher,
            task=self._task,
            seed_prompts=self._seeds or None,
            model=connection.roles.target,
            mutator_model=connection.roles.mutator,
            options=calls.options,
            mutator_options=calls.options,
            think=calls.think,
            on_generation=told,
        )
        try:
            results = controller.run_evolution()
        except NothingScoredError as error:
            raise RunStoppedError(str(error)) from error
        if results.pop("interrupted"):
            raise RunStoppedError(f"the evolution stopped: {results['reason']}")
        spent = {key: results.pop(key) for key in ("metrics", "total_time")}
        del results["reason"]
        return Outcome(results=results, spent=spent, files={"best_prompt.txt": f"{results['best_prompt']}\n"})


def _panel_size(evolution: AsyncEvolutionConfig, seeds: Sequence[str], task: Task) -> int:
    """How many problems each prompt is put; what can be told without a server is checked.

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
        return len(divide(task, evolution).panel.problems)
    except ValueError as error:
        raise UserError(with_flags(error, "held_out", "panel_size")) from error


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
            *(number(_percent(record[name]), "{:.1f}") for name in ("best_fitness", "mean_fitness")),
            number(record["diversity"], "{:.3f}"),
            *(str(record[name]) for name in counts),
            f"{record['failed_steps']} of {record['model_steps']}",
        )
    return table


def _told(report: Mapping[str, Any]) -> str:
    """Why it ended, and how much of it the table shows."""
    total, shown = len(report["history"]), len(list(_spaced(report["history"])))
    some = f" {shown} of {total} generations shown; metrics.jsonl has all." if shown < total else ""
    return f"Ended: {report['ended']}.{some}"


def _held_out_says(report: Mapping[str, Any]) -> str:
    told = report["held_out"] or {"queries": 0, "left_out": 0}
    return HELD_OUT.format(left_out=told["left_out"], all=told["queries"] + told["left_out"])


def _held_out(report: Mapping[str, Any]) -> Table:
    table = new_table("held-out problems", "", "solved %", "difference, points", "p", "n")
    told = report["held_out"]
    if told:
        difference = with_interval(told, "difference", "{:+.1f}", 100)
        table.add_row("seed prompt", number(_percent(told["seed"]), "{:.1f}"), "", "", str(told["queries"]))
        table.add_row(
            "best prompt",
            number(_percent(told["best"]), "{:.1f}"),
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


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _counted(number_of: int, what: str) -> str:
    """`1 generation`, `2 generations`."""
    return f"{number_of} {what}" if number_of == 1 else f"{number_of} {what}s"
