"""A hybrid search from its first question to its comparison on held-out ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from ollama_utils.connect import Roles
from ollama_utils.encoders import Encoder
from ollama_utils.types import Call, Think
from records.errors import UserError, as_user_error
from records.metrics import finite
from scorers.comparison import compare, holm
from scorers.critic import Critic, LLMCritic, RidgeCritic
from scorers.json_replies import Model
from search.candidates import do_all
from search.chance import chance
from search.hybrid import ActorCriticParams, HybridOptimizationFlow
from search.optimizing.actors import Actor, FixedActor, PolicyActor, RandomActor
from search.optimizing.prompts import PromptSections, SectionRewording
from search.optimizing.rewards import StepResult
from search.task import Problem, Task, ask_problem

ActorKind = Literal["learning", "random", "fixed"]
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


SEED_PROMPT, BEST_PROMPT, ACTOR = "seed prompt", "best prompt", "actor"
LATELY = 50
"""The progress line tells what share of so many last questions was solved."""


@dataclass(frozen=True, kw_only=True)
class HybridRun:
    """A hybrid search that is ready to begin."""

    params: ActorCriticParams
    actor: ActorKind
    critic: CriticKind
    prompts: Sequence[str]
    """What the population begins with, kept as it writes them; the first one is what the others are compared
    with."""
    roles: Roles
    options: Mapping[str, Any]
    """Ollama's, of every call."""
    think: Think | None
    """Whether a thinking target thinks; None leaves it to the server."""
    encoder: Encoder
    llm: Model
    train: Task
    held_out: Task | None
    steps: int
    batch_size: int
    """Questions under way at once under one policy."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", [PromptSections.read(prompt).text for prompt in self.prompts])

    def play(self, record: Callable[..., None]) -> dict[str, Any]:
        """Search, then compare; plain data that depends on the seed and the replies alone.

        Args:
            record: called after each batch with the steps so far, its metrics, and by keyword `done` and
                `status`: the steps again, and in words how well the search does.
        """
        critics = self._critics()
        flow = self._flow(MeanCritic(list(critics.values())))
        problems = {problem.question: problem for problem in self.train.problems}

        def feedback(query: str, reply: str) -> float:
            return self.train.scorer(problems[query], reply)

        rewards: list[float | None] = []
        candidates = 0
        solved: list[float] = []
        for queries in self._batches():
            steps = flow.step_many(queries, human_feedback=feedback)
            rewards += [each.reward for each in steps]
            candidates += sum(len(each.scores) for each in steps)
            solved += [each.feedback for each in steps if each.feedback is not None]
            record(flow.steps, _metrics(flow, steps), done=flow.steps, status=_lately(solved))
        return {
            "steps": flow.steps,
            "rewarded_steps": flow.rewarded_steps,
            "candidates": candidates,
            "unscored": flow.unscored,
            "generations": flow.population.generation,
            "rewards": rewards,
            "population": [
                {"prompt": each.prompt, "edge": each.edge, "fitness": each.fitness, "tries": each.tries}
                for each in flow.population.ranked
            ],
            "best_prompt": flow.population.best.prompt,
            "seed_prompt": self.prompts[0],
            "calibration": finite({name: asdict(critic.calibration()) for name, critic in critics.items()}),
            "held_out": self._compare(flow) if self.held_out else None,
        }

    @property
    def most_calls(self) -> int:
        """The calls that it makes at most, those that embed and failed attempts left out."""
        params = self.params
        scored = 1 + 2 * (self.critic != "ridge")  # a reply; what a judge says of it, and the repair of that
        children = params.population_size - params.elite_size
        held_out = len(self.held_out.problems) if self.held_out else 0
        evolved = self.steps // params.update_interval * children
        return (
            self.steps * params.num_candidates * scored
            + evolved
            + len((SEED_PROMPT, BEST_PROMPT, ACTOR)) * held_out
        )

    def check(self) -> None:
        """Make what a run makes, without a call.

        Raises:
            UserError: something cannot be made of these settings.
        """
        self._critics()
        with as_user_error(ValueError):
            self._flow(MeanCritic([]))

    def _critics(self) -> dict[str, LLMCritic | RidgeCritic]:
        critics: dict[str, LLMCritic | RidgeCritic] = {}
        if self.critic != "ridge":
            judge = self.roles.judge
            if judge is None:
                raise UserError(
                    f"--critic {self.critic} asks a model: name it with --judge-model, or take ridge"
                )
            critics["llm"] = LLMCritic(self.llm, judge, seed=self.params.seed, options=self.options)
        if self.critic != "llm":
            critics["ridge"] = RidgeCritic(self.encoder)
        return critics

    def _flow(self, critic: MeanCritic) -> HybridOptimizationFlow:
        actors: dict[str, Actor] = {
            "random": RandomActor(self.params.seed),
            "fixed": FixedActor(self.prompts[0]),
        }
        return HybridOptimizationFlow.from_params(
            self.params,
            self.llm,
            model=self.roles.target,
            prompts=self.prompts,
            encoder=self.encoder,
            critic=critic,
            actor=actors.get(self.actor),
            reword=SectionRewording(
                llm=self.llm,
                model=self.roles.mutator,
                options=self.options,
            ),
            options=self.options,
            think=self.think,
        )

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
        arms = [_arm(name, trials[name], trials[SEED_PROMPT]) for name in chosen]
        adjusted = holm([arm["p_value"] for arm in arms[1:]])
        for arm, p in zip(arms[1:], adjusted, strict=True):
            arm["p_holm"] = p
        return arms

    def question(self, problem: Problem, prompt: str) -> Call:
        """What asks the target a problem with a prompt, at temperature 0."""
        return ask_problem(
            problem,
            prompt,
            model=self.roles.target,
            options={**self.options, "num_predict": self.params.max_tokens},
            think=self.think,
            seed=self.params.seed,
        )

    def _trial(self, problem: Problem, prompt: str) -> list[float]:
        """The score of the reply, alone; nothing where there is none."""
        reply = self.llm.generate(self.question(problem, prompt))
        return [] if reply.error else [float(self.train.scorer(problem, reply.text))]


def _choice(flow: HybridOptimizationFlow, problem: Problem, place: int) -> str:
    """The prompt that the actor would take: one that learned takes the likeliest, others draw."""
    prompts, actor = flow.population.prompts, flow.actor
    if isinstance(actor, PolicyActor):
        return prompts[int(actor.probabilities(problem.question, prompts).argmax())]
    return actor.choose(problem.question, prompts, 1, flow.steps + place).chosen[0]


def _lately(solved: Sequence[float]) -> str | None:
    """What share of the last questions the chosen replies solved, in words."""
    last = solved[-LATELY:]
    return f"solved {fmean(last):.0%} of the last {len(last)} questions" if last else None


def _arm(name: str, trials: Sequence[Sequence[float]], seed: Sequence[Sequence[float]]) -> dict[str, Any]:
    scores = [score for each in trials for score in each]
    arm = {
        "name": name,
        "score": fmean(scores) if scores else None,
        "queries": len(scores),
        "left_out": len(trials) - len(scores),
    }
    if name == SEED_PROMPT:
        return arm
    return arm | finite(asdict(compare(trials, seed)))


def _metrics(flow: HybridOptimizationFlow, steps: Sequence[StepResult]) -> dict[str, float | None]:
    """A batch's numbers by TensorBoard's names."""
    members = flow.population.members
    return {
        "optimize/reward": _mean([each.reward for each in steps]),
        "optimize/feedback": _mean([each.feedback for each in steps]),
        "optimize/candidate_reward": _mean([reward for each in steps for reward in each.rewards]),
        "optimize/critic": _mean([score for each in steps for score in each.scores]),
        "optimize/unscored": sum(each.unscored for each in steps),
        "population/best_fitness": flow.population.best.fitness,
        "population/mean_fitness": _mean([member.fitness for member in members]),
        "population/generation": flow.population.generation,
        "population/size": len(members),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
