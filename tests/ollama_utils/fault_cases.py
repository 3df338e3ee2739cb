"""Every fault that spoils a call, and the error by which the model layer names it."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_utils.errors import (
    BadReplyError,
    BrokenReplyError,
    CallTimeoutError,
    OllamaError,
    ServerBusyError,
    ServerFaultError,
    ServerUnreachableError,
)
from ollama_utils.http import MOST_BYTES

Fault = dict[str, Any]

ANY_CALL: list[tuple[Fault, type[OllamaError]]] = [
    ({"kind": "status"}, ServerFaultError),
    ({"kind": "status", "status": 503}, ServerBusyError),
    ({"kind": "hang", "at": "start"}, CallTimeoutError),
    ({"kind": "hang", "at": "body"}, CallTimeoutError),
    ({"kind": "hang", "at": "end"}, CallTimeoutError),
    ({"kind": "drop", "at": "start"}, BrokenReplyError),
    ({"kind": "drop", "at": "body"}, BrokenReplyError),
    ({"kind": "drop", "at": "end"}, BrokenReplyError),
    ({"kind": "garbage", "what": "cut"}, BadReplyError),
    ({"kind": "garbage"}, BadReplyError),
    ({"kind": "status", "status": 502}, ServerUnreachableError),
    ({"kind": "garbage", "what": "empty"}, BadReplyError),
    ({"kind": "garbage", "what": "enormous", "bytes": MOST_BYTES + 1}, BadReplyError),
    ({"kind": "garbage", "what": "wrong_type"}, BadReplyError),
    ({"kind": "garbage", "what": "wrong_type", "field": "model"}, BadReplyError),
    ({"kind": "garbage", "what": "wrong_type", "field": "total_duration"}, BadReplyError),
]
"""Faults of replies to generate and embed alike."""

WORDS: list[tuple[Fault, type[OllamaError]]] = [
    *ANY_CALL,
    ({"kind": "garbage", "what": "not_done"}, BadReplyError),
    ({"kind": "garbage", "what": "wrong_type", "field": "done"}, BadReplyError),
    ({"kind": "garbage", "what": "wrong_type", "field": "eval_count"}, BadReplyError),
]
"""Faults of replies with words."""


def cases(
    faults: list[tuple[Fault, type[OllamaError]]], *, with_enormous: bool = False
) -> list[Any]:
    """The faults as parameters of a test, each named by what it says.

    A reply of 32 MiB takes a second: without `with_enormous` it is in `make soak` alone.
    """
    return [
        pytest.param(
            fault,
            error,
            id="-".join(map(str, fault.values())),
            marks=[pytest.mark.soak]
            if fault.get("what") == "enormous" and not with_enormous
            else [],
        )
        for fault, error in faults
    ]


def patience_s(error: type[OllamaError], late_s: float = 0.1) -> float:
    """A call's timeout: short only where the fault is to be late, for machines are busy.

    `late_s` may be shorter where no attempt is to succeed.
    """
    return late_s if error is CallTimeoutError else 20.0
