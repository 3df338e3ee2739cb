"""What system prompts score on a fixed panel of problems.

All prompts get the same problems in the same order, so that two of them are compared problem by
problem. One that is surely worse than its rival is stopped. A call that failed has no score: it is
never a 0.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from mutators.system_prompts import WrongAnswer
from ollama_utils.parallel import iterate_parallel
from ollama_utils.types import Call, Completion, Think
from scorers.betting import ROUNDING, is_better
from search.async_llm import AsyncLLMInterface
from search.chance import chance
from search.evolution_config import AsyncEvolutionConfig, EvolutionConfig
from search.genetics import FAILURE_CHARS, raise_if_cancelled
from search.task import Problem, Task, ask_problem


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a prompt scored."""

    prompt: str
    scores: tuple[float | None, ...]
    """By problem, each 0 to 1; None where the call failed, or was not made."""
    fitness: float | None
    """The mean score; None where too many calls failed. Of a stopped prompt: its rival's, less the
    mean difference on the problems that both have."""
    stopped: bool
    """Whether it was surely worse than its rival before all problems were asked."""
    failures: tuple[WrongAnswer, ...]
    """Problems that it got wrong: scored below 1 and no better than its mean."""
    error: str
    """Why the last failed call failed."""


class AsyncEvaluationPipeline:
    """Asks a model a task's problems under each of many system prompts.

    Args:
        calls: sends the calls to its model.
        task: its problems are asked in this order.
        config: batches, and when a prompt is stopped or unscored.
        options: more of Ollama's options for these calls.
        think: whether a thinking model thinks; None leaves it to the server.
    """

    def __init__(
        self,
        calls: AsyncLLMInterface,
        task: Task,
        *,
        config: EvolutionConfig | None = None,
        options: Mapping[str, Any] | None = None,
        think: Think | None = None,
    ) -> None:
        self._calls, self._task = calls, task
        self._config = config = config or AsyncEvolutionConfig()
        self._question = partial(
            ask_problem, model=calls.model, options=options, think=think, seed=config.seed
        )
        self._ask = task.asking(self._send) if task.asking else self._ask_once
        self._width = config.at_once(config.max_concurrent_genomes)
        self._places = threading.Semaphore(self._width)

    def evaluate(self, prompts: Sequence[str]) -> list[Evaluated]:
        """What each of N prompts scores, in their order; raises as `score` does."""
        return list(iterate_parallel(self.score, prompts, self._width))

    def score(self, prompt: str, rival: Evaluated | None = None) -> Evaluated:
        """What one prompt scores; at most `max_concurrent_genomes` at a time.

        Args:
            prompt: a system prompt.
            rival: the prompt is stopped once it is surely worse than this one; None: it never is.

        Raises:
            CallCancelledError: the calls were cancelled.
            Exception: whatever the task's scorer raises.
        """
        config, problems = self._config, self._task.problems
        count, level = len(problems), config.early_stop_level
        size = config.async_batch_size if rival and level else count
        most = config.max_unscored * count + ROUNDING
        # More threads than calls: one that scores, or waits for an attempt, has none in flight.
        threads = config.at_once(2 * config.max_concurrent_requests)
        replies: list[Completion] = []
        scores: list[float | None] = []
        below: float | None = None  # by how much it is worse than its rival, once that is sure
        with self._places:
            while len(scores) < count and below is None and scores.count(None) <= most:
                batch = problems[len(scores) : len(scores) + size]
                for reply, score in iterate_parallel(partial(self._ask, prompt), batch, threads):
                    replies.append(reply)
                    scores.append(score)
                if rival is not None and len(scores) < count:
                    pairs = zip(rival.scores, scores, strict=False)
                    leads = np.array([a - b for a, b in pairs if a is not None and b is not None])
                    if is_better(leads, np.zeros(len(leads)), level, population=count):
                        below = fmean(leads)
        known = [score for score in scores if score is not None]
        mean = fmean(known) if known else 0.0
        fitness = mean if known and scores.count(None) <= most else None
        if fitness is not None and below is not None and rival is not None:
            fitness = max(0.0, (rival.fitness or 0.0) - below)
        return Evaluated(
            prompt=prompt,
            scores=(*scores, *[None] * (count - len(scores))),
            fitness=fitness,
            stopped=below is not None,
            failures=tuple(
                WrongAnswer(problem.question, problem.answer, reply.text[-FAILURE_CHARS:])
                for problem, reply, score in zip(problems, replies, scores, strict=False)
                if score is not None and score < 1 and score <= mean
            ),
            error=next((str(reply.error) for reply in reversed(replies) if reply.error), ""),
        )

    def _ask_once(self, prompt: str, problem: Problem) -> tuple[Completion, float | None]:
        """The reply to a problem, and its score; None where the call failed."""
        reply = self._send(self._question(problem, prompt))
        return reply, None if reply.error else float(self._task.scorer(problem, reply.text))

    def _send(self, call: Call) -> Completion:
        return raise_if_cancelled(self._calls.ask(call))


def divide(task: Task, config: EvolutionConfig) -> tuple[Task, Task]:
    """The problems that all prompts are scored on, and those held out; the seed alone decides.

    Raises ValueError if the task has too few problems.
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
