"""What `mutagym select` evaluates on: the problems of a task, or a user's lines with a user's function."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ollama_utils.questions import Question, question_of
from ollama_utils.types import Call, Completion, Usage, short_name
from search.genetics.chance import seed_of
from search.policies.nearest import nearest
from search.selectors.combination import Combination
from search.selectors.selector import Evaluation
from search.task import Problem, lines_of
from train.errors import UserError

Prices = Mapping[str, tuple[float, float]]
"""By model, what a million prompt tokens and a million completion tokens cost."""
Ask = Callable[[Call], Completion]
UserFunction = Callable[[Combination, Any, Ask], float | Evaluation]
_PER_TOKENS = 1_000_000
_PRICE = re.compile(r"(?P<model>.+)=(?P<read>\d*\.?\d+):(?P<written>\d*\.?\d+)")


def read_lines(path: Path) -> list[Any]:
    """The datapoints of a JSONL file, whatever they are.

    Raises:
        UserError: it cannot be read, a line is no JSON, or there is none.
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
                    f"{path}:{number} is no JSON: {error}; expected one datapoint a line"
                ) from error
    if not found:
        raise UserError(f"{str(path)!r} has no datapoint; expected one a line, as JSON")
    return found


def problem_lines(problems: Sequence[Problem]) -> list[Any]:
    """Problems as a user's function sees the lines of a file."""
    return [asdict(problem) for problem in problems]


class Evaluated:
    """Evaluates with a user's function, and counts what its calls took.

    Args:
        function: the user's, `(combination, datapoint, ask) -> float | Evaluation`.
        send: sends one call, as a Dispatcher's `generate` does.
        prices: of the models.
        seed: draws those of calls that name none, and no temperature of 0.
    """

    def __init__(
        self, function: UserFunction, send: Callable[[Call], Completion], prices: Prices, seed: int
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
        return said if isinstance(said, Evaluation) else self._told(said, taken)

    def _told(self, score: float, taken: Sequence[tuple[str, Usage]]) -> Evaluation:
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
