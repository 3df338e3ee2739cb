"""A user's own evaluation for `mutagym select`, FILE.py:NAME: its datapoints, calls and failures."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ollama_utils.errors import OllamaError, ReplyLogError
from ollama_utils.parallel import ParallelError
from ollama_utils.reply_log import Question, question_of
from ollama_utils.types import Call, Completion, Usage, short_name
from records.errors import UserError, nearest
from records.user_file import error_line, load_function
from search.call_pool import CallPool
from search.chance import seed_of
from search.selectors.combination import Combination
from search.selectors.results import checked
from search.selectors.selector import Evaluate, Evaluation
from search.task import (
    CallFlags,
    Problem,
    ScorerError,
    Task,
    lines_of,
)

Prices = Mapping[str, tuple[float, float]]
"""By model, what a million prompt tokens and a million completion tokens cost."""


class AskModel(Protocol):
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


UserFunction = Callable[[Combination, Any, AskModel], float | Evaluation]
EvaluateByCalls = Callable[[Combination, Any, Callable[[Call], Completion]], float | Evaluation]
_PER_TOKENS = 1_000_000
_PRICE = re.compile(r"(?P<model>.+)=(?P<read>\d*\.?\d+):(?P<written>\d*\.?\d+)")


def read_lines(path: Path) -> list[Any]:
    """The datapoints of a JSONL file, whatever they are.

    Raises:
        UserError: it cannot be read, a line is not JSON, or there is none.
    """
    try:
        lines = lines_of(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"--task names {str(path)!r}; expected a file of JSON lines in UTF-8: {why}"
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}:{number} is not JSON: {error}; expected one datapoint a line"
                ) from error
    if not found:
        raise UserError(f"{str(path)!r} has no datapoint; expected one a line, as JSON")
    return found


def problem_lines(problems: Sequence[Problem]) -> list[Any]:
    """Problems as a user's function sees the lines of a file."""
    return [asdict(problem) for problem in problems]


class UserEvaluation:
    """Evaluates with a user's function, and counts what its calls took.

    Args:
        function: the user's, `(combination, datapoint, ask) -> float | Evaluation`.
        send: sends one call, as a Dispatcher's `generate` does.
        prices: of the models.
        seed: draws those of calls that name none, and no temperature of 0.
    """

    def __init__(
        self, function: EvaluateByCalls, send: Callable[[Call], Completion], prices: Prices, seed: int
    ) -> None:
        self._function = function
        self._send = send
        self._prices = {short_name(name): price for name, price in prices.items()}
        self._seed = seed

    def evaluate(self, combination: Combination, datapoint: Any) -> Evaluation:  # noqa: ANN401 - a user's line
        """What the function says, beside what its calls took where it says nothing of that.

        Raises:
            Exception: whatever the function raises; OllamaError where a call failed.
        """
        taken: list[tuple[str, Usage]] = []
        draws = _Draws(self._seed)

        def ask(call: Call) -> Completion:
            """The reply; raises where there is none."""
            call = draws.seeded(call)
            reply = self._send(call)
            if reply.error is not None:
                raise reply.error
            taken.append((short_name(call.model), reply.usage or Usage()))
            return reply

        said = self._function(combination, datapoint, ask)
        return said if isinstance(said, Evaluation) else self._with_costs(said, taken)

    def _with_costs(self, score: float, taken: Sequence[tuple[str, Usage]]) -> Evaluation:
        price = 0.0
        for model, usage in taken:
            read, written = self._prices.get(model, (0.0, 0.0))
            price += (usage.prompt_tokens * read + usage.completion_tokens * written) / _PER_TOKENS
        return Evaluation(
            score,
            latency_s=sum(usage.total_s for _, usage in taken),
            prompt_tokens=sum(usage.prompt_tokens for _, usage in taken),
            completion_tokens=sum(usage.completion_tokens for _, usage in taken),
            price=price,
        )


class _Draws:
    """Seeds for the calls of one evaluation that leave their reply to chance.

    Args:
        seed: of the run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: Counter[Question] = Counter()
        self._lock = threading.Lock()

    def seeded(self, call: Call) -> Call:
        """The call as it is, if it is greedy or has a seed; else with one that no equal call before it got.

        Raises:
            BadRequestError: the call holds what JSON cannot.
        """
        if call.repeatable:
            return call
        question = question_of(replace(call, options={**call.options, "seed": self._seed}))
        with self._lock:  # a user's function may ask on several threads
            count = self._made[question]
            self._made[question] += 1
        return replace(call, options={**call.options, "seed": seed_of(self._seed, "ask", count)})


def read_prices(prices: Sequence[str]) -> dict[str, tuple[float, float]]:
    """The prices of `--price model=in:out`.

    Raises:
        UserError: one is not written so.
    """
    found = {}
    for text in prices:
        if not (parts := _PRICE.fullmatch(text)):
            raise UserError(
                f"--price is {text!r}; expected MODEL=IN:OUT, the price of a million tokens read and of a "
                "million written, as in llama3.2=0.1:0.4"
            )
        found[parts["model"]] = float(parts["read"]), float(parts["written"])
    return found


def check_prices(prices: Prices, models: Iterable[str]) -> None:
    """Check that every price is of one of these models.

    Raises:
        UserError: one is not.
    """
    asked = list(dict.fromkeys(map(short_name, models)))
    for model in prices:
        if short_name(model) not in asked:
            raise UserError(f"--price names {model!r}, which is not asked here; {nearest(model, asked)}")


FIRST = 3
"""Where so many evaluations fail that are asked for first, the function is at fault."""


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
    return UserEvaluation(evaluate, pool.generate, prices, seed).evaluate, lines


class WatchedEvaluation:
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
        """Take what is evaluated first, before that begins."""
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
            self._ended = ScorerError(f"{self._own!r} failed: {error_line(self._own or '', error)}")
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
                    f"{error_line(self._own, error)}; expected 0 to 1, and 0 for a bad reply"
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
            function = load_function(spec, ("combination", "datapoint", "ask"), "evaluation")
    except ValueError as error:
        raise UserError(str(error)) from error
    return function


def _ask_for(combination: Combination, send: _Send, calls: CallFlags) -> AskModel:
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
