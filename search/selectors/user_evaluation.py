"""A user's own evaluation for `mutagym select`, FILE.py:NAME: its datapoints, calls and failures."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ollama_utils.errors import ENDS_THE_RUN, OllamaError
from ollama_utils.parallel import ParallelError
from ollama_utils.reply_log import Question, question_of
from ollama_utils.types import Call, Completion, Think, short_name
from records.errors import UserError, as_user_error, nearest
from records.user_file import error_line, load_function
from search.call_pool import CallPool
from search.chance import seed_of
from search.selectors.combination import Combination
from search.selectors.results import Evaluation, Prices, checked
from search.selectors.selector import Evaluate
from search.task import ScorerError, lines_of


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


class UserEvaluation:
    """Evaluates with a user's function, and counts what its calls took.

    Args:
        spec: `FILE.py:NAME`, the function's place.
        pool: sends the calls.
        prices: of the models.
        seed: draws those of calls that name none, and no temperature of 0.
        options: Ollama's of a call that is asked for as a text.
        think: of such a call, whether a thinking model thinks; None leaves it to the server.

    Raises:
        UserError: there is no such function.
    """

    def __init__(
        self,
        spec: str,
        pool: CallPool,
        prices: Prices,
        seed: int,
        *,
        options: Mapping[str, Any],
        think: Think | None,
    ) -> None:
        arguments = ("combination", "datapoint", "ask")
        # A user's file may print; stdout is the report's.
        with as_user_error(ValueError), redirect_stdout(sys.stderr):
            self._function: UserFunction = load_function(spec, arguments, "evaluation")
        self._pool, self._prices, self._seed = pool, prices, seed
        self._options, self._think = options, think

    def __call__(self, combination: Combination, datapoint: Any) -> Evaluation:  # noqa: ANN401 - a user's line
        """What the function says, beside what its calls took where it says nothing of that.

        Raises:
            Exception: whatever the function raises; OllamaError where a call failed.
        """
        asked: list[tuple[str, Completion]] = []
        draws: Counter[Question] = Counter()
        lock = threading.Lock()  # a user's function may ask on several threads

        def seeded(call: Call) -> Call:
            """The call, with a seed that no equal one got before it, if it is not greedy and has none."""
            if call.repeatable:
                return call
            drawn = question_of(replace(call, options={**call.options, "seed": self._seed}))
            with lock:
                count = draws[drawn]
                draws[drawn] += 1
            return replace(call, options={**call.options, "seed": seed_of(self._seed, "ask", count)})

        def ask(question: str | Call, *, model: str | None = None, system: str | None = None) -> Completion:
            call = seeded(self._call(combination, question, model, system))
            reply = self._pool.generate(call)
            if reply.error is not None:
                raise reply.error
            asked.append((call.model, reply))
            return reply

        said = self._function(combination, datapoint, ask)
        return said if isinstance(said, Evaluation) else Evaluation.of_calls(said, asked, self._prices)

    def _call(
        self, combination: Combination, question: str | Call, model: str | None, system: str | None
    ) -> Call:
        if isinstance(question, Call):
            if model is not None or system is not None:
                raise TypeError("ask takes a Call, or a text with model= and system=; not both")
            return question
        if not isinstance(question, str):
            raise TypeError(f"ask takes a text or a Call, got {question!r}")
        return Call(
            model=combination["model"] if model is None else model,
            prompt=question,
            system=combination.get("prompt") if system is None else system,
            options={**self._options, "temperature": 0},
            think=self._think,
        )


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


class WatchedEvaluation:
    """An evaluation whose errors count, but for those that end the search.

    These are what ends every run (`ENDS_THE_RUN`), a scorer that fails, and a user's own evaluation that
    does not work: one that raises what is no OllamaError, or returns no score, wherever it is asked first.

    Args:
        evaluate: what is called.
        own: how the user's function is named; None: it is not a user's.
    """

    def __init__(self, evaluate: Evaluate, own: str | None = None) -> None:
        self._evaluate = evaluate
        self._own = own
        self._first: set[tuple[int, int]] = set()
        self._ended: Exception | None = None
        self._lock = threading.Lock()

    def watch(self, cells: Iterable[tuple[Combination, Any]]) -> None:
        """Take what is evaluated first, before that begins."""
        self._first = {_key(*cell) for cell in islice(cells, FIRST)} if self._own else set()

    def __call__(self, combination: Combination, datapoint: Any) -> float | Evaluation:  # noqa: ANN401 - a user's line
        """What a combination does at a datapoint.

        Raises:
            Exception: whatever the evaluation raises.
        """
        try:
            found = self._evaluate(combination, datapoint)
            self._check_score(found)
        except (*ENDS_THE_RUN, ScorerError) as error:
            self._ended = error
            raise
        except SystemExit as error:
            self._ended = ScorerError(f"{self._own!r} failed: {error_line(self._own or '', error)}")
            raise self._ended from error
        except Exception as error:
            self._failed(_key(combination, datapoint), error)
            raise
        self._works(_key(combination, datapoint))
        return found

    def check(self) -> None:
        """To be called between evaluations.

        Raises:
            ReplyLogError: a reply could not be kept.
            OutageError, ModelChangedError, CallCancelledError: the run is over.
            ScorerError: the user's scorer or evaluation does not work.
        """
        if self._ended:
            raise self._ended

    def _check_score(self, found: object) -> None:
        """A user's function has to return a score; what else it returns is an error like any other."""
        if self._own and isinstance(bad := checked(found), Exception):
            raise bad

    def _failed(self, cell: tuple[int, int], error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, ParallelError) else error
        if isinstance(cause, OllamaError):
            self._works(cell)
            return
        with self._lock:
            if self._own and self._first == {cell}:
                self._ended = ScorerError(
                    f"--evaluate {self._own!r} failed wherever it was tried first: "
                    f"{error_line(self._own, error)}; expected 0 to 1, and 0 for a bad reply"
                )
            self._first.discard(cell)

    def _works(self, cell: tuple[int, int]) -> None:
        """One of the first came to an end: what others raise is theirs."""
        with self._lock:
            if cell in self._first:
                self._first.clear()


def _key(combination: Combination, datapoint: object) -> tuple[int, int]:
    return id(combination), id(datapoint)  # a selector keeps both
