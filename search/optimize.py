"""Which system prompt suits which query: an actor picks prompts, critics pick a reply, all learn.

    flow = HybridOptimizationFlow(dispatcher, model="llama3.2")
    result = flow.step("What is 2 + 2?", human_feedback=lambda query, reply: float("4" in reply))

In a step the actor picks K prompts of a population for a query. Each gets a reply (a candidate),
the critics score it, and the reply with the highest score is the response. Feedback on the response
gives rewards, which teach the critics, the actor and the records of the prompts; now and then the
population evolves. A candidate without a score takes part in none of that. The results depend on
the seed and the replies alone, however many calls are in flight.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Protocol, get_type_hints

import numpy as np
from cyclopts import Parameter

from mutators.system_prompts import WrongAnswer
from ollama_utils.encoders import CachedEncoder, Encoder, make_encoder
from ollama_utils.errors import ENDS_THE_RUN
from ollama_utils.parallel import in_parallel
from ollama_utils.types import Call, Completion, Think, Usage
from records.metrics import finite
from records.settings import Count, CountOrZero, Finite, NotNegative, Share
from scorers.comparison import compare, holm
from scorers.judge import Model
from search.actors import LEARNING_RATE, Choice, PolicyActor, RidgeCritic
from search.chance import chance, seed_of
from search.config import check_numbers
from search.evolution_config import MOST_STEPS, EvolutionConfig
from search.genetics import FAILURE_CHARS, Breeder, PromptPopulation, raise_if_cancelled
from search.task import SEED_INSTRUCTIONS, Problem, Task

MAX_TOKENS, TEMPERATURE = 512, 0.7
"""Of candidates."""
LATELY = 50
"""The progress line says what share of so many last questions was solved."""

_log = logging.getLogger(__name__)


def generate_candidates(
    llm: Model,
    query: str,
    system_prompts: Sequence[str],
    max_tokens: int = MAX_TOKENS,
    temperature: float = TEMPERATURE,
    **more: Any,  # noqa: ANN401 - the other arguments of the parallel one
) -> list[str | None]:
    """`generate_candidates_parallel`, one call after another."""
    return generate_candidates_parallel(
        llm, query, system_prompts, max_tokens, temperature, 1, **more
    )


def generate_candidates_parallel(  # noqa: PLR0913 - the original's arguments, and what names a model
    llm: Model,
    query: str,
    system_prompts: Sequence[str],
    max_tokens: int = MAX_TOKENS,
    temperature: float = TEMPERATURE,
    max_workers: int | None = None,
    *,
    model: str,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[str | None]:
    """K replies to a query, one for each system prompt.

    Args:
        llm: answers the calls, on any thread: a dispatcher.
        query: the user's turn.
        system_prompts: K of them.
        max_tokens: the most tokens of a reply.
        temperature: at 0 equal prompts get equal replies.
        max_workers: the most calls at once; None: all K, as far as the dispatcher lets them.
        model: as the server lists it.
        seed: equal arguments get equal replies from a server that heeds seeds.
        options: more of Ollama's options.

    Returns:
        The replies in order; None for one that failed.
    """
    own = {**(options or {}), "num_predict": max_tokens, "temperature": temperature}
    calls = candidate_calls(Call(model=model, prompt=query, options=own), system_prompts, seed)
    replies = in_parallel(llm.generate, calls, max_workers)
    return [None if reply.error else reply.text for reply in replies]


def candidate_calls(template: Call, system_prompts: Sequence[str], seed: int) -> list[Call]:
    """One call for each system prompt, in order.

    Equal prompts have seeds of their own, by how many equal ones stand before: a prompt's reply is
    the same wherever it stands. At temperature 0 nothing is drawn, and equal prompts are one call.
    """
    calls = []
    for index, prompt in enumerate(system_prompts):
        own = seed_of(seed, "candidate", system_prompts[:index].count(prompt))
        drawn = {**template.options, "seed": own if template.options["temperature"] else seed}
        calls.append(replace(template, system=prompt, options=drawn))
    return calls


class Critic(Protocol):
    """Scores replies, on any thread; one that learns has `feedback(prompt, query, text, value)`."""

    def score(self, prompt: str, query: str, response: str) -> float:
        """What a reply is worth, from 0 to 1; where this raises, the reply is unscored."""
        ...


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A reply to a query under one prompt."""

    prompt: str
    text: str | None
    """None where the call failed."""
    tokens: int = 0
    """Of question and reply, as the server counted them."""
    score: float | None = None
    """The mean of the critics' scores, 0 to 1; None where the call or a critic failed."""
    feedback: float | None = None
    """0 to 1."""
    reward: float | None = None
    """None where there is no score: then nothing is learned of it."""


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class ActorCriticParams:
    """The numbers of a flow; raises ValueError if one is out of its range."""

    num_candidates: Count = 5
    """K, how many prompts are tried for a question."""
    update_interval: Count = 40
    """The prompts evolve after so many steps that had a reward."""
    exploration: Share = 0.1
    """The share of the actor's draws that are even, whatever it learned."""
    learning_rate: NotNegative = LEARNING_RATE
    """Of the actor; at 0 it learns nothing and draws evenly."""
    population_size: Count = 20
    """How many prompts there are; fewer only while mutations make equal ones."""
    elite_size: CountOrZero = 4
    """The best prompts, which a generation keeps."""
    max_tokens: Annotated[Count, Parameter(parse=False)] = MAX_TOKENS
    """The most tokens of a candidate or a rewording; a rewording that is cut is not taken."""
    temperature: NotNegative = TEMPERATURE
    """Of the candidates; the final comparison is made at 0."""
    max_workers: Count | None = None
    """The most calls at once [as many as keep the server busy]."""
    weight_feedback: Finite = 1.0
    """The weight of the scorer's judgement, 0 to 1, in the reward; without a judgement the critic's
    score takes its place."""
    weight_critic: Finite = 0.8
    """The weight of the critic's score, 0 to 1, in the reward."""
    weight_tokens: Finite = -0.001
    """The weight of each token of question and reply in the reward."""
    parallel_eval: Annotated[bool, Parameter(parse=False)] = False
    """Calls are made side by side, with the same results."""
    feedback_for_all: Annotated[bool, Parameter(parse=False)] = False
    """Feedback that is a function is called for every candidate, on several threads; else for the
    response alone, on the caller's thread, one query after another."""
    seed: Annotated[int, Parameter(parse=False)] = 0
    """Of all chance."""

    def __post_init__(self) -> None:
        check_numbers(vars(self), get_type_hints(type(self), include_extras=True))

    def reward(self, _query: str, candidate: Candidate) -> float:
        """The reward of a candidate that has a score: a weighted sum."""
        score = candidate.score or 0.0
        feedback = score if candidate.feedback is None else candidate.feedback
        return (
            self.weight_feedback * feedback
            + self.weight_critic * score
            + self.weight_tokens * candidate.tokens
        )


@dataclass(frozen=True, kw_only=True)
class AskedStep:
    """The prompts that the actor chose for a query, and the calls that try them, in order."""

    choice: Choice
    calls: tuple[Call, ...]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The K candidates in the order of the actor's choice, and the response."""

    candidates: tuple[Candidate, ...]
    best: Candidate | None
    """With the highest score; without any score the first that has a reply; None: all failed."""
    evolved: bool
    """Whether the population evolved after this step."""

    @property
    def response(self) -> str | None:
        """The reply of the best candidate."""
        return self.best.text if self.best else None


Feedback = float | Callable[[str, str], float | None] | None
"""0 to 1, or a function of query and reply, called once the reply is there; None: nothing."""


class HybridOptimizationFlow:
    """Steps of the hybrid search.

    Args:
        llm: answers the calls, on any thread: a dispatcher.
        params: the numbers; None: the default ones.
        model: answers the queries, by its name on the server.
        mutator_model: rewords prompts; None: `model`.
        prompts: the population's first ones.
        encoder: embeds texts for the actor; None: hashing, which needs no model.
        critics: score the candidates, by their mean; None: a `RidgeCritic`, which learns from
            feedback alone.
        reward_fn: `(query, candidate) -> float`, for one with a score; None: the weights.
        options: more of Ollama's options (`num_ctx`), for all calls.
        think: whether a thinking model thinks; None leaves it to the server.
        changes: of the numbers, by name: `parallel_eval=True, max_workers=4`.

    Raises:
        ValueError: a number is out of range, a prompt is blank, or there is no critic.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each part that can be another
        self,
        llm: Model,
        params: ActorCriticParams | None = None,
        *,
        model: str,
        mutator_model: str | None = None,
        prompts: Sequence[str] = (SEED_INSTRUCTIONS,),
        encoder: Encoder | None = None,
        critics: Sequence[Critic] | None = None,
        reward_fn: Callable[[str, Candidate], float] | None = None,
        options: Mapping[str, Any] | None = None,
        think: Think | None = None,
        **changes: Any,  # noqa: ANN401 - the fields of `params`
    ) -> None:
        self.llm, self.params = llm, replace(params or ActorCriticParams(), **changes)
        params = self.params
        encoder = CachedEncoder(encoder) if encoder else make_encoder("hashing")
        limit = {**(options or {}), "num_predict": params.max_tokens}
        own = {**limit, "temperature": params.temperature}
        self._template = Call(model=model, prompt="", options=own, think=think)
        breeder = Breeder(
            generate=llm.generate,
            template=Call(model=mutator_model or model, prompt="", options=limit),
            seeds=list(dict.fromkeys(prompt.strip() for prompt in prompts)),
            rules=EvolutionConfig(seed=params.seed),
        )
        self.population = PromptPopulation(
            breeder, size=params.population_size, elite_size=params.elite_size
        )
        self.actor = PolicyActor(
            encoder,
            seed=params.seed,
            exploration=params.exploration,
            learning_rate=params.learning_rate,
        )
        self.critics = [RidgeCritic(encoder)] if critics is None else list(critics)
        if not self.critics:
            raise ValueError("critics is empty; expected at least one, or None for a RidgeCritic")
        self.workers = params.max_workers if params.parallel_eval else 1
        self.steps = self.rewarded_steps = 0
        self._reward_fn = reward_fn or params.reward

    def step(self, query: str, human_feedback: Feedback = None) -> StepResult:
        """Answer a query, and learn from it: see `step_many`."""
        return self.step_many([query], human_feedback)[0]

    def step_many(
        self, queries: Sequence[str], human_feedback: Feedback = None
    ) -> list[StepResult]:
        """Answer several queries under the policy as it is, then learn from them in their order.

        Feedback is on the responses; with `feedback_for_all` a function judges every candidate.
        Without any, the critics' score stands in its place. Where it fails, no step is counted and
        nothing is learned: the same queries again are the same calls.

        Raises:
            ValueError: feedback that is not from 0 to 1.
            EncodingError: a query or a prompt has no embedding.
            CallCancelledError: the run was stopped.
        """

        def answer(call: Call) -> Candidate:
            return self._candidate(call, self.llm.generate(call), human_feedback)

        asked = self.ask(queries)
        calls = [call for each in asked for call in each.calls]
        return self._learn(asked, in_parallel(answer, calls, self.workers), human_feedback)

    def ask(self, queries: Sequence[str]) -> list[AskedStep]:
        """The calls that try prompts for each query; for `tell`. Raises as `step_many` does.

        Until `tell` is called, it numbers the same steps.
        """
        self.population.fill(self.workers)
        asked = []
        for step, query in enumerate(queries, self.steps):
            prompts, count = self.population.prompts, self.params.num_candidates
            choice = self.actor.choose(query, prompts, count, step)
            chosen = [choice.prompts[index] for index in choice.places]
            seed = seed_of(self.params.seed, "step", step)
            calls = candidate_calls(replace(self._template, prompt=query), chosen, seed)
            asked.append(AskedStep(choice=choice, calls=tuple(calls)))
        return asked

    def tell(
        self,
        asked: Sequence[AskedStep],
        replies: Sequence[Completion],
        human_feedback: Feedback = None,
    ) -> list[StepResult]:
        """Learn from the replies to all calls of `ask`, in order; the steps are counted now.

        Raises ValueError if there is not one reply for each call, or feedback is not from 0 to 1.
        """
        calls = [call for each in asked for call in each.calls]
        pairs = list(zip(calls, replies, strict=True))
        made = in_parallel(lambda p: self._candidate(*p, human_feedback), pairs, self.workers)
        return self._learn(asked, made, human_feedback)

    def best_prompt(self, query: str) -> str:
        """The prompt that the actor likes best for a query; of equals, one by chance."""
        prompts = self.population.prompts
        choice = self.actor.choose(query, prompts, len(prompts), self.steps)
        return prompts[max(choice.places, key=choice.probabilities.__getitem__)]

    def final_call(self, query: str, prompt: str) -> Call:
        """What asks a query under a prompt after the search: a call at temperature 0."""
        options = {**self._template.options, "temperature": 0}
        asked = replace(self._template, prompt=query, options=options)
        return candidate_calls(asked, [prompt], self.params.seed)[0]

    def most_calls(self, steps: int, a_score: int = 0) -> int:
        """The calls of so many steps at most, those that embed and failed attempts left out.

        `a_score` is how many the critics make for a candidate.
        """
        params = self.params
        first = MOST_STEPS * (params.population_size - 1)
        children = params.population_size - params.elite_size
        bred = 2 * children * (steps // params.update_interval)  # crossed and mutated
        return steps * params.num_candidates * (1 + a_score) + first + bred

    def _judges_all(self, human_feedback: Feedback) -> bool:
        return self.params.feedback_for_all and callable(human_feedback)

    def _candidate(self, call: Call, reply: Completion, human_feedback: Feedback) -> Candidate:
        """A reply with its score, and with feedback where every candidate has some."""
        prompt, query, text = call.system or "", call.prompt, reply.text
        if raise_if_cancelled(reply).error:
            _log.warning("a candidate has no score: %r", reply.error)
            return Candidate(prompt=prompt, text=None)
        usage = reply.usage or Usage()
        tokens = usage.prompt_tokens + usage.completion_tokens
        made = Candidate(prompt=prompt, text=text, tokens=tokens)
        try:
            scores = [critic.score(prompt, query, text) for critic in self.critics]
            made = replace(made, score=_checked("score", fmean(scores)))
        except ENDS_THE_RUN:
            raise
        except Exception as error:  # noqa: BLE001 - a critic of the user's may raise anything
            _log.warning("a candidate has no score: %r", error)
            return made
        return _judged(query, made, human_feedback) if self._judges_all(human_feedback) else made

    def _learn(
        self, asked: Sequence[AskedStep], made: Sequence[Candidate], human_feedback: Feedback
    ) -> list[StepResult]:
        """Reward the candidates of all steps, then learn from one step after another."""
        left, steps = iter(made), []
        for each in asked:
            candidates = [next(left) for _ in each.calls]
            best, query = _best_of(each, candidates), each.choice.query
            if best is not None and not self._judges_all(human_feedback):
                candidates[best] = _judged(query, candidates[best], human_feedback)
            for k, candidate in enumerate(candidates):
                if candidate.score is not None:
                    reward = float(self._reward_fn(query, candidate))
                    if not math.isfinite(reward):
                        raise ValueError(f"expected a finite reward, got {reward!r}")
                    candidates[k] = replace(candidate, reward=reward)
            steps.append(candidates)
        self.steps += len(asked)
        return list(map(self._learn_step, asked, steps))

    def _learn_step(self, asked: AskedStep, candidates: Sequence[Candidate]) -> StepResult:
        """Teach records, critics and actor, in the candidates' order; evolve when it is time."""
        query, rewards = asked.choice.query, [each.reward for each in candidates]
        known = [reward for reward in rewards if reward is not None]
        others = len(known) - 1
        for each in candidates:
            if each.reward is None or each.text is None:
                continue
            mean = (math.fsum(known) - each.reward) / others if others else None
            is_wrong = each.feedback is not None and each.feedback < 1
            failure = WrongAnswer(query, None, each.text[-FAILURE_CHARS:])
            self.population.record(each.prompt, each.reward, mean, failure if is_wrong else None)
            for critic in self.critics:
                if each.feedback is not None and hasattr(critic, "feedback"):
                    critic.feedback(each.prompt, query, each.text, each.feedback)
        self.actor.learn(asked.choice, rewards)
        self.rewarded_steps += bool(known)
        evolves = bool(known) and self.rewarded_steps % self.params.update_interval == 0
        if evolves:
            self.population.evolve(self.workers)
        best = _best_of(asked, candidates)
        replied = (each for each in candidates if each.text is not None)
        answer = next(replied, None) if best is None else candidates[best]
        return StepResult(candidates=tuple(candidates), best=answer, evolved=evolves)


def _best_of(asked: AskedStep, candidates: Sequence[Candidate]) -> int | None:
    """The index of the highest score; of equal ones that of the likeliest prompt."""
    odds = [asked.choice.probabilities[index] for index in asked.choice.places]
    scored = [k for k, each in enumerate(candidates) if each.score is not None]
    return max(scored, key=lambda k: (candidates[k].score, odds[k]), default=None)


def _judged(query: str, candidate: Candidate, feedback: Feedback) -> Candidate:
    """A candidate that has a reply, with feedback on it, if there is some."""
    value = feedback(query, candidate.text or "") if callable(feedback) else feedback
    if value is None:
        return candidate
    return replace(candidate, feedback=_checked("human_feedback", value))


def _checked(name: str, value: float) -> float:
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
        record: see `SearchRecorder.record`; called after each batch.
    """
    problems = {problem.question: problem for problem in train.problems}
    order: list[str] = []
    while len(order) < steps:
        questions = list(problems)
        chance(flow.params.seed, "questions", len(order)).shuffle(questions)
        order += questions
    results: list[StepResult] = []
    for first in range(0, steps, batch_size):
        batch = order[first : min(first + batch_size, steps)]
        results += flow.step_many(batch, lambda query, reply: train.scorer(problems[query], reply))
        lately = [each.best.feedback for each in results[-LATELY:] if each.best]
        solved = [value for value in lately if value is not None]
        last = f"of the last {len(solved)} questions"
        status = f"solved {fmean(solved):.0%} {last}" if solved else None
        record(flow.steps, _metrics(flow, results[first:]), done=flow.steps, status=status)
    candidates = [each for result in results for each in result.candidates]
    members = flow.population.members
    return {
        "steps": flow.steps,
        "rewarded_steps": flow.rewarded_steps,
        "candidates": len(candidates),
        "unscored": sum(each.score is None for each in candidates),
        "generations": flow.population.generation,
        "population": [
            {"prompt": each.prompt, "edge": each.edge, "fitness": each.fitness, "tries": each.tries}
            for each in members
        ],
        "best_prompt": members[0].prompt,
        "seed_prompt": seed_prompt,
        "held_out": _compare(held_out, flow, seed_prompt) if held_out else None,
    }


def _compare(task: Task, flow: HybridOptimizationFlow, seed_prompt: str) -> list[dict[str, Any]]:
    """The shares of problems held out that seed prompt, best prompt and actor solve, paired.

    A problem counts where all three have a reply, so the differences are those of the shares.
    """
    questions = [problem.question for problem in task.problems]
    best = flow.population.members[0].prompt
    prompts = {
        "seed prompt": [seed_prompt] * len(questions),
        "best prompt": [best] * len(questions),
        "actor": list(map(flow.best_prompt, questions)),
    }

    def solved(job: tuple[Problem, str]) -> float:
        call = flow.final_call(job[0].question, job[1])
        reply = raise_if_cancelled(flow.llm.generate(call))
        return math.nan if reply.error else float(task.scorer(job[0], reply.text))

    jobs = [job for each in prompts.values() for job in zip(task.problems, each, strict=True)]
    scores = np.array(in_parallel(solved, jobs, flow.workers)).reshape(len(prompts), -1)
    known = scores[:, ~np.isnan(scores).any(axis=0), None].tolist()
    compared = [compare(each, known[0]) for each in known[1:]]
    against_seed: list[dict[str, Any]] = [{}, *(finite(asdict(each)) for each in compared)]
    for each, p_holm in zip(against_seed[1:], holm([c.p_value for c in compared]), strict=True):
        each["p_holm"] = p_holm
    counts = {"queries": len(known[0]), "left_out": len(questions) - len(known[0])}
    return [
        {"name": name, "score": _mean(value for (value,) in trials)} | more | counts
        for name, trials, more in zip(prompts, known, against_seed, strict=True)
    ]


def _metrics(flow: HybridOptimizationFlow, results: Sequence[StepResult]) -> dict[str, Any]:
    """The numbers of a batch by TensorBoard's names."""
    candidates = [each for result in results for each in result.candidates]
    best, members = [each.best for each in results if each.best], flow.population.members
    return {
        "optimize/reward": _mean(each.reward for each in best),
        "optimize/feedback": _mean(each.feedback for each in best),
        "optimize/candidate_reward": _mean(each.reward for each in candidates),
        "optimize/critic": _mean(each.score for each in candidates),
        "optimize/unscored": sum(each.score is None for each in candidates),
        "population/best_fitness": members[0].fitness,
        "population/mean_fitness": _mean(member.fitness for member in members),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
