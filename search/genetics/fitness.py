"""What genomes score on a fixed panel of problems, side by side, under one cap on the calls.

All genomes are put the same problems in the same order, so two of them are compared problem by problem. A
genome that is surely worse than its rival is stopped. A call that failed has no score: it is never a 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from mutators.system_prompts import WrongAnswer
from ollama_utils.plans import Plan, play_plans
from ollama_utils.types import Call, Completion, Think
from scorers.betting import PairedTest
from search.call_pool import CallPool
from search.candidates import raise_if_cancelled
from search.chance import chance
from search.genetics.config import AsyncEvolutionConfig, EvolutionConfig
from search.genetics.genome import Example, Genome
from search.task import Problem, Scorer, Task, ask_problem

T = TypeVar("T")

KEPT_CHARS = 400
"""Of a wrong reply so many last characters are kept: there its answer stands."""


@dataclass(frozen=True)
class Answer:
    """What came of a call."""

    completion: Completion
    score: float | None = None
    """What the reply is worth; None where there is none, or nothing that scores it."""


@dataclass(frozen=True)
class ScoredCall:
    """A call, and what its reply is worth: that is found out where the reply arrives, beside other calls."""

    call: Call
    score: Callable[[str], float] | None = None

    def answer(self, generate: Callable[[Call], Completion]) -> Answer:
        """What came of it.

        Raises:
            Exception: whatever `generate` and `score` raise.
        """
        completion = generate(self.call)
        if self.score is None or completion.error is not None:
            return Answer(completion)
        return Answer(completion, float(self.score(completion.text)))


CallPlan = Plan[ScoredCall, Answer, T]
"""Yields batches of what to ask, is sent what came of each in order, returns its result."""


def asked_twice(calls: Sequence[ScoredCall]) -> CallPlan[list[Answer]]:
    """What comes of these; the calls that fail are asked once more.

    Raises:
        CallCancelledError: a call was cancelled.
        Exception: whatever was raised in place of an answer.
    """
    answers = list((yield calls))
    errors = [raise_if_cancelled(answer.completion).error for answer in answers]
    failed = [index for index, error in enumerate(errors) if error is not None]
    if failed:
        again = yield [calls[index] for index in failed]
        for index, answer in zip(failed, again, strict=True):
            raise_if_cancelled(answer.completion)
            answers[index] = answer
    return answers


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The problems that all genomes of a run are put."""

    problems: tuple[Problem, ...]
    """In the order in which they are asked."""
    scorer: Scorer
    """What a reply is worth, 0 to 1; called on several threads at once."""
    ask: Callable[[Problem, str], Call]
    """The call that puts a problem under a system prompt."""
    batch_size: int
    """After so many problems it is judged whether to stop."""
    batches_at_once: int = 1
    """Batches that are asked together; what was asked past the end of a genome is left out."""
    max_unscored: float = 0.1
    """A genome with a larger share of its problems unscored has no fitness."""
    early_stop_level: float | None = 0.05
    """The chance of stopping a genome that is no worse than its rival; None never stops one."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a genome scored."""

    genome: Genome
    scores: tuple[float | None, ...]
    """By problem of the panel; None where it has none."""
    fitness: float | None
    """The mean score; None where too many problems are unscored. Of a stopped genome: its rival's, and the
    mean difference to it on the problems both have."""
    stopped: bool
    """Whether it was surely worse than its rival before all problems were asked."""
    unscored: int
    """How many problems were asked without getting a reply."""
    asked: int
    """How many problems were asked, those unscored too."""
    failures: tuple[WrongAnswer, ...] = ()
    """The problems that it got wrong, in the panel's order: those whose score is below 1 and no better than
    its mean score."""
    error: str = field(default="", compare=False)
    """Why the last unscored problem got no reply; "" where none is."""

    @property
    def is_complete(self) -> bool:
        """Whether its fitness is its own score on the whole panel."""
        return self.fitness is not None and not self.stopped


class Trial:
    """A genome under evaluation.

    Args:
        genome: what is tried.
        panel: on what.
        rival: what it must not be surely worse than; None lets it finish.
    """

    def __init__(self, genome: Genome, panel: Panel, rival: Evaluated | None = None) -> None:
        self.genome = genome
        self.is_over = not panel.problems
        self._panel, self._rival = panel, rival
        self._level = panel.early_stop_level if rival is not None else None
        self._scores: list[float | None] = []
        self._replies: list[str] = []
        self._stopped = False
        self._error = ""
        self._worse = PairedTest(population=max(1, len(panel.problems)))

    def go_on(self) -> CallPlan[None]:
        """Ask the next batches, and judge after each; all that are left where no judgement can end it."""
        panel, begun = self._panel, len(self._scores)
        end = None if self._level is None else begun + panel.batch_size * panel.batches_at_once
        problems = panel.problems[begun:end]
        prompt = self.genome.prompt
        answers = yield from asked_twice(
            [ScoredCall(panel.ask(problem, prompt), partial(panel.scorer, problem)) for problem in problems]
        )
        errors = [answer.completion.error for answer in answers]
        self._error = next((str(error) for error in reversed(errors) if error), self._error)
        self._replies += [answer.completion.text[-KEPT_CHARS:] for answer in answers]
        scores = [answer.score for answer in answers]
        while scores and not self.is_over:
            self._take(scores[: panel.batch_size])
            scores = scores[panel.batch_size :]

    def result(self) -> Evaluated:
        """What the genome scored so far."""
        scores, unscored = self._scores, self._scores.count(None)
        scored = [score for score in scores if score is not None]
        mean = fmean(scored) if scored else None
        fitness = None if self._is_unscored(len(scores)) else mean
        if fitness is not None and self._stopped:
            fitness = self._estimate()
        missing = (None,) * (len(self._panel.problems) - len(scores))
        return Evaluated(
            genome=self.genome,
            scores=(*scores, *missing),
            fitness=fitness,
            stopped=self._stopped,
            unscored=unscored,
            asked=len(scores),
            failures=tuple(self._failures(mean or 0.0)),
            error=self._error,
        )

    def _failures(self, mean: float) -> Iterator[WrongAnswer]:
        """See `Evaluated.failures`; what was asked past the end of the genome is none."""
        asked = zip(self._panel.problems, self._scores, self._replies, strict=False)
        for problem, score, reply in asked:
            if score is not None and score < 1 and score <= mean:
                yield WrongAnswer(problem.question, problem.answer, reply)

    def _take(self, scores: list[float | None]) -> None:
        """Add a batch, and judge whether it was the last."""
        begun = len(self._scores)
        self._scores += scores
        total = len(self._panel.problems)
        finished = len(self._scores) == total
        self._stopped = not finished and self._is_surely_worse(_differences(scores, self._rival, begun))
        self.is_over = finished or self._stopped or self._is_unscored(total)

    def _is_surely_worse(self, differences: list[float]) -> bool:
        """Whether it is surely worse than its rival, given further differences to it."""
        if self._level is None:
            return False
        self._worse.add([-difference for difference in differences])
        return bool(self._worse.rejects(self._level))

    def _is_unscored(self, of: int) -> bool:
        return self._scores.count(None) > self._panel.max_unscored * of

    def _estimate(self) -> float:
        """The rival's fitness, and the mean difference to it on the problems that both have."""
        if self._rival is None or self._rival.fitness is None:
            raise RuntimeError("only a genome with a rival can be stopped")
        mean = fmean(_differences(self._scores, self._rival))
        return min(1.0, max(0.0, self._rival.fitness + mean))


def _differences(scores: Sequence[float | None], rival: Evaluated | None, begun: int = 0) -> list[float]:
    """These scores, from problem `begun` on, less the rival's, where both have one."""
    pairs = zip(scores, rival.scores[begun:] if rival else (), strict=False)
    return [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]


class AsyncEvaluationPipeline:
    """Puts a task's problems to a model under each of many system prompts.

    Args:
        pool: sends the calls, so many at once at most, whoever else uses it.
        task: whose problems are the panel, in this order.
        model: that answers, as the server lists it.
        config: the schedule, and when a genome is stopped or unscored.
        options: more of Ollama's options for these calls.
        think: whether a thinking model thinks; None leaves it to the server.
        tick: called after each call, on any thread, one at a time.
    """

    def __init__(
        self,
        pool: CallPool,
        task: Task,
        *,
        model: str,
        config: EvolutionConfig | None = None,
        options: Mapping[str, Any] | None = None,
        think: Think | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        config = config or AsyncEvolutionConfig()
        schedule = config.schedule
        self._pool, self._tick = pool, tick
        self.panel = Panel(
            problems=task.problems,
            scorer=task.scorer,
            ask=lambda problem, prompt: ask_problem(
                problem, prompt, model=model, options=options, think=think, seed=config.seed
            ),
            batch_size=schedule.batch_size,
            batches_at_once=schedule.batches_at_once,
            max_unscored=config.max_unscored,
            early_stop_level=config.early_stop_level or None,
        )

    def evaluate(self, genomes: Sequence[Genome], rival: Evaluated | None = None) -> list[Evaluated]:
        """What each genome scores, in their order.

        Args:
            genomes: equal ones are asked once.
            rival: what is surely worse than this one is stopped; None lets all finish.

        Raises:
            CallCancelledError: the calls were cancelled.
            Exception: whatever the scorer raises.
        """
        return self.play([self._try(Trial(genome, self.panel, rival)) for genome in genomes])

    async def evaluate_population(self, genomes: Sequence[Genome]) -> list[Evaluated]:
        """`evaluate` for an event loop, which stays free meanwhile."""
        return await asyncio.to_thread(self.evaluate, genomes)

    def play(self, plans: Sequence[CallPlan[T]]) -> list[T]:
        """What these plans return, their calls side by side under the pool's cap."""
        # More than the cap: who waits for another attempt, or for a score, holds no place under it.
        return play_plans(
            plans, lambda asking: asking.answer(self._pool.generate), self._pool.callers, self._tick
        )

    def _try(self, trial: Trial) -> CallPlan[Evaluated]:
        while not trial.is_over:
            yield from trial.go_on()
        return trial.result()


_LARGEST_POOL = 5
"""At most one problem in so many is set apart for examples."""


@dataclass(frozen=True, kw_only=True)
class Problems:
    """A task's problems by use; none has two uses."""

    panel: Task
    """What every genome is scored on, in the order in which it is asked."""
    held_out: Task | None
    """What the final comparison alone sees."""
    examples: tuple[Example, ...]
    """What genomes may show."""


def divide(task: Task, config: EvolutionConfig) -> Problems:
    """The problems of a task by use; the seed alone decides which is which.

    Raises:
        ValueError: the task has too few problems for this.
    """
    train, held_out = task.split(config.held_out, config.seed) if config.held_out else (task, None)
    problems = list(train.problems)
    chance(config.seed, "problems").shuffle(problems)
    pool = min(config.example_pool, len(problems) // _LARGEST_POOL) if config.max_examples else 0
    shown = [problem for problem in problems if problem.answer is not None][:pool]
    asked = [problem for problem in problems if problem not in shown]
    if config.panel_size is not None and config.panel_size > len(asked):
        raise ValueError(
            f"panel_size is {config.panel_size!r}; expected at most {len(asked)}: the task {task.name!r} has "
            f"{len(task.problems)} problems, less those held out or set apart as examples"
        )
    return Problems(
        panel=replace(train, problems=tuple(asked[: config.panel_size])),
        held_out=held_out,
        examples=tuple(Example(problem.question, problem.answer or "") for problem in shown),
    )
