"""Learn which system prompt suits which question: candidates, critics, an actor, evolving prompts.

Run it with `mutagym optimize --ollama-host http://127.0.0.1:11434 --target-model llama3.2
--judge-model qwen3 --task mine.jsonl`; without any flag it learns on the bundled task and the
simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cli.formats import new_table, number, p_value, percent, with_interval
from cli.search_settings import (
    CallFlags,
    SearchConfig,
    load_task,
    located_prompt,
    prompt_fingerprints,
    read_prompt,
    split_task,
    task_fingerprint,
)
from cli.searching import Found, Search, open_session
from envs.mission import encoder_fingerprint, located_folder, open_encoder
from ollama_utils.connect import Connection, ServerConfig
from ollama_utils.encoders import Encoder
from ollama_utils.types import think_of
from records.errors import UserError
from records.settings import Count, Share, with_flags
from scorers.judge import LLMCritic
from search.actors import RidgeCritic
from search.optimize import (
    ActorCriticParams,
    Critic,
    HybridOptimizationFlow,
    optimize_task,
)
from search.population import FILL_ROUNDS
from search.task import SEED_INSTRUCTIONS

if TYPE_CHECKING:
    from rich.table import Table

MOST_PROMPTS = 5
"""Prompts of the population that the table shows; results.json has them all."""
HELD_OUT = (
    "On questions that the search did not see, one call each at temperature 0: the share that is "
    "solved, and the difference to the seed prompt in points, with a 95 % interval, paired by "
    "question. {actor} Holm: p adjusted for both tests. n: the questions that all three have a "
    "score for; the others, {left_out} of {all} (a call failed), are left out of every row."
)
UNSCORED = (
    "{unscored} of {candidates} candidates have no score, as a call failed or the critic did: "
    "nothing was learned from them"
)
TAKES = {
    "learning": "The actor takes the prompt of the population that it likes best for a question.",
    "random": "The actor draws one of the prompts by chance for each question.",
    "fixed": "The actor takes the first seed prompt for each question.",
}
POPULATION = (
    "{shown} of {all} prompts shown, the best first, as ranked by edge. Edge: how much more reward "
    "a prompt had than the others that were tried for the same question, as a mean drawn towards 0 "
    "while tries are few (0 where no other was tried). Reward: the mean over so many tries of the "
    "sum of {feedback:g} x what the scorer says, {critic:g} x the critic's score and {tokens:g} x "
    "the tokens, so that it is no share and may exceed 1."
)


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
    """The share of the questions that only the final comparison sees; 0 makes none."""
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
    search.check_places()
    task = load_task(search)
    seeds = [read_prompt(text, "--seed-prompt") for text in config.seed_prompt]
    train, held_out = split_task(task, config.held_out, search.seed)
    with open_session(
        "optimize", config, simulated_target="sim-solver", may_change=("max-workers",)
    ) as session:
        connection = session.connection
        session.keep_replies(connection.digests(config.encoder))
        encoder = open_encoder(config.encoder, connection.dispatcher, search.cache)
        critic = config.critic or ("both" if connection.roles.judge else "ridge")
        prompts = seeds or [SEED_INSTRUCTIONS]
        flow = _flow(config, critic, prompts, connection, encoder)
        found = session.run(
            Search(
                config=replace(config, critic=critic),
                says=f"{config.actor} actor, critic {critic}, {config.steps} steps, "
                f"{len(task.problems)} questions",
                what="steps",
                total=config.steps,
                most_calls=_most_calls(flow, config.steps, critic, len(held_out.problems)),
                width=flow.workers or config.batch_size * flow.params.num_candidates,
                fingerprints=task_fingerprint(task)
                | prompt_fingerprints({f"seed {place}": text for place, text in enumerate(seeds)})
                | encoder_fingerprint(config.encoder, encoder),
                first=[flow.final_call(task.problems[0].question, prompts[0])],
                run=lambda recorder: _found(
                    config,
                    optimize_task(
                        flow,
                        train,
                        held_out if held_out.problems else None,
                        seed_prompt=prompts[0],
                        steps=config.steps,
                        batch_size=config.batch_size,
                        record=recorder.record,
                    ),
                ),
            )
        )
        report = {key: value for key, value in found.results.items() if key != "rewards"}
        parts = [
            ([_held_out(report)], _held_out_says(report)),
            ([_population(report)], _population_says(report, flow.params)),
        ]
        closing = [UNSCORED.format(**report), "", "best prompt:", str(report["best_prompt"])]
        session.report(report, parts, closing)


def _flow(
    config: OptimizeConfig,
    critic: str,
    prompts: Sequence[str],
    connection: Connection,
    encoder: Encoder,
) -> HybridOptimizationFlow:
    """The flow of the flags.

    Raises:
        UserError: there is no judge model for a critic that asks one, or a number does not fit.
    """
    dispatcher, roles, options = connection.dispatcher, connection.roles, config.calls.options
    critics: list[Critic] = []
    if critic != "ridge":
        if roles.judge is None:
            raise UserError(f"--critic {critic} asks a model: name it with --judge-model, or take ridge")
        critics.append(LLMCritic(dispatcher, roles.judge, seed=config.search.seed, options=options))
    if critic != "llm":
        critics.append(RidgeCritic(encoder))
    changes: Mapping[str, Mapping[str, Any]] = {
        "learning": {},
        "random": {"learning_rate": 0.0},
        "fixed": {"population_size": 1, "elite_size": 0, "update_interval": config.steps + 1},
    }
    try:
        return HybridOptimizationFlow(
            dispatcher,
            config.hybrid,
            model=roles.target,
            mutator_model=roles.mutator,
            prompts=prompts[:1] if config.actor == "fixed" else prompts,
            encoder=encoder,
            critics=critics,
            options=options,
            think=think_of(config.calls.think),
            seed=config.search.seed,
            parallel_eval=True,
            feedback_for_all=True,
            **changes[config.actor],
        )
    except ValueError as error:
        raise UserError(with_flags(error)) from error


def _most_calls(flow: HybridOptimizationFlow, steps: int, critic: str, held_out: int) -> int:
    """The calls made at most, those that embed and failed attempts left out."""
    params = flow.params
    a_candidate = 1 + 2 * (critic != "ridge")  # a reply; the judge's score, and the repair of that
    children = params.population_size - params.elite_size
    bred = FILL_ROUNDS * (params.population_size - 1)
    bred += 2 * children * (steps // params.update_interval)  # crossed and mutated
    asked = steps * params.num_candidates * a_candidate
    return asked + bred + 3 * held_out  # by seed prompt, best prompt and actor


def _found(config: OptimizeConfig, results: Mapping[str, Any]) -> Found:
    named = {"actor": config.actor, "seed": config.search.seed}
    return Found(results=named | dict(results), files={"best_prompt.txt": f"{results['best_prompt']}\n"})


def _population_says(report: Mapping[str, Any], params: ActorCriticParams) -> str:
    return POPULATION.format(
        shown=min(MOST_PROMPTS, len(report["population"])),
        all=len(report["population"]),
        feedback=params.weights.feedback,
        critic=params.weights.critic,
        tokens=params.weights.tokens,
    )


def _held_out_says(report: Mapping[str, Any]) -> str:
    seed = (report["held_out"] or [{"queries": 0, "left_out": 0}])[0]
    asked = seed["queries"] + seed["left_out"]
    return HELD_OUT.format(actor=TAKES[report["actor"]], left_out=seed["left_out"], all=asked)


def _held_out(report: Mapping[str, Any]) -> Table:
    title = f"{report['actor']} actor after {report['steps']} steps: held-out questions"
    table = new_table(title, "", "solved %", "difference, points", "p", "Holm", "n")
    for arm in report["held_out"] or ():
        table.add_row(
            arm["name"],
            percent(arm["score"]),
            with_interval(arm, "difference", "{:+.1f}", 100) if "difference" in arm else "",
            p_value(arm["p_value"]) if "p_value" in arm else "",
            p_value(arm["p_holm"]) if "p_holm" in arm else "",
            str(arm["queries"]),
        )
    return table


def _population(report: Mapping[str, Any]) -> Table:
    title = f"prompts after {report['generations']} generations"
    table = new_table(title, "prompt", "edge", "reward", "tries")
    for member in report["population"][:MOST_PROMPTS]:
        table.add_row(
            " ".join(member["prompt"].split()),
            number(member["edge"] if member["tries"] else None, "{:+.3f}"),
            number(member["fitness"], "{:.3f}"),
            str(member["tries"]),
        )
    return table
