"""Evolve a system prompt for a task: a genetic search whose fitness is what a model answers.

Run it with `mutagym evolve --ollama-host http://127.0.0.1:11434 --target-model NAME --task FILE`;
without any flag it evolves on the bundled task and the simulator. With `--mutator paraphrase --run
RUN` the instruction of a mutator evolves, on the queries of a training run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cli.output import write_report
from envs.mission import encoder_fingerprint
from ollama_utils.connect import ServerConfig
from ollama_utils.session import Found
from ollama_utils.types import think_of
from records.errors import RunStoppedError
from records.run_folder import check_places
from records.terminal import counted, write_stderr
from report.searches import evolution_tables
from search.config import CallFlags, SearchConfig, as_flag_error, located_prompt, read_prompt
from search.evolution_config import EvolutionFlags
from search.evolve import EvolutionController, Population, Record, paired
from search.mutator_task import MutatorFlags, as_file, evolved_name, instruction_of, task_of
from search.panel import divide
from search.session import SearchRecorder, open_search, run_search
from search.task import SEED_INSTRUCTIONS, ask_problem

MAY_CHANGE = (
    *("enable-async-evaluation", "max-concurrent-requests", "genome-batch-size", "patience"),
    *("max-concurrent-genomes", "async-timeout", "detailed-performance-logging", "max-generations"),
)
"""The options of its own that a resumed evolution may change."""
PANEL_SIZE = 40
"""Problems that prompts are scored on where nothing else is said, and there are as many."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvolveConfig:
    """All settings of `mutagym evolve`. Defaults < --preset < --config FILE < flags."""

    preset: Literal["balanced", "conservative", "aggressive"] | None = None
    """The defaults of the flags of the evolution. The presets differ in how many calls are made at
    once and how many a minute, for a service that limits them [those of balanced, without a limit
    of calls a minute]."""
    seed_prompt: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A prompt to begin with, as text or as a file (repeatable) [a plain one]."""
    evolution: EvolutionFlags = field(default_factory=EvolutionFlags)
    of_mutator: MutatorFlags = field(default_factory=MutatorFlags)
    calls: CallFlags = field(default_factory=CallFlags)
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
                seed=self.search.seed,
                rate_limit_per_minute=rate or None,
                async_timeout=None,
            ),
            of_mutator=self.of_mutator.located(),
            search=replace(self.search.located(), rate_limit_per_minute=rate),
            server=replace(server, call_timeout_s=timeout_s) if timeout_s else server,
        )


def evolve(config: EvolveConfig = EvolveConfig()) -> None:
    """Evolve a system prompt for a task, or the instruction of a mutator on the queries of a run.

    The best is compared with the seed on held-out problems. Every flag can stand in a TOML file:
    --config FILE; flags override it.
    """
    config = config.located()
    check_places(config.search)
    flags, calls, search = config.of_mutator, config.calls, config.search
    mutator, queries = flags.load(calls, search) if flags.mutator else (None, ())
    task = task_of(mutator, queries) if mutator else search.read_task()
    plain = instruction_of(mutator) if mutator else SEED_INSTRUCTIONS
    seeds = [read_prompt(text, "--seed-prompt") for text in config.seed_prompt] or [plain]
    with as_flag_error("--seed-prompt: "):
        Population(config.evolution, seeds)
    with as_flag_error():
        panel, held_out = (part.problems for part in divide(task, config.evolution))
    size = config.evolution.panel_size or min(len(panel), PANEL_SIZE)
    evolution = replace(config.evolution, panel_size=size)
    config = replace(config, evolution=evolution)
    calls_a_problem = flags.mission(calls).most_calls_a_step if mutator else 1
    calls_each = evolution.most_calls(size * calls_a_problem)
    with open_search("evolve", config, MAY_CHANGE) as session:
        connection, rewording = session.connection, None
        session.keep_replies(connection.digests(flags.encoder or ""), search.cache)
        inputs: dict[str, object] = {f"task {task.name}": task.problems}
        inputs |= {f"prompt seed {index}": text for index, text in enumerate(seeds)}
        solver: dict[str, Any] = {
            "model": connection.roles.target,
            "options": calls.options,
            "think": think_of(calls.think),
        }
        if mutator:
            rewording = flags.open(mutator, queries, connection, calls=calls, search=search)
            task = replace(task, asking=rewording.asking)
            inputs |= encoder_fingerprint(rewording.mission.encoder, rewording.encoder)

        def run(recorder: SearchRecorder) -> Found:
            results = EvolutionController(
                evolution,
                dispatcher=connection.dispatcher,
                task=task,
                seed_prompts=seeds,
                mutator_model=connection.roles.mutator,
                mutator_options=calls.options,
                **solver,
                on_generation=partial(_record, recorder),
            ).run_evolution()
            if results.pop("interrupted"):
                raise RunStoppedError(f"the evolution stopped: {results['ended']}")
            spent = {key: results.pop(key) for key in ("metrics", "total_time")}
            best, seed = results["best_prompt"], results["seed_prompt"]
            files = {"best_prompt.txt": f"{best}\n"}
            if rewording:
                adopted = (rewording.adoptions(prompt, held_out) for prompt in (best, seed))
                results["adopted"] = paired(*adopted) if held_out else None
                text = as_file(str(flags.mutator), rewording.mutator, best)
                files[f"{evolved_name(rewording.mutator)}.py"] = text
            return Found(results=results, spent=spent, files=files)

        found = run_search(
            session,
            config,
            run,
            says=f"{evolution.population_size} prompts, "
            f"{counted(evolution.max_generations, 'generation')}, "
            f"{counted(size, 'problem')} of {len(task.problems)}",
            what="generations",
            total=evolution.max_generations + 1,
            calls_each=calls_each,
            most_calls=calls_each * (evolution.max_generations + 1)
            + 2 * len(held_out) * calls_a_problem,
            at_once=evolution.max_concurrent_requests,
            inputs=inputs,
            first=[ask_problem(task.problems[0], seeds[0], **solver, seed=search.seed)],
        )
        report = {key: value for key, value in found.results.items() if key != "births"}
        lines = ["best prompt:", str(report["best_prompt"]), ""]
        if mutator:
            is_better = report["held_out"] and report["held_out"]["low"] > 0
            use = "use it" if is_better else "not shown to be better than the seed; to try it"
            name = evolved_name(mutator)
            spec = shlex.quote(f"{session.folder.path / name}.py:{name}")
            lines += [f"{use}: mutagym train --mutators {spec}", ""]
        tables = evolution_tables(report)
        write_report(report, session, search.json, search.format, tables=tables, lines=lines)


def _record(recorder: SearchRecorder, made: Record) -> None:
    """Write down a generation, and say which rewordings failed."""
    number, best = made["generation"], made["best_fitness"]
    apart = ("generation", "best_prompt", "step_error")
    metrics = {f"evolve/{name}": value for name, value in made.items() if name not in apart}
    recorder.record(number, metrics, done=number + 1, best=best)
    if made["failed_steps"]:
        failed = f"{made['failed_steps']} of {made['model_steps']} rewordings by model failed"
        write_stderr(f"generation {number}: {failed}: {' '.join(made['step_error'].split())}")
