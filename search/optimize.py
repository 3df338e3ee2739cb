"""Which system prompt suits which query: an actor picks prompts, a critic picks a reply, all learn.

    flow = HybridOptimizationFlow.from_params(ActorCriticParams(), dispatcher, model="llama3.2")
    result = flow.step("What is 2 + 2?", human_feedback=lambda query, reply: float("4" in reply))

In a step the actor picks K prompts of a population for a query. Each gets a reply (a candidate),
the critic scores it, and the reply with the highest score is the response. Feedback on the response
gives rewards, which teach the critic, the actor and the records of the prompts; now and then the
population evolves. A candidate without a score takes part in none of that. The results depend on
the seed and the replies alone, however many calls are in flight.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Annotated, Any, Protocol, runtime_checkable

from cyclopts import Parameter

from mutators.system_prompts import WrongAnswer
from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.errors import ENDS_THE_RUN
from ollama_utils.types import Call, Completion, Think
from records.metrics import finite
from records.settings import Count, CountOrZero, Finite, NotNegative, Share, without_flag
from scorers.comparison import compare, holm
from scorers.judge import Model
from search.actors import LEARNING_RATE, Choice, PolicyActor, RandomActor, RidgeCritic
from search.candidates import MAX_TOKENS, TEMPERATURE, candidate_calls, in_parallel
from search.chance import chance, seed_of
from search.population import PromptPopulation
from search.rewording import Breeder, Rewriter, raise_if_cancelled
from search.task import SEED_INSTRUCTIONS, Problem, Task

FAILURES_SHOWN = 5
"""Wrong replies under a prompt, which its mutator is shown."""
FAILURE_CHARS = 400
"""Of the end of a wrong reply."""
LATELY = 50
"""The progress line says what share of so many last questions was solved."""
SEED_PROMPT, BEST_PROMPT, ACTOR = "seed prompt", "best prompt", "actor"

_log = logging.getLogger(__name__)


class Critic(Protocol):
    """Scores replies, on any thread."""

    def score(self, prompt: str, query: str, response: str) -> float:
        """What a reply is worth, from 0 to 1; where this raises, the reply is unscored."""
        ...


@runtime_checkable
class LearningCritic(Critic, Protocol):
    """A critic that learns from feedback."""

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        """Learn what a reply was worth, from 0 to 1."""
        ...


class MeanCritic:
    """Scores by the mean of several critics; those that learn from feedback do.

    Args:
        critics: at least one.
    """

    def __init__(self, *critics: Critic) -> None:
        self._critics = critics

    def score(self, prompt: str, query: str, response: str) -> float:
        """The mean of their scores; what one of them raises is raised."""
        return fmean(critic.score(prompt, query, response) for critic in self._critics)

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        """Teach those that learn."""
        for critic in self._critics:
            if isinstance(critic, LearningCritic):
                critic.feedback(prompt, query, response, value)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A reply to a query under one prompt."""

    prompt: str
    text: str | None
    """The reply; None where the call failed."""
    tokens: int = 0
    """Of question and reply, as the server counted them."""
    score: float | None = None
    """The critic's, 0 to 1; None where the call or the critic failed."""
    feedback: float | None = None
    """0 to 1; None where there is none."""
    reward: float | None = None
    """None where there is no score: then nothing is learned of it."""


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """The reward of a candidate that has a score: a weighted sum."""

    feedback: Annotated[Finite, Parameter(name="--weight-feedback")] = 1.0
    """What the scorer's judgement, 0 to 1, weighs in the reward; without one the critic's score."""
    critic: Annotated[Finite, Parameter(name="--weight-critic")] = 0.8
    """What the critic's score, 0 to 1, weighs in the reward."""
    tokens: Annotated[Finite, Parameter(name="--weight-tokens")] = -0.001
    """What a token of question and reply weighs in the reward."""

    def __call__(self, _query: str, candidate: Candidate) -> float:
        """The reward."""
        score = candidate.score or 0.0
        feedback = score if candidate.feedback is None else candidate.feedback
        return self.feedback * feedback + self.critic * score + self.tokens * candidate.tokens


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class ActorCriticParams:
    """The numbers of a flow."""

    num_candidates: Count = 5
    """K, how many prompts are tried for a question."""
    update_interval: Count = 40
    """The prompts evolve after so many steps that had a reward."""
    exploration: Share = 0.1
    """The share of the actor's draws that are even, whatever it learned."""
    learning_rate: NotNegative = LEARNING_RATE
    """Of the actor."""
    population_size: Count = 20
    """How many prompts there are; fewer only while mutations make equal ones."""
    elite_size: CountOrZero = 4
    """The best prompts, which a generation keeps."""
    max_tokens: Count = MAX_TOKENS
    """The most tokens of a candidate or a rewording; a rewording that is cut is not taken."""
    temperature: NotNegative = TEMPERATURE
    """Of the candidates; the final comparison is made at 0."""
    max_workers: Count | None = None
    """The most calls at once [as many as keep the server busy]."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Of the parts of a reward."""
    parallel_eval: Annotated[bool, without_flag()] = False
    """Calls are made side by side; the results are the same either way."""
    feedback_for_all: Annotated[bool, without_flag()] = False
    """Feedback that is a function is called for every candidate, on several threads; else for the
    response alone, on the caller's thread, one query after another."""
    seed: Annotated[int, without_flag()] = 0
    """Of all chance."""

    def __post_init__(self) -> None:
        """Check what would fail late.

        Raises:
            ValueError: a count is below 1.
        """
        for name in ("num_candidates", "update_interval", "population_size", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected at least 1")

    @property
    def workers(self) -> int | None:
        """The most calls at once; None: as many as the dispatcher lets through."""
        return self.max_workers if self.parallel_eval else 1


@dataclass(frozen=True, kw_only=True)
class AskedStep:
    """A query, and the prompts that the actor chose for it."""

    step: int
    query: str
    choice: Choice
    calls: tuple[Call, ...]
    """One for each chosen prompt, in order."""

    def best_of(self, candidates: Sequence[Candidate]) -> int | None:
        """The place of the highest score; of equal ones that of the likeliest prompt."""
        odds = [self.choice.probabilities[place] for place in self.choice.places]
        scored = [
            (each.score, odds[k], -k) for k, each in enumerate(candidates) if each.score is not None
        ]
        return -max(scored)[2] if scored else None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A query, its K candidates in the order of the actor's choice, and the response."""

    step: int
    """The number of the step, from 0."""
    query: str
    candidates: tuple[Candidate, ...]
    best: Candidate | None
    """With the highest score; without any score the first that has a reply; None: all failed."""
    evolved: bool
    """Whether the population evolved after this step."""

    @property
    def response(self) -> str | None:
        """The reply of the best candidate."""
        return self.best.text if self.best else None

    @property
    def unscored(self) -> int:
        """How many candidates have no score."""
        return sum(each.score is None for each in self.candidates)


Feedback = float | Callable[[str, str], float | None] | None
"""0 to 1, or a function of query and reply, called once the reply is there; None: nothing."""
RewardFn = Callable[[str, Candidate], float]
"""The reward of a query's candidate, which has a score."""


class HybridOptimizationFlow:
    """Steps of the hybrid search.

    Args:
        llm: answers the calls, on any thread: a dispatcher.
        population: the prompts.
        actor: picks prompts for a query.
        critic: scores the candidates.
        model: answers the queries, by its name on the server.
        reward_fn: the reward of a candidate; None: the weights of the numbers.
        options: more of Ollama's options (`num_ctx`).
        think: whether a thinking model thinks; None leaves it to the server.
        params: the numbers.
        changes: of the numbers, by name: `parallel_eval=True, max_workers=4`.
    """

    def __init__(  # noqa: PLR0913 - four parts, and what a call carries
        self,
        llm: Model,
        population: PromptPopulation,
        actor: RandomActor,
        critic: Critic,
        *,
        model: str,
        reward_fn: RewardFn | None = None,
        options: Mapping[str, Any] | None = None,
        think: Think | None = None,
        params: ActorCriticParams | None = None,
        **changes: Any,  # noqa: ANN401 - the fields of `params`
    ) -> None:
        self.llm, self.population, self.actor, self.critic = llm, population, actor, critic
        self.params = replace(params or ActorCriticParams(), **changes)
        self.steps = 0
        """How many were asked."""
        self.rewarded_steps = 0
        """How many had a reward."""
        self._reward_fn = reward_fn or self.params.weights
        own = {"num_predict": self.params.max_tokens, "temperature": self.params.temperature}
        self._like = Call(model=model, prompt="", options={**(options or {}), **own}, think=think)

    @classmethod
    def from_params(  # noqa: PLR0913 - one keyword for each part that can be another
        cls,
        params: ActorCriticParams,
        llm: Model,
        *,
        model: str,
        mutator_model: str | None = None,
        prompts: Sequence[str] = (SEED_INSTRUCTIONS,),
        encoder: Encoder | None = None,
        critic: Critic | None = None,
        actor: RandomActor | None = None,
        options: Mapping[str, Any] | None = None,
        **more: Any,  # noqa: ANN401 - the flow's own keywords
    ) -> HybridOptimizationFlow:
        """The flow of a configuration.

        Args:
            params: its numbers.
            llm: answers the calls.
            model: answers the queries.
            mutator_model: rewords prompts; None: `model`.
            prompts: the population's first ones.
            encoder: for actor and critic; None: hashing, which needs no model.
            critic: None: a `RidgeCritic`, which learns from feedback alone.
            actor: None: a `PolicyActor`.
            options: more of Ollama's options, for all calls.
            more: `reward_fn` and `think` of the flow.

        Raises:
            ValueError: a number is out of range.
        """
        encoder = encoder or make_encoder("hashing")
        limit = {**(options or {}), "num_predict": params.max_tokens}
        population = PromptPopulation(
            prompts,
            size=params.population_size,
            elite_size=params.elite_size,
            breeder=Breeder(
                generate=llm.generate,
                rewriter=Rewriter(model=mutator_model or model, options=limit),
                failures_shown=FAILURES_SHOWN,
            ),
            seed=params.seed,
        )
        learning = PolicyActor(
            encoder,
            seed=params.seed,
            exploration=params.exploration,
            learning_rate=params.learning_rate,
        )
        parts = (llm, population, actor or learning, critic or RidgeCritic(encoder))
        return cls(*parts, model=model, options=options, params=params, **more)

    def step(self, query: str, human_feedback: Feedback = None) -> StepResult:
        """Answer a query, and learn from it: see `step_many`."""
        return self.step_many([query], human_feedback)[0]

    def step_many(
        self, queries: Sequence[str], human_feedback: Feedback = None
    ) -> list[StepResult]:
        """Answer several queries under the policy as it is, then learn from them in their order.

        Args:
            queries: what is asked; all their candidates are made side by side.
            human_feedback: on the responses; with `feedback_for_all` a function judges every
                candidate. Without feedback the critic's score stands in its place.

        Raises:
            ValueError: feedback that is not from 0 to 1. Then, as where its function raises, no
                step is counted and nothing is learned: the same queries again are the same calls.
            EncodingError: a query or a prompt has no embedding.
            CallCancelledError: the run was stopped.
        """
        self.population.fill(self.params.workers)
        asked = [self._asked(query, self.steps + k) for k, query in enumerate(queries)]
        jobs = [(each, place) for each in asked for place in range(len(each.calls))]
        made = iter(in_parallel(lambda job: self._candidate(*job), jobs, self.params.workers))
        answered = [(each, [next(made) for _ in each.calls]) for each in asked]
        rewarded = self._rewarded(answered, human_feedback)
        self.steps += len(asked)
        return [self._learn(*each) for each in rewarded]

    def ask(self, query: str) -> AskedStep:
        """The prompts to try for a query, and the calls that do; the replies go to `tell`.

        Several queries may be asked before the first is learned from.

        Raises:
            EncodingError: the query or a prompt has no embedding.
        """
        self.population.fill(self.params.workers)
        self.steps += 1
        return self._asked(query, self.steps - 1)

    def tell(
        self, asked: AskedStep, replies: Sequence[str | None], human_feedback: Feedback = None
    ) -> StepResult:
        """Learn from the replies to the calls of `ask`, in their order; None: the call failed.

        Raises:
            ValueError: there is not one reply for each call, or feedback not from 0 to 1.
        """
        pairs = zip(asked.choice.chosen, replies, strict=True)
        made = [Candidate(prompt=prompt, text=reply) for prompt, reply in pairs]
        scored = in_parallel(
            lambda each: self._scored(asked.query, each), made, self.params.workers
        )
        return self._learn(*self._rewarded([(asked, scored)], human_feedback)[0])

    def best_prompt(self, query: str) -> str:
        """The prompt that the actor likes best for a query; nothing is learned."""
        return self.actor.choose(query, self.population.prompts, 1, self.steps).favourite

    def final_call(self, query: str, prompt: str) -> Call:
        """What asks a query under a prompt after the search: a call at temperature 0."""
        like = replace(self._like, prompt=query, options={**self._like.options, "temperature": 0})
        return candidate_calls(like, [prompt], self.params.seed)[0]

    def _asked(self, query: str, step: int) -> AskedStep:
        choice = self.actor.choose(query, self.population.prompts, self.params.num_candidates, step)
        seed = seed_of(self.params.seed, "step", step)
        calls = candidate_calls(replace(self._like, prompt=query), choice.chosen, seed)
        return AskedStep(step=step, query=query, choice=choice, calls=tuple(calls))

    def _candidate(self, asked: AskedStep, place: int) -> Candidate:
        """The reply to one call, scored."""
        reply = raise_if_cancelled(self.llm.generate(asked.calls[place]))
        prompt, used = asked.choice.chosen[place], reply.usage
        if reply.error:
            _log.warning("a candidate has no score: %r", reply.error)
            return Candidate(prompt=prompt, text=None)
        tokens = used.prompt_tokens + used.completion_tokens if used else 0
        return self._scored(asked.query, Candidate(prompt=prompt, text=reply.text, tokens=tokens))

    def _scored(self, query: str, candidate: Candidate) -> Candidate:
        if candidate.text is None:
            return candidate
        try:
            score = self.critic.score(candidate.prompt, query, candidate.text)
            return replace(candidate, score=_checked("score", score))
        except ENDS_THE_RUN:
            raise
        except Exception as error:  # noqa: BLE001 - a critic of the user's may raise anything
            _log.warning("a candidate has no score: %r", error)
            return candidate

    def _rewarded(
        self, answered: Sequence[tuple[AskedStep, Sequence[Candidate]]], human_feedback: Feedback
    ) -> list[tuple[AskedStep, list[Candidate]]]:
        """The same with feedback and rewards; people are asked one by one."""
        for_all = self.params.feedback_for_all and callable(human_feedback)
        jobs = [
            (asked.query, each, human_feedback if for_all or k == asked.best_of(made) else None)
            for asked, made in answered
            for k, each in enumerate(made)
        ]
        if for_all:
            done = iter(in_parallel(lambda job: self._reward(*job), jobs, self.params.workers))
        else:
            done = iter([self._reward(*job) for job in jobs])
        return [(asked, [next(done) for _ in made]) for asked, made in answered]

    def _reward(self, query: str, candidate: Candidate, human_feedback: Feedback) -> Candidate:
        if candidate.text is None or candidate.score is None:
            return candidate
        value = human_feedback
        if callable(value):
            value = value(query, candidate.text)
        if value is not None:
            candidate = replace(candidate, feedback=_checked("human_feedback", value))
        reward = float(self._reward_fn(query, candidate))
        if not math.isfinite(reward):
            raise ValueError(f"expected a finite reward, got {reward!r} for {candidate!r:.200}")
        return replace(candidate, reward=reward)

    def _learn(self, asked: AskedStep, candidates: Sequence[Candidate]) -> StepResult:
        """Teach records, critic and actor, in the candidates' order; evolve when it is time."""
        total = math.fsum(each.reward for each in candidates if each.reward is not None)
        others = sum(each.reward is not None for each in candidates) - 1
        for each in candidates:
            if each.reward is None or each.text is None:
                continue
            mean = (total - each.reward) / others if others else None
            is_wrong = each.feedback is not None and each.feedback < 1
            failure = WrongAnswer(asked.query, None, each.text[-FAILURE_CHARS:])
            self.population.record(each.prompt, each.reward, mean, failure if is_wrong else None)
            if each.feedback is not None and isinstance(self.critic, LearningCritic):
                self.critic.feedback(each.prompt, asked.query, each.text, each.feedback)
        self.actor.learn(asked.choice, [each.reward for each in candidates])
        self.rewarded_steps += others >= 0
        evolves = others >= 0 and self.rewarded_steps % self.params.update_interval == 0
        if evolves:
            self.population.evolve(self.params.workers)
        best = asked.best_of(candidates)
        replied = [each for each in candidates if each.text is not None]
        shown = candidates[best] if best is not None else next(iter(replied), None)
        return StepResult(
            step=asked.step,
            query=asked.query,
            candidates=tuple(candidates),
            best=shown,
            evolved=evolves,
        )


def _checked(name: str, value: float) -> float:
    """A number from 0 to 1.

    Raises:
        ValueError: it is none.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"expected {name} from 0 to 1, got {value!r}")
    return float(value)


def optimize_task(
    flow: HybridOptimizationFlow,
    train: Task,
    held_out: Task | None,
    *,
    seed_prompt: str,
    steps: int,
    batch_size: int,
    record: Callable[..., None] = lambda *_args, **_kwargs: None,
) -> dict[str, Any]:
    """Search on the problems of a task, then compare on others; plain data for JSON.

    Args:
        flow: before its first step.
        train: the problems that are asked, over and over; its scorer gives the feedback.
        held_out: problems that no step asks, no prompt shows and nothing is learned from.
        seed_prompt: what actor and best prompt are compared with.
        steps: how many questions are answered.
        batch_size: how many of them at once, under one policy.
        record: called after each batch with the steps so far, its metrics, and by keyword `done`
            (the steps again) and `status` (in words, how well the search does).
    """
    problems = {problem.question: problem for problem in train.problems}
    order: list[str] = []
    while len(order) < steps:
        questions = list(problems)
        chance(flow.params.seed, "questions", len(order)).shuffle(questions)
        order += questions
    results: list[StepResult] = []
    while len(results) < steps:
        batch = order[len(results) : min(len(results) + batch_size, steps)]
        results += flow.step_many(batch, lambda query, reply: train.scorer(problems[query], reply))
        solved = [
            each.best.feedback
            for each in results[-LATELY:]
            if each.best and each.best.feedback is not None
        ]
        status = (
            f"solved {fmean(solved):.0%} of the last {len(solved)} questions" if solved else None
        )
        record(flow.steps, _metrics(flow, results[-len(batch) :]), done=flow.steps, status=status)
    members = flow.population.members
    return {
        "steps": flow.steps,
        "rewarded_steps": flow.rewarded_steps,
        "candidates": sum(len(each.candidates) for each in results),
        "unscored": sum(each.unscored for each in results),
        "generations": flow.population.generation,
        "rewards": [each.best.reward if each.best else None for each in results],
        "population": [
            {"prompt": each.prompt, "edge": each.edge, "fitness": each.fitness, "tries": each.tries}
            for each in members
        ],
        "best_prompt": members[0].prompt,
        "seed_prompt": seed_prompt,
        "held_out": compare_on(held_out, flow, seed_prompt) if held_out else None,
    }


def compare_on(task: Task, flow: HybridOptimizationFlow, seed_prompt: str) -> list[dict[str, Any]]:
    """What seed prompt, best prompt and actor solve of problems held out; nothing is learned.

    Returns:
        For each of them the share it solves, and the difference to the seed prompt, paired. A
        problem counts where all three have a reply, and is left out of every row where one has
        none: so the differences are those of the shares.
    """
    problems, best = task.problems, flow.population.members[0].prompt
    prompts = {
        SEED_PROMPT: [seed_prompt for _ in problems],
        BEST_PROMPT: [best for _ in problems],
        ACTOR: [flow.best_prompt(problem.question) for problem in problems],
    }

    def solved(job: tuple[Problem, str]) -> float | None:
        reply: Completion = raise_if_cancelled(
            flow.llm.generate(flow.final_call(job[0].question, job[1]))
        )
        return None if reply.error else float(task.scorer(job[0], reply.text))

    jobs = [pair for each in prompts.values() for pair in zip(problems, each, strict=True)]
    scores = iter(in_parallel(solved, jobs, flow.params.workers))
    rows = [[next(scores) for _ in problems] for _ in prompts]
    whole = [trial for trial in zip(*rows, strict=True) if None not in trial]
    counts = {"queries": len(whole), "left_out": len(problems) - len(whole)}
    arms: list[dict[str, Any]] = []
    for place, name in enumerate(prompts):
        trials = [[float(trial[place] or 0)] for trial in whole]
        arm: dict[str, Any] = {
            "name": name,
            "score": fmean(t[0] for t in trials) if trials else None,
        }
        if place:
            arm |= finite(asdict(compare(trials, [[float(trial[0] or 0)] for trial in whole])))
        arms.append(arm | counts)
    for arm, p_value in zip(arms[1:], holm([arm["p_value"] for arm in arms[1:]]), strict=True):
        arm["p_holm"] = p_value
    return arms


def _metrics(flow: HybridOptimizationFlow, results: Sequence[StepResult]) -> dict[str, Any]:
    """The numbers of a batch by TensorBoard's names."""
    candidates = [each for result in results for each in result.candidates]
    best, members = [each.best for each in results if each.best], flow.population.members
    return {
        "optimize/reward": _mean(each.reward for each in best),
        "optimize/feedback": _mean(each.feedback for each in best),
        "optimize/candidate_reward": _mean(each.reward for each in candidates),
        "optimize/critic": _mean(each.score for each in candidates),
        "optimize/unscored": sum(result.unscored for result in results),
        "population/best_fitness": members[0].fitness,
        "population/mean_fitness": _mean(member.fitness for member in members),
        "population/generation": flow.population.generation,
        "population/size": len(members),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
