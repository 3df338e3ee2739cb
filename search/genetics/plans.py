"""What every plan of the search does with what it gets back."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Call, Completion
from search.streams import Failed

T = TypeVar("T")

CallPlan = Generator[Sequence[Call], Sequence[Completion | Failed], T]
"""Yields batches of calls, is sent what came of each in order, returns its result."""


class SearchStoppedError(Exception):
    """The search was told to stop before it was through."""


def asked_twice(calls: Sequence[Call]) -> CallPlan[list[Completion]]:
    """What comes of these calls; those that fail are asked once more.

    Raises:
        SearchStoppedError: a call was cancelled.
        Exception: whatever was raised in place of a completion.
    """
    replies = _checked((yield calls))
    failed = [index for index, reply in enumerate(replies) if reply.error is not None]
    if failed:
        for index, reply in zip(failed, _checked((yield [calls[i] for i in failed])), strict=True):
            replies[index] = reply
    return replies


def _checked(replies: Sequence[Completion | Failed]) -> list[Completion]:
    """The replies, of which none stands for the end of the run."""
    checked = []
    for reply in replies:
        if isinstance(reply, Failed):
            raise reply.error
        if isinstance(reply.error, CallCancelledError):
            raise SearchStoppedError("the calls were cancelled") from reply.error
        checked.append(reply)
    return checked
