"""What can go wrong between us and a model.

OllamaError
├── ServerUnreachableError    nothing answers at the host
├── ModelMissingError         the host answers, the model is not pulled
├── CallTimeoutError          the answer is late
├── ServerBusyError           the host's queue is full (503), or a proxy's rate limit (429)
├── ServerFaultError          the host answers that it failed (any other 5xx: a runner crash)
├── BadRequestError           the host rejects the request (any other 4xx)
├── BadReplyError             an answer came that cannot be read: broken off, not JSON, empty
└── CallCancelledError        the run stopped before the call was made

EncoderError (a ValueError) stands apart: a name of an encoder that means nothing here.
"""

from __future__ import annotations


class OllamaError(Exception):
    """A call to a model failed. `retryable` says whether the same call may succeed later."""

    retryable = True


class ServerUnreachableError(OllamaError):
    """Nothing answers at the host."""


class ModelMissingError(OllamaError):
    """The host answers, but the model is not pulled."""

    retryable = False


class CallTimeoutError(OllamaError):
    """The answer did not come in time."""


class ServerBusyError(OllamaError):
    """The host's queue is full (HTTP 503), or a proxy in front of it wants fewer calls (429)."""


class ServerFaultError(OllamaError):
    """The host answers that it failed: HTTP 5xx other than 503."""


class BadRequestError(OllamaError):
    """The host rejects the request: HTTP 4xx other than a missing model."""

    retryable = False


class BadReplyError(OllamaError):
    """An answer came that cannot be read: broken off, not JSON, not done, or empty."""


class CallCancelledError(OllamaError):
    """The run stopped before the call was made."""

    retryable = False


class EncoderError(ValueError):
    """There is no such encoder: the name, the model's files or the libraries are wrong."""
