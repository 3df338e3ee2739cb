"""Learn which system prompt suits which question: candidates, critics, an actor, and prompts that evolve.

Run it with `mutagym optimize --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --judge-model qwen3
--task mine.jsonl`; without any flag it learns on the bundled task and the simulator.

The flags of `mutagym optimize`: the fields of `search.hybrid.ActorCriticParams`.

The critics of `mutagym optimize`, and the mean of two.

A hybrid search that is ready to begin, step by step, and what it is worth on held-out questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from math import inf
from pathlib import Path
from statistics import fmean
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
    split_task,
)
from cli.searching import Outcome, Parts, Recorder, Search, carry_out
from cli.tables import new_table, number, p_value, with_interval
from ollama_utils.connect import Connection, Roles, ServerConfig
from ollama_utils.encoders import Encoder
from records.errors import UserError
from records.plain import finite
from records.settings import Count, NotNegative, Share, absolute
from scorers.comparison import compare, holm
from scorers.critic import Critic, LLMCritic, RidgeCritic
from search.candidates import Llm, do_all
from search.genetics.genome import chance
from search.hybrid import ActorCriticParams, HybridOptimizationFlow
from search.optimizing.actors import Actor, FixedActor, PolicyActor, RandomActor
from search.optimizing.prompts import PromptPopulation, PromptSections, SectionRewording
from search.optimizing.rewards import RewardWeights, StepResult
from search.task import CallFlags, Problem, Task, ask_problem
from train.mission import open_encoder
from train.resume import SAMPLE

CountOrNone = Annotated[int, Parameter(validator=Number(gte=0))]
"""A whole number, 0 included."""
Weight = Annotated[float, Parameter(validator=Number(gt=-inf, lt=inf))]
"""A finite number."""
_WEIGHT = "weight_"
_PYTHON = ActorCriticParams()
"""Whose defaults are those of the flags, but for two that cost nothing here."""


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class HybridFlags:
    """How candidates are drawn, and how actor and population learn."""

    num_candidates: Count = _PYTHON.num_candidates
    """Prompts that are tried for a question."""
    update_interval: Count = _PYTHON.update_interval
    """The prompts evolve after so many steps that brought a reward."""
    exploration: Share = _PYTHON.exploration
    """The share of the actor's draws that pay no heed to what it learned."""
    parallel_eval: bool = True
    """Candidates are drawn and scored side by side; the results are the same either way."""
    max_workers: Count | None = _PYTHON.max_workers
    """The most calls at once [as many as keep the server busy]."""
    max_tokens: Count = _PYTHON.max_tokens
    """A candidate is cut after so many, thoughts included, as by --num-predict elsewhere."""
    temperature: NotNegative = _PYTHON.temperature
    """Of the candidates; the final comparison is made at 0."""
    feedback_for_all: bool = True
    """The scorer of the task judges every candidate, not the chosen one alone; that costs no call. (In Python
    the default is no: there feedback may come from people.)"""
    weight_feedback: Weight = _PYTHON.weights.feedback
    """What the scorer's judgement weighs in the reward."""
    weight_critic: Weight = _PYTHON.weights.critic
    """What the critic's score weighs in the reward."""
    weight_tokens: Weight = _PYTHON.weights.tokens
    """What a token weighs in the reward."""
    learning_rate: NotNegative = _PYTHON.learning_rate
    """Of the actor."""
    entropy: NotNegative = _PYTHON.entropy
    """What the entropy of the actor's policy is worth beside a reward."""
    population_size: Count = _PYTHON.population_size
    """How many prompts there are, always."""
    elite_size: CountOrNone = _PYTHON.elite_size
    """The best prompts, kept as they are."""
    mutation_rate: Share = _PYTHON.mutation_rate
    """The chance that a section of a child is mutated."""
    crossover_rate: Share = _PYTHON.crossover_rate
    """The chance that a child has two parents."""
    model_share: Share = _PYTHON.model_share
    """The share of mutations that the mutator model makes; the others are by rule."""

    def params(self, seed: int) -> ActorCriticParams:
        """As the flow takes them."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        names = [name for name in given if name.startswith(_WEIGHT)]
        weights = {name.removeprefix(_WEIGHT): given.pop(name) for name in names}
        return ActorCriticParams(**given, weights=RewardWeights(**weights), seed=seed)


if TYPE_CHECKING:
    from rich.table import Table

    from ollama_utils.encoders import Encoder

MOST_PROMPTS = 5
"""Prompts of the population that the table shows; results.json has them all."""
HELD_OUT = (
    "On questions that the search did not see, one call each at temperature 0: the share that is solved, and "
    "the difference to the seed prompt in points, with a 95 % interval, paired by question. {actor} Holm: p "
    "adjusted for both tests. n: the questions that all three have a score for; the others, {left_out} of "
    "{all} (a call failed), are left out of every row."
)
UNSCORED = (
    "{unscored} of {candidates} candidates have no score, as a call failed or the critic did: nothing was "
    "learned from them"
)
TAKES = {
    "learning": "The actor takes for each question the prompt of the population that it likes best.",
    "random": "The actor draws one of the prompts by chance for each question.",
    "fixed": "The actor takes the first seed prompt for each question.",
}
EDGE = (
    "how much more reward a prompt brought than the others that were tried for the same question (tried "
    "alone: than the average try), as a mean drawn towards 0 while tries are few"
)
EDGE_BY_ACTOR = {
    "learning": EDGE,
    "random": EDGE,
    "fixed": "with a fixed actor it says nothing, as no other prompt was tried",
}
POPULATION = (
    "{shown} of {all} prompts shown, the best first, as ranked by edge. Edge: {edge}. Reward: a prompt's "
    "mean over so many tries; the sum of {feedback:g} x what the scorer says, {critic:g} x the critic's "
    "score and {tokens:g} x the tokens, so that it is no share and may exceed 1."
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OptimizeConfig:
    """Everything a hybrid search is told. Defaults < --config FILE < flags."""

    steps: Count = 400
    """Questions that are answered, those of the task over and over."""
    batch_size: Count = 8
    """Questions under way at once, under the policy as it is."""
    actor: Literal["learning", "random", "fixed"] = "learning"
    """Who chooses the prompts: a policy that learns, chance, or always the first seed prompt."""
    critic: Literal["llm", "ridge", "both"] | None = None
    """Who scores the candidates: a judge model, a regression that learns from feedback, or the mean of both
    [both where there is a judge model, else ridge]."""
    encoder: str = "hashing"
    """Embeds texts for actor and ridge: `hashing` (by their words, at no cost), a sentence-transformers name
    or path, or `ollama:<model>`. `all-MiniLM-L6-v2` knows words of like meaning: worth a try where questions
    of a kind share few words and calls take seconds; with fast calls it sets the pace on a few cores."""
    seed_prompt: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A prompt to begin with, as text or as a file (repeatable) [a plain one]."""
    held_out: Share = 0.3
    """The share of the questions that only the final comparison sees; 0 makes none."""
    hybrid: HybridFlags = field(default_factory=HybridFlags)
    calls: CallFlags = field(default_factory=CallFlags)
    search: SearchConfig = field(default_factory=SearchConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> OptimizeConfig:
        """The same with absolute paths."""
        return replace(
            self,
            encoder=str(absolute(self.encoder)) if Path(self.encoder).is_dir() else self.encoder,
            seed_prompt=tuple(map(located_prompt, self.seed_prompt)),
            search=self.search.located(),
            server=self.server.located(),
        )


def optimize(config: OptimizeConfig = OptimizeConfig()) -> None:
    """Learn which system prompt suits which question, while the prompts evolve.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    config = config.located()
    config.search.check_places()
    carry_out(_Optimize(config))


class _Optimize:
    """What `mutagym optimize` adds to the course of a search."""

    name = "optimize"
    simulated_target = "sim-solver"
    named_by = "--target-model"
    may_change: tuple[str, ...] = ("parallel-eval", "max-workers")

    def __init__(self, config: OptimizeConfig) -> None:
        self.config = config
        self._task = load_task(config.search)
        self._seeds = [read_prompt(text, "--seed-prompt") for text in config.seed_prompt]
        self._sides = split_task(self._task, config.held_out, config.search.seed)

    def digests(self, connection: Connection) -> Mapping[str, str]:
        """What stands for the weights of each model that may be asked."""
        return connection.digests(self.config.encoder)

    def search(self, connection: Connection) -> Search:
        """The hybrid search."""
        config = self.config
        encoder = open_encoder(config.encoder, connection.dispatcher, config.search.cache)
        making = self._making(connection, encoder)
        making.check()
        return Search(
            config=replace(config, critic=making.critic, server=connection.resolve(config.server)),
            says=f"{config.actor} actor, critic {making.critic}, {config.steps} steps, "
            f"{len(self._task.problems)} questions",
            what="steps",
            total=config.steps,
            width=config.hybrid.max_workers or config.batch_size * config.hybrid.num_candidates,
            prints=prints_of(self._task)
            | prompt_prints({f"seed {place}": text for place, text in enumerate(self._seeds)})
            | _encoder_print(config.encoder, encoder),
            run=lambda recorder: _outcome(making.run(recorder), config),
        )

    def report(self, results: Mapping[str, Any], spent: Mapping[str, Any]) -> dict[str, Any]:
        """The results, less the rewards step by step."""
        del spent
        return {key: value for key, value in results.items() if key != "rewards"}

    def tables(self, report: Mapping[str, Any]) -> tuple[Parts, Iterable[str]]:
        """The comparison, the best prompts, and the best one in full."""
        hybrid, actor = self.config.hybrid, report["actor"]
        says = POPULATION.format(
            shown=min(MOST_PROMPTS, len(report["population"])),
            all=len(report["population"]),
            edge=EDGE_BY_ACTOR[actor],
            feedback=hybrid.weight_feedback,
            critic=hybrid.weight_critic,
            tokens=hybrid.weight_tokens,
        )
        parts = [
            ([_held_out(report)], _held_out_says(report)),
            ([_population(report)], says),
        ]
        unscored = UNSCORED.format(**report)
        return parts, [unscored, "", "best prompt:", str(report["best_prompt"])]

    def _making(self, connection: Connection, encoder: Encoder) -> Optimizing:
        from search.call_pool import CallPool, callers_for
        from search.task import SEED_INSTRUCTIONS

        config, workers = self.config, self.config.hybrid.max_workers
        train, held_out = self._sides
        return Optimizing(
            params=replace(
                config.hybrid.params(config.search.seed),
                max_workers=callers_for(workers) if workers else None,
            ),
            actor=config.actor,
            critic=config.critic or ("both" if connection.roles.judge else "ridge"),
            prompts=self._seeds or [SEED_INSTRUCTIONS],
            roles=connection.roles,
            calls=config.calls,
            encoder=encoder,
            llm=CallPool(connection.dispatcher, workers) if workers else connection.dispatcher,
            train=train,
            held_out=held_out if held_out.problems else None,
            steps=config.steps,
            batch_size=config.batch_size,
        )


def _outcome(results: Mapping[str, Any], config: OptimizeConfig) -> Outcome:
    told = {"actor": config.actor, "seed": config.search.seed}
    return Outcome(results=told | dict(results), files={"best_prompt.txt": f"{results['best_prompt']}\n"})


def _encoder_print(name: str, encoder: Encoder) -> dict[str, str]:
    """What stands for an encoder; one of the server's has its model's digest."""
    if name.startswith("ollama:"):
        return {}
    return {f"encoder {name}": sha256(encoder.encode([SAMPLE])[0].tobytes()).hexdigest()}


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
            number(None if arm["score"] is None else 100 * arm["score"], "{:.1f}"),
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


CriticKind = Literal["llm", "ridge", "both"]


class MeanCritic:
    """Scores by the mean of several critics, each calibrated by itself; all of them learn.

    Args:
        critics: at least one.
    """

    def __init__(self, critics: Sequence[Critic]) -> None:
        self._critics = critics

    def score(self, prompt: str, query: str, response: str) -> float:
        """What a reply is worth, 0 to 1.

        Raises:
            OllamaError: one of them has no score.
        """
        return fmean(critic.score(prompt, query, response) for critic in self._critics)

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        """Learn what a reply was worth.

        Raises:
            OllamaError: one of them learned nothing.
        """
        for critic in self._critics:
            critic.feedback(prompt, query, response, value)


def critics_by_name(
    kind: CriticKind, llm: Llm, roles: Roles, encoder: Encoder, seed: int, options: Mapping[str, Any]
) -> dict[str, LLMCritic | RidgeCritic]:
    """The critics of a kind.

    Args:
        kind: which.
        llm: answers the calls of a model.
        roles: whose judge is asked.
        encoder: of the regression.
        seed: of the model's calls.
        options: Ollama's for them.

    Raises:
        UserError: a model is needed, and none is named.
    """
    made: dict[str, LLMCritic | RidgeCritic] = {}
    if kind != "ridge":
        if roles.judge is None:
            raise UserError(f"--critic {kind} asks a model: name it with --judge-model, or take ridge")
        made["llm"] = LLMCritic(llm, roles.judge, seed=seed, options=options)
    if kind != "llm":
        made["ridge"] = RidgeCritic(encoder)
    return made


def calibrations(critics: dict[str, LLMCritic | RidgeCritic]) -> dict[str, dict[str, Any]]:
    """How well each critic's scores held against the feedback, raw and calibrated."""
    return {name: asdict(critic.calibration()) for name, critic in critics.items()}


ActorKind = Literal["learning", "random", "fixed"]
SEED_PROMPT, BEST_PROMPT, ACTOR = "seed prompt", "best prompt", "actor"
LATELY = 50
"""The progress line tells what share of so many last questions was solved."""


@dataclass(frozen=True, kw_only=True)
class Optimizing:
    """What a search is made of."""

    params: ActorCriticParams
    actor: ActorKind
    critic: CriticKind
    prompts: Sequence[str]
    """What the population begins with, kept as it writes them; the first one is what the others are compared
    with."""
    roles: Roles
    calls: CallFlags
    encoder: Encoder
    llm: Llm
    train: Task
    held_out: Task | None
    steps: int
    batch_size: int
    """Questions under way at once under one policy."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", [PromptSections.read(prompt).text for prompt in self.prompts])

    def run(self, recorder: Recorder) -> dict[str, Any]:
        """Search, then compare; plain data that depends on the seed and the replies alone."""
        critics = self._critics()
        flow = self._flow(MeanCritic(list(critics.values())))
        problems = {problem.question: problem for problem in self.train.problems}

        def feedback(query: str, reply: str) -> float:
            return self.train.scorer(problems[query], reply)

        rewards: list[float | None] = []
        candidates = 0
        solved: list[float] = []
        for queries in self._batches():
            told = flow.step_many(queries, human_feedback=feedback)
            rewards += [each.reward for each in told]
            candidates += sum(len(each.scores) for each in told)
            solved += [each.feedback for each in told if each.feedback is not None]
            recorder.record(flow.steps, _metrics(flow, told), done=flow.steps, standing=_lately(solved))
        return {
            "steps": flow.steps,
            "rewarded_steps": flow.rewarded_steps,
            "candidates": candidates,
            "unscored": flow.unscored,
            "generations": flow.population.generation,
            "rewards": rewards,
            "population": _ranked(flow.population),
            "best_prompt": flow.population.best.prompt,
            "seed_prompt": self.prompts[0],
            "calibration": finite(calibrations(critics)),
            "held_out": self._compare(flow) if self.held_out else None,
        }

    def check(self) -> None:
        """Make what a run makes, without a call.

        Raises:
            UserError: something cannot be made of these settings.
        """
        self._critics()
        try:
            self._flow(MeanCritic([]))
        except ValueError as error:
            raise UserError(str(error)) from error

    def _critics(self) -> dict[str, LLMCritic | RidgeCritic]:
        return critics_by_name(
            self.critic, self.llm, self.roles, self.encoder, self.params.seed, self.calls.options
        )

    def _flow(self, critic: MeanCritic) -> HybridOptimizationFlow:
        return HybridOptimizationFlow.from_params(
            self.params,
            self.llm,
            model=self.roles.target,
            prompts=self.prompts,
            encoder=self.encoder,
            critic=critic,
            actor=self._actor(),
            reword=SectionRewording(
                llm=self.llm,
                model=self.roles.mutator,
                options=self.calls.options,
                think=self.calls.think and None,  # never made to think: it may be a model that cannot
            ),
            options=self.calls.options,
            think=self.calls.think,
        )

    def _actor(self) -> Actor | None:
        match self.actor:
            case "learning":
                return None
            case "random":
                return RandomActor(self.params.seed)
            case "fixed":
                return FixedActor(self.prompts[0])

    def _batches(self) -> list[list[str]]:
        """The questions in the order they are asked: all of them in one order, then in another."""
        order: list[str] = []
        while len(order) < self.steps:
            questions = [problem.question for problem in self.train.problems]
            chance(self.params.seed, "questions", len(order)).shuffle(questions)
            order += questions
        order = order[: self.steps]
        return [order[start : start + self.batch_size] for start in range(0, self.steps, self.batch_size)]

    def _compare(self, flow: HybridOptimizationFlow) -> list[dict[str, Any]]:
        """What each arm solves of the held-out problems, less what the seed prompt does, paired.

        A problem counts where all arms have a score, and for none where one has not: so every share is of
        the same problems, and the differences are those of the shares.
        """
        problems = self.held_out.problems if self.held_out else ()
        chosen = {
            SEED_PROMPT: [self.prompts[0]] * len(problems),
            BEST_PROMPT: [flow.population.best.prompt] * len(problems),
            ACTOR: [_choice(flow, problem, place) for place, problem in enumerate(problems)],
        }
        asked = [
            (problem, prompt)
            for prompts in chosen.values()
            for problem, prompt in zip(problems, prompts, strict=True)
        ]
        scores = iter(do_all(lambda each: self._trial(*each), asked, self.params.max_workers))
        trials = {name: [next(scores) for _ in prompts] for name, prompts in chosen.items()}
        whole = [all(each) for each in zip(*trials.values(), strict=True)]
        trials = {name: [t if w else [] for t, w in zip(trials[name], whole, strict=True)] for name in chosen}
        told = [_arm(name, trials[name], trials[SEED_PROMPT]) for name in chosen]
        adjusted = holm([arm["p_value"] for arm in told[1:]])
        for arm, p in zip(told[1:], adjusted, strict=True):
            arm["p_holm"] = p
        return told

    def _trial(self, problem: Problem, prompt: str) -> list[float]:
        """The score of the reply, alone; nothing where there is none."""
        call = ask_problem(
            problem,
            prompt,
            model=self.roles.target,
            options={**self.calls.options, "num_predict": self.params.max_tokens},
            think=self.calls.think,
            seed=self.params.seed,
        )
        reply = self.llm.generate(call)
        return [] if reply.error else [float(self.train.scorer(problem, reply.text))]


def _choice(flow: HybridOptimizationFlow, problem: Problem, place: int) -> str:
    """The prompt that the actor would take: one that learned takes the likeliest, others draw."""
    prompts, actor = flow.population.prompts, flow.actor
    if isinstance(actor, PolicyActor):
        return prompts[int(actor.probabilities(problem.question, prompts).argmax())]
    return actor.choose(problem.question, prompts, 1, flow.steps + place).chosen[0]


def _ranked(population: PromptPopulation) -> list[dict[str, Any]]:
    """The prompts as the population ranks them: the first is its best."""
    return [
        {"prompt": each.prompt, "edge": each.edge, "fitness": each.fitness, "tries": each.tries}
        for each in population.ranked
    ]


def _lately(solved: Sequence[float]) -> str | None:
    """What share of the last questions the chosen replies solved, in words."""
    last = solved[-LATELY:]
    return f"solved {fmean(last):.0%} of the last {len(last)} questions" if last else None


def _arm(name: str, trials: Sequence[Sequence[float]], seed: Sequence[Sequence[float]]) -> dict[str, Any]:
    scores = [score for each in trials for score in each]
    told = {
        "name": name,
        "score": fmean(scores) if scores else None,
        "queries": len(scores),
        "left_out": len(trials) - len(scores),
    }
    if name == SEED_PROMPT:
        return told
    return told | finite(asdict(compare(trials, seed)))


def _metrics(flow: HybridOptimizationFlow, told: Sequence[StepResult]) -> dict[str, float | None]:
    """A batch's numbers by TensorBoard's names."""
    members = flow.population.members
    return {
        "optimize/reward": _mean([each.reward for each in told]),
        "optimize/feedback": _mean([each.feedback for each in told]),
        "optimize/candidate_reward": _mean([reward for each in told for reward in each.rewards]),
        "optimize/critic": _mean([score for each in told for score in each.scores]),
        "optimize/unscored": sum(each.unscored for each in told),
        "population/best_fitness": flow.population.best.fitness,
        "population/mean_fitness": _mean([member.fitness for member in members]),
        "population/generation": flow.population.generation,
        "population/size": len(members),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
