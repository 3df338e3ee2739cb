"""What every wire makes of one request: its failures as our errors, its text, its rows.

`Exchange` belongs to one client of one server. It is the place where the exceptions of httpx and of readers
of JSON are seen: each is translated once into the tree of `ollama_utils.errors`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

import httpx
import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    CallCancelledError,
    CallTimeoutError,
    OllamaError,
    ServerBusyError,
    ServerFaultError,
    ServerOverloadedError,
    ServerUnreachableError,
)
from ollama_utils.http import RETRY_AFTER, EncodedError, RedirectedError
from ollama_utils.types import Call, Completion, Usage, is_count, is_text, unit_rows
from records.terminal import shown

NOT_FOUND = 404
CONNECT_S = 10.0
"""The seconds after which nobody is there, unless a call's own time is shorter."""
_BUSY = frozenset({429, 503})
_BY_STATUS: Mapping[int, type[OllamaError]] = {
    408: CallTimeoutError,
    501: BadRequestError,  # not supported
    502: ServerUnreachableError,  # a gateway, while the server behind it is gone ...
    504: ServerUnreachableError,  # ... or hangs
}
_FIRST_FAULT = 500
_CACHE_FULL = "Context size has been exceeded"
"""What llama.cpp's server says (500) when it aborts all generations: their contexts do not fit together."""
_MOST_QUOTED = 300
_MOST_RETRY_AFTER_S = 300.0
_MOST_NUMBERS = 2**16
"""The longest embedding that is taken: some ten times that of any model."""


class Exchange:
    """The failures and replies of one server's requests, in our words; shared by all threads.

    Args:
        host: how the server is named in messages.
        timeout_s: the seconds after which its client gives a request up.
        absent: what is not there when nobody answers, as "Ollama server".
        start: how one is started, for the same message.
        max_reply_chars: the characters of a reply that are kept.

    Raises:
        ValueError: no character is.
    """

    def __init__(
        self,
        host: str,
        *,
        timeout_s: float,
        absent: str,
        start: str,
        max_reply_chars: int,
    ) -> None:
        if max_reply_chars < 1:
            raise ValueError(f"max_reply_chars must be at least 1, got {max_reply_chars!r}")
        self.closed = False
        """Whether the client was closed."""
        self._host = host
        self._timeout_s = timeout_s
        self._absent = absent
        self._start = start
        self._max_reply_chars = max_reply_chars
        self._request = threading.local()

    def whom(self, model: str | None) -> str:
        """A model, or the server itself, as messages name it."""
        return f"the server at {self._host!r}" if model is None else f"model {model!r} at {self._host!r}"

    @property
    def hooks(self) -> dict[str, list[Callable[..., None]]]:
        """What the HTTP client of this server calls with each request and each response."""
        return {"request": [self._note_sent], "response": [self._note_answered]}

    def _note_sent(self, _: httpx.Request) -> None:
        """This thread's request is written: what fails from now on fails on the way or in the reply."""
        self._request.sent = True

    def _note_answered(self, response: httpx.Response) -> None:
        """This thread's request is answered; where the server is busy, it may say for how long."""
        if response.status_code in _BUSY:
            self._request.retry_after_s = _retry_after_s(response.headers.get(RETRY_AFTER, ""))

    @contextmanager
    def errors_translated(self, model: str | None) -> Iterator[None]:
        """Within `with`: every failure is raised as an OllamaError."""
        if model is not None and not model.strip():
            raise BadRequestError(f"a call to {self._host!r} names no model")
        self._request.sent, self._request.retry_after_s = False, None
        try:
            yield
        except (ConnectionError, httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise self._absence(error) from error
        except httpx.TimeoutException as error:
            raise CallTimeoutError(
                f"{self.whom(model)} did not answer within {self._timeout_s:g} s: "
                "allow more time, or put fewer calls in flight"
            ) from error
        except httpx.LocalProtocolError as error:
            raise BadRequestError(f"the request to {self.whom(model)} cannot be sent: {error}") from error
        except httpx.HTTPError as error:
            raise self._refusal(model, error) from error
        except (TypeError, AttributeError, LookupError, ValueError, OverflowError, RecursionError) as error:
            raise self._misread(model, error) from error
        except RuntimeError as error:
            if not self.closed:
                raise
            raise CallCancelledError(f"the client of {self._host!r} was closed before the call") from error

    def rejection(self, model: str | None, status: int, text: str) -> OllamaError:
        """The error for an HTTP status other than 2xx, by the status alone but for what llama.cpp says.

        Args:
            model: whom the request was for.
            status: the HTTP status.
            text: the server's words.
        """
        said = f"{self.whom(model)} answered {status}: {brief(text)!r}"
        if status >= _FIRST_FAULT and _CACHE_FULL in text:
            return ServerOverloadedError(f"{said}: it dropped all generations; fewer are put in flight")
        if status in _BUSY:
            return ServerBusyError(said, retry_after_s=self._request.retry_after_s)
        if status in _BY_STATUS:
            return _BY_STATUS[status](said)
        if status >= _FIRST_FAULT:
            return ServerFaultError(said)
        hint = f": is this an {self._absent}?" if status == NOT_FOUND else ""
        return BadRequestError(f"{said}{hint}")

    def completion(
        self, call: Call, text: str, thinking: str | None, *, truncated: bool, usage: Usage | None
    ) -> Completion:
        """A reply, less the thinking at its start, cut at the most characters that are kept.

        Args:
            call: what was asked.
            text: what the server gave as the reply.
            thinking: what it gave as thinking beside it.
            truncated: whether the server cut it.
            usage: what it cost.

        Raises:
            BadReplyError: there is no text, or it is not valid Unicode.
        """
        whole = _without_thinking(text)
        said = whole[: self._max_reply_chars]
        why = ""
        if not said.strip():
            why = "without a text" + (
                ": it only thought; raise num_predict or pass --no-think" if thinking or text else ""
            )
        elif not is_text(said):
            why = "with text that is not valid Unicode: half of a surrogate pair"
        if why:
            raise BadReplyError(f"{self.whom(call.model)} replied {why}", retryable=not call.repeatable)
        return Completion(text=said, truncated=truncated or len(said) < len(whole), usage=usage)

    def checked_rows(
        self, model: str, texts: Sequence[str], embeddings: Sequence[Sequence[float]]
    ) -> NDArray[np.float32]:
        """The embeddings of N texts as (N, D) rows of length 1.

        Raises:
            BadReplyError: they are not as many, not of one length, too long, or not finite.
        """
        lengths = sorted({len(row) for row in embeddings})
        if len(embeddings) != len(texts) or len(lengths) != 1 or not 0 < lengths[0] <= _MOST_NUMBERS:
            raise BadReplyError(
                f"{self.whom(model)} gave {len(embeddings)} embeddings of lengths "
                f"{brief(str(lengths))}; expected {len(texts)} of one length"
            )
        rows = np.asarray(embeddings, dtype=np.float64)
        if not np.isfinite(rows).all():
            raise BadReplyError(f"{self.whom(model)} gave embeddings that are not finite")
        return unit_rows(rows)

    def checked_models(self, listed: Iterable[tuple[str | None, str | None]]) -> dict[str, str]:
        """The models of a list, without those whose name nobody could type: no call could name them.

        Args:
            listed: each model's name and what stands for its weights, as the server tells them.
        """
        return {
            name: digest if digest and digest.isprintable() else ""
            for name, digest in listed
            if name and name.isprintable()
        }

    def _absence(self, error: Exception) -> ServerUnreachableError:
        """The error for a host where nobody answers."""
        cause = brief(str(error.__context__ or error))  # the official client hides it behind words of its own
        why = "" if "refused" in cause else f" ({cause})"
        return ServerUnreachableError(f"no {self._absent} answers at {self._host!r}{why}: {self._start}")

    def _refusal(self, model: str | None, error: httpx.HTTPError) -> OllamaError:
        """The error for a reply that was not read: it points elsewhere, is compressed, or broke off."""
        whom = self.whom(model)
        if isinstance(error, RedirectedError):
            told = (
                f"points to {brief(error.location)!r}" if error.location else "does not say where it points"
            )
            return BadRequestError(
                f"{whom} answered {error.status}: it {told}; nothing was sent there: "
                "name that address with --ollama-host if you mean it"
            )
        if isinstance(error, EncodedError):
            return BadReplyError(f"{whom} answered in an encoding that was not asked for: {error}: unread")
        return BrokenReplyError(f"{whom} broke off its reply: {brief(repr(error))}")

    def _misread(self, model: str | None, error: Exception) -> OllamaError:
        """The error for what cannot be JSON: the request, before it went out, or else the reply."""
        why = shown(brief(str(error)))
        if self._request.sent:
            return BadReplyError(f"{self.whom(model)} gave an unreadable reply: {why}")
        return BadRequestError(f"the request to {self.whom(model)} cannot be written as JSON: {why}")


def messages_of(call: Call) -> list[dict[str, str]]:
    """A call as the messages of a chat; without a system prompt the model keeps its own."""
    turns = [] if call.system is None else [("system", call.system)]
    for question, reply in call.examples:
        turns += [("user", question), ("assistant", reply)]
    return [{"role": role, "content": content} for role, content in (*turns, ("user", call.prompt))]


def ascii_key(variable: str) -> str:
    """An API key from the environment; "" where it is not set.

    Raises:
        ValueError: no header can hold it; the message does not show it.
    """
    key = os.environ.get(variable, "")
    if not key.isascii():
        raise ValueError(f"{variable} holds letters that no header can; expected ASCII alone")
    return key


def brief(text: str) -> str:
    """A server's words in one line, for a message: what stands there may be a gateway's page."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_QUOTED else f"{line[:_MOST_QUOTED]}..."


def counted(value: object) -> float:
    """A count or a duration as a server tells it; 0 where it tells none, or what cannot be one."""
    return float(value) if isinstance(value, int | float) and is_count(value) else 0.0


def _retry_after_s(told: str) -> float | None:
    """The seconds that a Retry-After asks to wait, five minutes at most; None where it cannot be read.

    Args:
        told: seconds, or the date of a moment (RFC 9110, 10.2.3).
    """
    if len(told) > _MOST_QUOTED:
        return None
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", told.strip()):
        wait_s = float(told)
    else:
        try:
            wait_s = parsedate_to_datetime(told).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, LookupError, OSError):
            return None
    return min(max(0.0, wait_s), _MOST_RETRY_AFTER_S)


def _without_thinking(reply: str) -> str:
    """A reply less the thinking at its start.

    Models without a parser on the server put it there; some chat templates hold its opening tag, so
    that the reply has only the closing one.
    """
    thought, closed, text = reply.partition("</think>")
    opened = thought.lstrip().startswith("<think>")
    if closed and (opened or "<think>" not in thought):
        return text.lstrip()
    return "" if opened else reply
