"""A user's own evaluation, `FILE.py:NAME`: what it is given to ask with, and whether it works at all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ollama_utils.errors import OllamaError, ReplyLogError
from ollama_utils.parallel import ParallelError
from ollama_utils.types import Call, Completion
from search.call_pool import CallPool
from search.selectors.cells import checked
from search.selectors.combination import Combination
from search.selectors.selector import Evaluate, Evaluation
from search.task import Task
from search.task_scorers import ScorerError, load_function, reason_of
from train.errors import UserError
from train.searching.calls import CallFlags
from train.searching.datasets import Evaluated, Prices, problem_lines, read_lines

FIRST = 3
"""Where so many evaluations fail that are asked for first, the function is at fault."""


class Ask(Protocol):
    """What a user's function asks with."""

    def __call__(
        self, question: str | Call, *, model: str | None = None, system: str | None = None
    ) -> Completion:
        """The reply; its text is `.text`.

        Args:
            question: the prompt, which is put at a temperature of 0 and as `--num-ctx`, `--num-predict` and
                `--think` say; or a Call, which is sent as it is, without these, but for its seed where it has
                none and a temperature that is not 0: each equal one of an evaluation then draws a reply of
                its own, the same in every run of this seed.
            model: another model than the combination's.
            system: another system prompt than the combination's, which is one of `--prompts`, if any.

        Raises:
            OllamaError: there is none; where that is let through, it counts as an error of the combination.
            TypeError: the question is neither, or a Call beside a model or system.
        """
        ...


UserFunction = Callable[[Combination, Any, Ask], float | Evaluation]
"""A mutator of `--mutators` is the function's to apply: `combination["mutator"]` is its name."""


def own_evaluation(
    spec: str,
    path: str | None,
    task: Task | None,
    prices: Prices,
    pool: CallPool,
    seed: int,
    calls: CallFlags,
) -> tuple[Evaluate, list[Any]]:
    """Evaluates with a user's function, on the lines of a file or on the bundled problems.

    Raises:
        UserError: the function or the file is no good.
    """
    function = _load(spec)

    def evaluate(combination: Combination, datapoint: Any, send: _Send) -> float | Evaluation:  # noqa: ANN401 - a user's line
        return function(combination, datapoint, _ask_for(combination, send, calls))

    lines = read_lines(Path(path)) if path else problem_lines(task.problems if task else ())
    return Evaluated(evaluate, pool.generate, prices, seed).evaluate, lines


class Heeded:
    """An evaluation whose errors count, but for those that end the search.

    These are a reply that cannot be kept, a scorer that fails, and a user's own evaluation that does not
    work: one that raises what is no OllamaError, or returns no score, wherever it is asked first.

    Args:
        evaluate: what is called.
        own: how the user's function is named; None: it is not a user's.
    """

    def __init__(self, evaluate: Evaluate, own: str | None = None) -> None:
        self._evaluate = evaluate
        self._own = own
        self._first: list[tuple[Combination, Any]] = []
        self._ended: ReplyLogError | ScorerError | None = None
        self._lock = threading.Lock()

    def watch(self, cells: Iterable[tuple[Combination, Any]]) -> None:
        """To be told what is evaluated first, before that begins."""
        self._first = list(islice(cells, FIRST)) if self._own else []

    def __call__(self, combination: Combination, datapoint: Any) -> float | Evaluation:  # noqa: ANN401 - a user's line
        """What a combination does at a datapoint.

        Raises:
            Exception: whatever the evaluation raises.
        """
        try:
            found = self._evaluate(combination, datapoint)
            self._check_score(found)
        except (ReplyLogError, ScorerError) as error:
            self._ended = error
            raise
        except SystemExit as error:
            self._ended = ScorerError(f"{self._own!r} failed: {reason_of(self._own or '', error)}")
            raise self._ended from error
        except Exception as error:
            self._failed(combination, datapoint, error)
            raise
        self._works(combination, datapoint)
        return found

    def check(self) -> None:
        """To be called between evaluations.

        Raises:
            ReplyLogError: a reply could not be kept.
            ScorerError: the user's scorer or evaluation does not work.
        """
        if self._ended:
            raise self._ended

    def _check_score(self, found: object) -> None:
        """A user's function has to return a score; what else it returns is an error like any other."""
        if self._own and isinstance(bad := checked(found), Exception):
            raise bad

    def _failed(self, combination: Combination, datapoint: object, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, ParallelError) else error
        if isinstance(cause, OllamaError):
            self._works(combination, datapoint)
            return
        with self._lock:
            left = [cell for cell in self._first if not _is(cell, combination, datapoint)]
            if self._first and not left and self._own:
                self._ended = ScorerError(
                    f"--evaluate {self._own!r} failed wherever it was tried first: "
                    f"{reason_of(self._own, error)}; expected 0 to 1, and 0 for a reply that is no good"
                )
            self._first = left

    def _works(self, combination: Combination, datapoint: object) -> None:
        """One of the first came to an end: what others raise is theirs."""
        with self._lock:
            if any(_is(cell, combination, datapoint) for cell in self._first):
                self._first = []


_Send = Callable[[Call], Completion]


def _load(spec: str) -> UserFunction:
    try:
        with redirect_stdout(sys.stderr):  # a user's file may print; stdout is the report's
            function = load_function(
                spec, "evaluation", ("combination", "datapoint", "ask"), example="mine.py:evaluate"
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    return function


def _ask_for(combination: Combination, send: _Send, calls: CallFlags) -> Ask:
    def ask(question: str | Call, *, model: str | None = None, system: str | None = None) -> Completion:
        if isinstance(question, Call):
            if model is not None or system is not None:
                raise TypeError("ask takes a Call, or a text with model= and system=; not both")
            return send(question)
        if not isinstance(question, str):
            raise TypeError(f"ask takes a text or a Call, got {question!r}")
        return send(
            Call(
                model=combination["model"] if model is None else model,
                prompt=question,
                system=combination.get("prompt") if system is None else system,
                options={**calls.options, "temperature": 0},
                think=calls.think,
            )
        )

    return ask


def _is(cell: tuple[Combination, Any], combination: Combination, datapoint: object) -> bool:
    return cell[0] is combination and cell[1] is datapoint
