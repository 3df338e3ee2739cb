"""Learn which system prompt suits which question: candidates, critics, an actor, evolving prompts.

Run it with `mutagym optimize --ollama-host http://127.0.0.1:11434 --target-model llama3.2
--judge-model qwen3 --task mine.jsonl`; without any flag it learns on the bundled task and the
simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cli.output import write_report
from envs.mission import encoder_fingerprint, located_folder, open_encoder
from ollama_utils.connect import Connection, ServerConfig
from ollama_utils.encoders import Encoder
from ollama_utils.session import Found
from ollama_utils.types import think_of
from records.errors import UserError
from records.run_folder import check_places
from records.settings import Count, Share
from report.searches import optimization_tables
from scorers.judge import LLMCritic
from search.actors import RidgeCritic
from search.config import CallFlags, SearchConfig, as_flag_error, located_prompt, read_prompt
from search.optimize import ActorCriticParams, Critic, HybridOptimizationFlow, optimize_task
from search.session import SearchRecorder, open_search, run_search
from search.task import SEED_INSTRUCTIONS


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OptimizeConfig:
    """All settings of `mutagym optimize`. Defaults < --config FILE < flags."""

    steps: Count = 400
    """Questions that are answered, those of the task over and over."""
    batch_size: Count = 8
    """Questions under way at once, under the policy as it is."""
    actor: Literal["learning", "random", "fixed"] = "learning"
    """Who chooses the prompts: a policy that learns, chance, or always the first seed prompt."""
    critic: Literal["llm", "ridge", "both"] | None = None
    """Who scores the candidates: a judge model, a regression that learns from feedback, or the
    mean of both [both where there is a judge model, else ridge]."""
    encoder: str = "hashing"
    """Embeds texts for actor and ridge: `hashing` (by their words, at no cost), a
    sentence-transformers name or path, or `ollama:<model>`. `all-MiniLM-L6-v2` knows words of like
    meaning: worth a try where questions of a kind share few words and calls take seconds."""
    seed_prompt: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A prompt to begin with, as text or as a file (repeatable) [a plain one]."""
    held_out: Share = 0.3
    """The share of the questions that only the final comparison sees; 0 holds out nothing."""
    hybrid: ActorCriticParams = field(default_factory=ActorCriticParams)
    calls: CallFlags = field(default_factory=CallFlags)
    search: SearchConfig = field(default_factory=SearchConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> OptimizeConfig:
        """The same with absolute paths."""
        return replace(
            self,
            encoder=located_folder("encoder", self.encoder),
            seed_prompt=tuple(map(located_prompt, self.seed_prompt)),
            search=self.search.located(),
            server=self.server.located(),
        )


def optimize(config: OptimizeConfig = OptimizeConfig()) -> None:
    """Learn which system prompt suits which question, while the prompts evolve.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    config = config.located()
    search = config.search
    check_places(search)
    task = search.read_task()
    prompts = [read_prompt(text, "--seed-prompt") for text in config.seed_prompt]
    prompts = prompts or [SEED_INSTRUCTIONS]
    with as_flag_error():
        train, held_out = task.split(config.held_out, search.seed)
    with open_search("optimize", config, ("max-workers",)) as session:
        connection = session.connection
        session.keep_replies(connection.digests(config.encoder), search.cache)
        critic = config.critic or ("both" if connection.roles.judge else "ridge")
        config = replace(config, critic=critic)
        encoder = open_encoder(config.encoder, connection.dispatcher, search.cache)
        flow = _flow(config, prompts, connection, encoder)

        def run(recorder: SearchRecorder) -> Found:
            results = optimize_task(
                flow,
                train,
                held_out if held_out.problems else None,
                seed_prompt=prompts[0],
                steps=config.steps,
                batch_size=config.batch_size,
                record=recorder.record,
            )
            named = {"actor": config.actor, "seed": search.seed}
            files = {"best_prompt.txt": f"{results['best_prompt']}\n"}
            return Found(results={**named, **results}, files=files)

        found = run_search(
            session,
            config,
            run,
            says=f"{config.actor} actor, critic {critic}, {config.steps} steps, "
            f"{len(task.problems)} questions",
            what="steps",
            total=config.steps,
            most_calls=flow.most_calls(config.steps, 0 if critic == "ridge" else 2)
            + 3 * len(held_out.problems),  # by seed prompt, best prompt and actor
            at_once=flow.workers or config.batch_size * flow.params.num_candidates,
            inputs={
                f"task {task.name}": task.problems,
                **{f"prompt seed {place}": text for place, text in enumerate(prompts)},
                **encoder_fingerprint(config.encoder, encoder),
            },
            first=[flow.final_call(task.problems[0].question, prompts[0])],
        )
        report = dict(found.results)
        tables = optimization_tables(report)
        lines = ["best prompt:", str(report["best_prompt"]), ""]
        write_report(report, session, search.json, search.format, tables=tables, lines=lines)


def _flow(
    config: OptimizeConfig, prompts: Sequence[str], connection: Connection, encoder: Encoder
) -> HybridOptimizationFlow:
    """The flow of the flags."""
    dispatcher, roles, calls = connection.dispatcher, connection.roles, config.calls
    critics: list[Critic] = []
    if config.critic != "ridge":
        if roles.judge is None:
            raise UserError(
                f"--critic {config.critic} asks a model: name it with --judge-model, or take ridge"
            )
        seed, context = config.search.seed, calls.context
        critics.append(LLMCritic(dispatcher, roles.judge, seed=seed, options=context))
    if config.critic != "llm":
        critics.append(RidgeCritic(encoder))
    changes: Mapping[str, Mapping[str, Any]] = {
        "learning": {},
        "random": {"learning_rate": 0.0},
        "fixed": {"population_size": 1, "elite_size": 0, "update_interval": config.steps + 1},
    }
    with as_flag_error():
        return HybridOptimizationFlow(
            dispatcher,
            config.hybrid,
            model=roles.target,
            mutator_model=roles.mutator,
            prompts=prompts[:1] if config.actor == "fixed" else prompts,
            encoder=encoder,
            critics=critics,
            options=calls.context,
            think=think_of(calls.think),
            max_tokens=calls.num_predict,
            seed=config.search.seed,
            parallel_eval=True,
            feedback_for_all=True,
            **changes[config.actor],
        )
