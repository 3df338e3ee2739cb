"""What system prompts score on a fixed panel of problems.

All prompts are put the same problems in the same order, so that two of them are compared problem by
problem. One that is surely worse than its rival is stopped. A call that failed has no score: it is
never a 0.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from mutators.system_prompts import WrongAnswer
from ollama_utils.parallel import iterate_parallel
from ollama_utils.types import Completion, Think
from scorers.betting import is_better
from search.async_llm import AsyncLLMInterface
from search.chance import chance
from search.evolution_config import AsyncEvolutionConfig, EvolutionConfig, schedule_of
from search.rewording import raise_if_cancelled
from search.task import Problem, Task, ask_problem

KEPT_CHARS = 400
"""Of a wrong reply so many last characters are kept: there its answer stands."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a prompt scored."""

    prompt: str
    scores: tuple[float | None, ...]
    """By problem, each 0 to 1; None where the call failed, or was not made."""
    fitness: float | None
    """The mean score; None where too many calls failed. Of a stopped prompt: its rival's, less the
    mean difference on the problems that both have."""
    stopped: bool = False
    """Whether it was surely worse than its rival before all problems were asked."""
    failures: tuple[WrongAnswer, ...] = ()
    """Problems that it got wrong: scored below 1 and no better than its mean."""
    error: str = ""
    """Why the last failed call failed."""


class AsyncEvaluationPipeline:
    """Puts a task's problems to a model under each of many system prompts.

    Args:
        calls: sends the calls, so many at once at most, whoever else uses it.
        task: whose problems are asked, in this order.
        model: that answers, as the server lists it.
        config: batches, and when a prompt is stopped or unscored.
        options: more of Ollama's options for these calls.
        think: whether a thinking model thinks; None leaves it to the server.
        on_reply: called with each reply, on any thread.
    """

    def __init__(
        self,
        calls: AsyncLLMInterface,
        task: Task,
        *,
        model: str,
        config: EvolutionConfig | None = None,
        options: Mapping[str, Any] | None = None,
        think: Think | None = None,
        on_reply: Callable[[Completion], object] = lambda _: None,
    ) -> None:
        self._calls, self._task, self._on_reply = calls, task, on_reply
        self._config = schedule_of(config or AsyncEvolutionConfig())
        self._ask = partial(
            ask_problem, model=model, options=options, think=think, seed=self._config.seed
        )
        self._places = threading.Semaphore(self._config.max_concurrent_genomes)

    def evaluate(self, prompts: Sequence[str], rival: Evaluated | None = None) -> list[Evaluated]:
        """What each of N prompts scores, in their order; equal ones are asked once.

        Args:
            prompts: N system prompts.
            rival: a prompt that is surely worse than this one is stopped; None lets all finish.

        Raises:
            CallCancelledError: the calls were cancelled.
            Exception: whatever the task's scorer raises.
        """
        distinct = dict.fromkeys(prompts)
        width = self._config.max_concurrent_genomes
        scored = iterate_parallel(lambda prompt: self.score(prompt, rival), distinct, width)
        found = dict(zip(distinct, scored, strict=True))
        return [found[prompt] for prompt in prompts]

    async def evaluate_population(self, prompts: Sequence[str]) -> list[Evaluated]:
        """`evaluate` for an event loop, which stays free meanwhile."""
        return await asyncio.to_thread(self.evaluate, prompts)

    def score(self, prompt: str, rival: Evaluated | None = None) -> Evaluated:
        """What one prompt scores; see `evaluate`. At most `max_concurrent_genomes` at a time."""
        config, problems = self._config, self._task.problems
        size = config.async_batch_size if rival and config.early_stop_level else len(problems)
        most = config.max_unscored * len(problems)
        scores: list[float | None] = []
        replies: list[Completion] = []
        stopped = False
        with self._places:
            while len(scores) < len(problems) and not stopped and scores.count(None) <= most:
                batch = problems[len(scores) : len(scores) + size]
                answers = self._calls.each(partial(self._answer, prompt), batch)
                scores += [score for _, score in answers]
                replies += [reply for reply, _ in answers]
                if rival is not None and len(scores) < len(problems):
                    stopped = self._is_worse(scores, rival)
        known = [score for score in scores if score is not None]
        mean = fmean(known) if known else 0.0
        fitness = mean if known and scores.count(None) <= most else None
        if stopped and fitness is not None and rival is not None:
            fitness = max(0.0, (rival.fitness or 0.0) - fmean(_leads(rival, scores)))
        errors = [str(reply.error) for reply in replies if reply.error]
        return Evaluated(
            prompt=prompt,
            scores=(*scores, *[None] * (len(problems) - len(scores))),
            fitness=fitness,
            stopped=stopped,
            failures=tuple(
                WrongAnswer(problem.question, problem.answer, reply.text[-KEPT_CHARS:])
                for problem, reply, score in zip(problems, replies, scores, strict=False)
                if score is not None and score < 1 and score <= mean
            ),
            error=errors[-1] if errors else "",
        )

    def _answer(self, prompt: str, problem: Problem) -> tuple[Completion, float | None]:
        """The reply to a problem, and its score; None where the call failed: that is never a 0."""
        reply = raise_if_cancelled(self._calls.ask(self._ask(problem, prompt)))
        self._on_reply(reply)
        return reply, None if reply.error else float(self._task.scorer(problem, reply.text))

    def _is_worse(self, scores: Sequence[float | None], rival: Evaluated) -> bool:
        """Whether it is surely worse than the rival, by the problems that both have a score for."""
        leads = np.array(_leads(rival, scores))
        level, total = self._config.early_stop_level, len(self._task.problems)
        return bool(is_better(leads, np.zeros_like(leads), level, population=total))


def _leads(rival: Evaluated, scores: Sequence[float | None]) -> list[float]:
    """By how much the rival is ahead, at each problem that both have a score for."""
    pairs = zip(rival.scores, scores, strict=False)
    return [theirs - mine for theirs, mine in pairs if theirs is not None and mine is not None]


def divide(task: Task, config: EvolutionConfig) -> tuple[Task, Task]:
    """The problems that all prompts are scored on, and those held out; the seed alone decides.

    Raises:
        ValueError: the task has too few problems.
    """
    train, held_out = task.split(config.held_out, config.seed)
    problems = list(train.problems)
    chance(config.seed, "problems").shuffle(problems)
    if config.panel_size is not None and config.panel_size > len(problems):
        raise ValueError(
            f"panel_size is {config.panel_size!r}; expected at most {len(problems)}: the task "
            f"{task.name!r} has {len(task.problems)} problems, less those held out"
        )
    return replace(train, problems=tuple(problems[: config.panel_size])), held_out
