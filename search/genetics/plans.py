"""What every plan of the search does with what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Call, Completion
from search.streams import Failed

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What came of a call."""

    completion: Completion
    score: float | None = None
    """What the reply is worth; None where there is none, or nothing that scores it."""


@dataclass(frozen=True)
class Asking:
    """A call, and what its reply is worth: that is found out where the reply arrives, beside other calls."""

    call: Call
    score: Callable[[str], float] | None = None

    def answer(self, ask: Callable[[Call], Completion]) -> Answer:
        """What came of it.

        Raises:
            Exception: whatever `ask` and `score` raise.
        """
        completion = ask(self.call)
        if self.score is None or completion.error is not None:
            return Answer(completion)
        return Answer(completion, float(self.score(completion.text)))


CallPlan = Generator[Sequence[Asking], Sequence[Answer | Failed], T]
"""Yields batches of what to ask, is sent what came of each in order, returns its result."""


class SearchStoppedError(Exception):
    """The search was told to stop before it was through."""


def asked_twice(askings: Sequence[Asking]) -> CallPlan[list[Answer]]:
    """What comes of these; the calls that fail are asked once more.

    Raises:
        SearchStoppedError: a call was cancelled.
        Exception: whatever was raised in place of an answer.
    """
    answers = _checked((yield askings))
    failed = [index for index, answer in enumerate(answers) if answer.completion.error is not None]
    if failed:
        for index, answer in zip(failed, _checked((yield [askings[i] for i in failed])), strict=True):
            answers[index] = answer
    return answers


def _checked(answers: Sequence[Answer | Failed]) -> list[Answer]:
    """The answers, of which none stands for the end of the run."""
    checked = []
    for answer in answers:
        if isinstance(answer, Failed):
            raise answer.error
        if isinstance(answer.completion.error, CallCancelledError):
            raise SearchStoppedError("the calls were cancelled") from answer.completion.error
        checked.append(answer)
    return checked
