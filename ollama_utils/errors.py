"""What can go wrong between us and a model.

OllamaError
├── ServerUnreachableError    nothing answers at the host, or behind its gateway (502, 504)
├── ModelMissingError         the host answers, the model is not pulled
├── CallTimeoutError          the answer is late, by our clock or by the host's (408)
├── ServerBusyError           the host's queue is full, a model loads (503), or a rate limit (429)
│   └── ServerOverloadedError     llama.cpp dropped all generations: their contexts do not fit
├── ServerFaultError          the host answers that it failed (5xx but 501-504: a runner crash)
├── BadRequestError           the request cannot be written, or is rejected (any other 4xx; 501)
│   └── PromptTooLongError        the prompt does not fit into the model's context
├── BadReplyError             an answer came that cannot be used: not JSON, empty
│   ├── BrokenReplyError          the connection ended before the answer did
│   └── CutReplyError             the tokens were used up before the answer began
├── NotInLogError             a run is replayed, and its log of replies has none to the call
└── CallCancelledError        the run stopped before there was an answer

RunStoppedError (of `records.errors`)
├── OutageError               no server was there for longer than a run waits
└── ModelChangedError         a model's weights changed during the run

OSError
└── ReplyLogError             a log of replies cannot be written or read: a full disk, no log

ValueError
├── EncodingError             some texts of a batch have no embedding; it holds their OllamaErrors
└── UnknownEncoderError       a name of an encoder that means nothing here
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from records.errors import RunStoppedError


class OllamaError(Exception):
    """A call to a model failed.

    Args:
        message: what was expected, what came, what to do.
        retryable: whether the same call may succeed later; None: as its kind of error mostly may.
    """

    retryable = True
    status: int | None = None
    """The HTTP status of the reply, where there was one."""
    words = ""
    """What the server said of it."""

    def __init__(self, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable


def fresh(error: OllamaError) -> OllamaError:
    """The same error, to be raised: several threads may have it, and each adds to its traceback."""
    return copy.copy(error)


class ServerUnreachableError(OllamaError):
    """Nothing answers at the host, or behind its gateway."""


class ModelMissingError(OllamaError):
    """The host answers, but the model is not pulled."""

    retryable = False


class CallTimeoutError(OllamaError):
    """The answer did not come in time, by our clock or by the host's (HTTP 408)."""


class ServerBusyError(OllamaError):
    """The host's queue is full (HTTP 503), or a proxy in front of it wants fewer calls (429)."""

    retry_after_s: float | None = None
    """Its Retry-After, five minutes at most; None where it does not say."""


class ServerOverloadedError(ServerBusyError):
    """The host dropped all it was generating: fewer calls are sent to that model from then on."""


class ServerFaultError(OllamaError):
    """The host answers that it failed: HTTP 5xx other than 501 to 504."""


class BadRequestError(OllamaError):
    """The request is not JSON, or the host rejects it: any other 4xx, 501, a wrong option."""

    retryable = False


class PromptTooLongError(BadRequestError):
    """The prompt does not fit into the model's context, or the server cut it to make it fit."""


class BadReplyError(OllamaError):
    """An answer came that cannot be used: broken off, not JSON, not Unicode, or empty.

    Where an equal call would get it again, it is not `retryable`.
    """


class BrokenReplyError(BadReplyError):
    """The connection ended before the answer did."""


class CutReplyError(BadReplyError):
    """The tokens of the reply were used up before an answer began: by thoughts, or white space."""


class NotInLogError(OllamaError):
    """A run is played again from its log of replies, which has none to the call."""

    retryable = False


class OutageError(RunStoppedError):
    """No server was there for longer than a run waits; every later call raises it, too."""


class ModelChangedError(RunStoppedError):
    """A model's weights changed during the run: its replies would be those of two models."""


class CallCancelledError(OllamaError):
    """The run stopped before there was an answer."""

    retryable = False


class ReplyLogError(OSError):
    """A file of replies cannot be written or read; no reply is given out that could not be kept."""


ENDS_THE_RUN = (CallCancelledError, ReplyLogError, OutageError, ModelChangedError)
"""Errors of the run as a whole. Code that tolerates single failures re-raises these."""


class EncodingError(ValueError):
    """Some texts of a batch have no embedding; the rows of the others are here.

    Args:
        rows: (N, D), one row a text; what stands in a failed one means nothing.
        failures: why each failed text has no row, by its place in the batch.
    """

    def __init__(self, rows: NDArray[np.float32], failures: Mapping[int, OllamaError]) -> None:
        self.rows = rows
        self.failures = dict(sorted(failures.items()))
        first = next(iter(self.failures.values()))
        super().__init__(f"texts {list(self.failures)} could not be encoded; the first: {first}")


class UnknownEncoderError(ValueError):
    """There is no such encoder: the name, the model's files or the libraries are wrong."""
