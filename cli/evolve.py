"""Evolve a system prompt for a task: a genetic search whose fitness is what a model answers.

Run it with `mutagym evolve --ollama-host http://127.0.0.1:11434 --target-model NAME --task FILE`;
without any flag it evolves on the bundled task and the simulator. With `--mutator paraphrase --run RUN` the
instruction of a mutator evolves, on the queries of a training run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cli.formats import new_table, number, p_value, percent, with_interval
from cli.search_settings import (
    LimitedCallFlags,
    SearchConfig,
    load_task,
    located_function,
    located_prompt,
    prompt_fingerprints,
    read_prompt,
    task_fingerprint,
)
from cli.searching import Found, Search, SearchRecorder, open_session
from envs.mission import MissionConfig, encoder_fingerprint, open_encoder
from envs.query_sets import recorded_queries
from mutators.registry import load_mutators
from ollama_utils.connect import Connection, ServerConfig
from ollama_utils.errors import OllamaError
from ollama_utils.types import think_of
from records.errors import RunStoppedError, UserError, as_user_error
from records.run_folder import COMMAND_KEYS, CONFIG, QUERIES, check_is_run
from records.settings import Count, CountOrZero, NotNegative, Share, absolute, read_toml, resolved, with_flags
from records.terminal import write_stderr
from search.evolution_config import PRESETS, AsyncEvolutionConfig

if TYPE_CHECKING:
    from rich.table import Table

    from envs.queries import Query
    from mutators.mutator import Mutator
    from search.evolve import Generation
    from search.mutator_task import MutatorTask
    from search.task import Task

MAY_CHANGE = (
    *("enable-async-evaluation", "max-concurrent-requests", "genome-batch-size"),
    *("max-concurrent-genomes", "async-timeout", "detailed-performance-logging"),
    *("max-generations", "patience"),
)
"""The options of its own that a resumed evolution may change."""
PANEL_SIZE = 40
"""Problems that prompts are scored on where nothing else is said, and there are as many."""
MOST_GENERATIONS = 12
"""The last generations, which the table has; metrics.jsonl has them all."""
HELD_OUT = (
    "On problems that the search did not see: the share that is solved, and the difference to the "
    "seed prompt in points, with a 95 % interval, paired by problem. p: a test of no difference. "
    "n: the problems that both have a score for; the others, {left_out} of {all} (a call failed), "
    "are left out of both rows."
)
HISTORY = (
    "Ended: {ended}. Solved: of those problems of the panel that have a score, the same panel for "
    "all prompts; best: by the best prompt so far. Duplicates: children that were no new prompt. "
    "Stopped: children that were surely worse than the weakest of the elite before they were "
    "through. Unscored: children of which too many calls failed; they are no parents. Failed: "
    "rewordings by model that got no reply; they change nothing."
)
ADOPTED = (
    "The same for the share of rewordings that are adopted. A problem is a query, and is solved where its "
    "rewording is adopted and what the target says to it is a success by the run's reward."
)


@Parameter(name="*", group="Evolving a mutator")
@dataclass(frozen=True, kw_only=True)
class MutatorFlags:
    """A mutator whose instruction evolves, and the run whose queries it rewords."""

    mutator: str | None = None
    """In place of a system prompt the instruction of this mutator evolves: a name as paraphrase, or
    FILE.py:NAME; it is one that asks a model once, under a system prompt."""
    run: str | None = None
    """The folder of a training run: the queries that it learned from are the problems, and what is not said
    here is as it was there. Code, hosts and files that it names have to be named again."""
    reward: str | None = None
    """What a success is [the run's]."""
    judge_rubric: str | None = None
    """A text file that --reward judge goes by [the run's]."""
    intent_judge: bool | None = None
    """The judge model also says whether a rewording asks for the same [the run's]."""
    encoder: str | None = None
    """The sentence encoder [the run's]."""
    intent_threshold: Share | None = None
    """Similarity to the query under which a rewording is not adopted [the run's]."""
    rewrite_num_predict: Count | None = None
    """Most tokens of a rewording [the run's]."""
    target_system: str | None = None
    """The target's system prompt [the run's]."""
    target_temperature: NotNegative | None = None
    """The target's temperature [the run's]."""

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if given and None in {self.mutator, self.run}:
            raise ValueError(f"{given[0]} is for a mutator that evolves: expected both --mutator and --run")

    @property
    def said(self) -> dict[str, Any]:
        """What is said of the mission."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        return {name: values[name] for name in values.keys() - {"mutator", "run"}}

    def located(self) -> MutatorFlags:
        """The same with absolute paths."""
        places = vars(MissionConfig(**self.said).located())
        said = {name: places[name] for name in self.said}
        return replace(self, mutator=located_function(self.mutator), run=absolute(self.run), **said)

    def mission(self, calls: LimitedCallFlags) -> MissionConfig:
        """How the mutator's rewordings are asked for, adopted and scored."""
        return MissionConfig(mutators=(str(self.mutator),), **vars(calls), **self.said)


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class EvolutionFlags(AsyncEvolutionConfig):
    """An evolution that ends within half an hour on a model that answers 5 calls a second."""

    population_size: Count = 16
    """Prompts in a generation, at least 2."""
    max_generations: CountOrZero = 10
    """Generations of children after the first population; 0 scores the first population alone."""
    panel_size: Count | None = None
    """Problems that every prompt is scored on, the same in all generations [40, or all that are not
    held out]."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvolveConfig:
    """All settings of `mutagym evolve`. Defaults < --preset < --config FILE < flags."""

    preset: Literal["balanced", "conservative", "aggressive"] | None = None
    """What the flags of the evolution are where they are not given; the three differ in calls at
    once, and set limits of the rate for servers that have one [balanced, without such a limit]."""
    seed_prompt: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A prompt to begin with, as text or as a file (repeatable) [a plain one]."""
    evolution: EvolutionFlags = field(default_factory=EvolutionFlags)
    of_mutator: MutatorFlags = field(default_factory=MutatorFlags)
    calls: LimitedCallFlags = field(default_factory=LimitedCallFlags)
    search: SearchConfig = field(default_factory=SearchConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> EvolveConfig:
        """The same with absolute paths, and each setting where it takes effect.

        The seed and the limit of the rate are flags of every search, the timeout of the server.
        """
        server, timeout_s = self.server.located(), self.evolution.async_timeout
        rate = self.search.rate_limit_per_minute or 0.0
        return replace(
            self,
            seed_prompt=tuple(map(located_prompt, self.seed_prompt)),
            evolution=replace(
                self.evolution,
                elite_size=self.evolution.elites,
                seed=self.search.seed,
                rate_limit_per_minute=rate or None,
                async_timeout=None,
            ),
            of_mutator=self.of_mutator.located(),
            search=replace(self.search.located(), rate_limit_per_minute=rate),
            server=replace(server, call_timeout_s=timeout_s) if timeout_s else server,
        )


def preset_defaults(name: str | None) -> dict[str, Any]:
    """The flags that a preset sets, for what is not given; without one `balanced`, unlimited.

    A name that there is not sets none: it is refused as any bad flag is.
    """
    changed = PRESETS.get(name or "balanced", {})
    flags = {field.replace("_", "-"): value for field, value in changed.items()}
    if name is None:
        del flags["rate-limit-per-minute"]
    return flags


def settings_of_run(run: Path) -> dict[str, Any]:
    """What the evolution of a mutator takes over from the training run of --run.

    Raises:
        UserError: there is no such run.
    """
    check_is_run(run, "--run")
    table = read_toml(run / CONFIG)
    if COMMAND_KEYS["train"] not in table:
        raise UserError(f"--run names {str(run)!r}; expected the folder of a run of `mutagym train`")
    keys = {*resolved(MutatorFlags()), *resolved(LimitedCallFlags()), *resolved(ServerConfig())}
    return {key: value for key, value in table.items() if key in keys}


def evolve(config: EvolveConfig = EvolveConfig()) -> None:
    """Evolve a system prompt for a task, or the instruction of a mutator on the queries of a run.

    The best is compared with the seed on held-out problems. Every flag can stand in a TOML file: --config
    FILE; flags override it.
    """
    from search.mutator_task import evolved_name, instruction_of, task_of
    from search.task import SEED_INSTRUCTIONS, ask_problem

    config = config.located()
    config.search.check_places()
    given = [read_prompt(text, "--seed-prompt") for text in config.seed_prompt]
    mutator, queries = _mutator(config)
    seeds = given or [instruction_of(mutator) if mutator else SEED_INSTRUCTIONS]
    task = task_of(mutator, queries) if mutator else load_task(config.search)
    panel_size, held_out = _sizes(config.evolution, seeds, task)
    config = replace(config, evolution=replace(config.evolution, panel_size=panel_size))
    evolution, calls = config.evolution, config.calls
    generations = evolution.max_generations + 1
    a_problem = config.of_mutator.mission(calls).most_calls_a_step if mutator else 1
    calls_each = evolution.most_calls(panel_size * a_problem)
    with open_session("evolve", config, simulated_target="sim-solver", may_change=MAY_CHANGE) as session:
        connection = session.connection
        session.keep_replies(connection.digests(config.of_mutator.encoder or ""))
        first = ask_problem(
            task.problems[0],
            seeds[0],
            model=connection.roles.target,
            options=calls.options,
            think=think_of(calls.think),
            seed=config.search.seed,
        )
        fingerprints = task_fingerprint(task) | prompt_fingerprints(
            {f"seed {place}": text for place, text in enumerate(seeds if mutator else given)}
        )
        rewording = None
        if mutator:
            rewording = _rewording(config, mutator, queries, connection)
            task = replace(task, asking=rewording.asking)
            fingerprints |= encoder_fingerprint(rewording.mission.encoder, rewording.encoder)
        found = session.run(
            Search(
                config=config,
                says=f"{evolution.population_size} prompts, "
                f"{_counted(evolution.max_generations, 'generation')}, "
                f"{_counted(panel_size, 'problem')} of {len(task.problems)}",
                what="generations",
                total=generations,
                calls_each=calls_each,
                most_calls=calls_each * generations + 2 * held_out * a_problem,
                width=evolution.max_concurrent_requests,
                fingerprints=fingerprints,
                first=[first],
                run=lambda recorder: _evolve(config, task, seeds, connection, recorder, rewording),
            )
        )
        report = {key: value for key, value in found.results.items() if key != "births"}
        counts = report["held_out"] or {"queries": 0, "left_out": 0}
        asked = counts["queries"] + counts["left_out"]
        parts = [
            ([_history(report)], HISTORY.format(ended=report["ended"])),
            ([_held_out(report)], HELD_OUT.format(left_out=counts["left_out"], all=asked)),
        ]
        last = ["best prompt:", str(report["best_prompt"])]
        if mutator:
            parts.append(([_held_out(report, "adopted")], ADOPTED))
            is_better = report["held_out"] and report["held_out"]["low"] > 0
            use = "use it" if is_better else "not shown to be better than the seed; to try it"
            name = evolved_name(mutator)
            spec = shlex.quote(f"{session.folder.path / name}.py:{name}")
            last += ["", f"{use}: mutagym train --mutators {spec}"]
        session.report(report, parts, last)


def _mutator(config: EvolveConfig) -> tuple[Mutator | None, Sequence[Query]]:
    """The mutator that is to evolve, if one is, and the queries that the run learned from.

    Raises:
        UserError: its instruction cannot evolve, or there is a task beside it.
    """
    from search.mutator_task import instruction_of

    flags, search = config.of_mutator, config.search
    if flags.mutator is None:
        return None, ()
    of_task = {"task": search.task, "scorer": search.scorer, "answer-column": search.answer_column}
    if named := next((flag for flag, value in of_task.items() if value is not None), None):
        raise UserError(
            f"--{named} and --mutator: its problems are the queries of --run; leave one of them out"
        )
    with as_user_error(ValueError):
        (mutator,) = load_mutators((flags.mutator,))
        instruction_of(mutator)
    flags.mission(config.calls).check()
    return mutator, recorded_queries(Path(str(flags.run)) / QUERIES).train


def _rewording(
    config: EvolveConfig, mutator: Mutator, queries: Sequence[Query], connection: Connection
) -> MutatorTask:
    """What rewords the queries, asks and scores; checked."""
    from search.mutator_task import MutatorTask

    mission, dispatcher = config.of_mutator.mission(config.calls), connection.dispatcher
    made = MutatorTask(
        mutator=mutator,
        queries=queries,
        mission=mission,
        roles=connection.roles,
        encoder=open_encoder(mission.encoder, dispatcher, config.search.cache),
        seed=config.search.seed,
    )
    with as_user_error(OllamaError, ValueError):
        made.asking(dispatcher.generate)
    return made


def _sizes(evolution: EvolutionFlags, seeds: Sequence[str], task: Task) -> tuple[int, int]:
    """How many problems prompts are scored on, and how many are held out; checked without a server.

    Raises:
        UserError: the seed prompts are no population, or the task has too few problems.
    """
    from search.evolve import Population
    from search.panel import divide

    try:
        Population(evolution, seeds)
    except ValueError as error:
        raise UserError(f"--seed-prompt: {with_flags(error)}") from error
    try:
        panel, held_out = divide(task, evolution)
    except ValueError as error:
        raise UserError(with_flags(error)) from error
    count = len(panel.problems)
    return evolution.panel_size or min(count, PANEL_SIZE), len(held_out.problems)


def _evolve(
    config: EvolveConfig,
    task: Task,
    seeds: Sequence[str],
    connection: Connection,
    recorder: SearchRecorder,
    rewording: MutatorTask | None,
) -> Found:
    """Evolve, and record each generation.

    Raises:
        RunStoppedError: nothing could be scored, or the evolution ended before its time.
    """
    from search.evolve import AsyncEvolutionController, NothingScoredError, paired
    from search.mutator_task import as_file, evolved_name
    from search.panel import divide

    def record_generation(record: Generation) -> None:
        done, best = record.generation + 1, record.best_fitness
        recorder.record(record.generation, _metrics(record), done=done, best=best)
        if record.failed_steps:
            asked = _counted(record.model_steps, "rewording")
            error = " ".join(record.step_error.split())
            failed = f"{record.failed_steps} of {asked} by model failed: {error}"
            write_stderr(f"generation {record.generation}: {failed}")

    controller = AsyncEvolutionController(
        config.evolution,
        dispatcher=connection.dispatcher,
        task=task,
        seed_prompts=seeds,
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
        raise RunStoppedError(f"{error}; see whether the server answers, then go on") from error
    if results.pop("interrupted"):
        raise RunStoppedError(f"the evolution stopped: {results['ended']}")
    spent = {key: results.pop(key) for key in ("metrics", "total_time")}
    files = {"best_prompt.txt": f"{results['best_prompt']}\n"}
    if rewording:
        best, seed = results["best_prompt"], results["seed_prompt"]
        problems = divide(task, config.evolution)[1].problems
        both = (rewording.adoptions(text, problems) for text in (best, seed))
        results["adopted"] = paired(*both) if problems else None
        text = as_file(str(config.of_mutator.mutator), rewording.mutator, best)
        files[f"{evolved_name(rewording.mutator)}.py"] = text
    return Found(results=results, spent=spent, files=files)


def _metrics(record: Generation) -> dict[str, float | None]:
    """A generation's numbers by TensorBoard's names."""
    numbers = {key: value for key, value in record.to_json().items() if key != "best_prompt"}
    del numbers["generation"]
    return {f"evolve/{name}": value for name, value in numbers.items()}


def _history(report: Mapping[str, Any]) -> Table:
    history = report["history"]
    children, unscored = (sum(each[name] for each in history) for name in ("children", "unscored"))
    title = (
        f"{report['task']}: {_counted(children, 'prompt')} in "
        f"{_counted(report['generations'], 'generation')}, {unscored} of them unscored, each on "
        f"{_counted(report['panel_size'], 'problem')}"
    )
    counts = ("children", "duplicates", "stopped", "unscored")
    shares = ("best, solved %", "mean, solved %", "diversity")
    table = new_table(title, "generation", *shares, *counts, "failed")
    for record in history[-MOST_GENERATIONS:]:
        table.add_row(
            str(record["generation"]),
            percent(record["best_fitness"]),
            percent(record["mean_fitness"]),
            number(record["diversity"], "{:.3f}"),
            *(str(record[name]) for name in counts),
            f"{record['failed_steps']} of {record['model_steps']}",
        )
    return table


def _held_out(report: Mapping[str, Any], what: str = "solved") -> Table:
    table = new_table("held-out problems", "", f"{what} %", "difference, points", "p", "n")
    found = report["held_out" if what == "solved" else what]
    if found:
        count, p = str(found["queries"]), p_value(found["p_value"])
        difference = with_interval(found, "difference", "{:+.1f}", 100)
        table.add_row("seed prompt", percent(found["seed"]), "", "", count)
        table.add_row("best prompt", percent(found["best"]), difference, p, count)
    return table


def _counted(number_of: int, what: str) -> str:
    """`1 generation`, `2 generations`."""
    return f"{number_of} {what}" if number_of == 1 else f"{number_of} {what}s"
