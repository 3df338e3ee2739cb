"""The client of a server as all see it, and what the clients of both dialects make of replies.

A server speaks Ollama's API (`ollama_utils.ollama`) or OpenAI's (`ollama_utils.openai`). Whatever
it sends is a reply or one error of `ollama_utils.errors`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallTimeoutError,
    OllamaError,
    ServerBusyError,
    ServerFaultError,
    ServerOverloadedError,
    ServerUnreachableError,
)
from ollama_utils.http import HttpClient, brief, key_from_environment
from ollama_utils.types import (
    Call,
    Completion,
    Embeddings,
    Inventory,
    Usage,
    is_count,
    is_text,
    unit_rows,
)

NOT_FOUND = 404
_FAULT = 500
"""The first status of a failed server."""
_UNAUTHORIZED = frozenset({401, 403})
_SUCCESS = 2
"""The hundreds of its statuses."""
_BY_STATUS: dict[int, type[OllamaError]] = {
    408: CallTimeoutError,
    429: ServerBusyError,
    501: BadRequestError,  # not supported
    503: ServerBusyError,
    502: ServerUnreachableError,  # a gateway, while the server behind it is gone ...
    504: ServerUnreachableError,  # ... or hangs
}
_CONTEXTS_TOO_LARGE = "Context size has been exceeded"
"""What llama.cpp's server says (500) when it drops all generations: their contexts do not fit."""
_UNREADABLE = (TypeError, AttributeError, LookupError, ValueError, OverflowError, RecursionError)
"""What is raised by reading JSON that is not of the shape that was expected."""


class ModelClient(ABC):
    """The client of one server, shared by all threads; each failure is an OllamaError."""

    host: str
    """The server as messages, logs and run folders name it."""

    @abstractmethod
    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """The model's reply to a call, without its thoughts.

        Args:
            call: what is asked.
            stream: have it sent word by word, so that a long reply is not silent for long.
            timeout_s: seconds of silence after which it is given up, in place of the client's.

        Raises:
            OllamaError: there is no reply; the message names host, model and what to do.
        """

    @abstractmethod
    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """The embeddings of N texts in one request; without any text none is sent.

        Raises:
            OllamaError: there are no embeddings.
        """

    @abstractmethod
    def models(self) -> dict[str, str]:
        """The models that the server has, each with what stands for its weights ("": unknown).

        Raises:
            OllamaError: the server sends no list.
        """

    def completes(self, model: str) -> bool:  # noqa: ARG002 - most servers do not say
        """Whether a model writes replies; True where the server does not say."""
        return True

    def slots(self) -> int | None:
        """How many calls the server serves at once; None where it does not say."""
        return None

    def inventory(self) -> Inventory:
        """What the server says of itself and its models.

        Raises:
            OllamaError: it does not say.
        """
        pulled = dict.fromkeys(self.models())
        return Inventory(version=None, pulled=pulled, loaded=None, slots=self.slots())

    @abstractmethod
    def abort(self) -> None:
        """End the calls under way, and all later ones, with CallCancelledError."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections that are idle; later calls raise CallCancelledError."""


def messages_of(call: Call) -> list[dict[str, str]]:
    """A call as the messages of a chat; without a system prompt the model keeps its own."""
    turns = [] if call.system is None else [("system", call.system)]
    for question, reply in call.examples:
        turns += [("user", question), ("assistant", reply)]
    turns.append(("user", call.prompt))
    return [{"role": role, "content": content} for role, content in turns]


def count_of(value: object) -> float:
    """A count or a duration as a server sends it; 0 where there is none, or it cannot be one."""
    return float(value) if is_count(value) else 0.0  # type: ignore[arg-type]  # a number then


class HttpModelClient(ModelClient):
    """What the clients of both dialects have in common.

    Args:
        host: what the server is called in messages, logs and run folders.
        url: its base URL.
        server: what it is, as "Ollama server".
        start: what to do where none answers.
        key: the variable of the environment that holds the API key, sent where it is set.
        timeout_s: see `ollama_utils.wires.open_client`.
        max_reply_chars: likewise.

    Raises:
        ValueError: the proxy, the certificates or the key of the environment cannot be used.
    """

    def __init__(
        self,
        host: str,
        url: str,
        *,
        server: str,
        start: str,
        key: str,
        timeout_s: float,
        max_reply_chars: int,
    ) -> None:
        self.host = host
        self._server, self._key_variable, self._max_chars = server, key, max_reply_chars
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if value := key_from_environment(key):
            headers["Authorization"] = f"Bearer {value}"
        self.http = HttpClient(
            url, name=host, server=server, start=start, timeout_s=timeout_s, headers=headers
        )

    def abort(self) -> None:  # noqa: D102 - ModelClient's
        self.http.abort()

    def close(self) -> None:  # noqa: D102 - ModelClient's
        self.http.close()

    def whom(self, model: str | None) -> str:
        """A model, or the server itself, as messages name it."""
        at = self.http.at
        return f"the server at {at}" if model is None else f"model {model!r} at {at}"

    def ask(
        self,
        model: str | None,
        method: str,
        path: str,
        body: object = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """The body of the reply to a request.

        Args:
            model: whom it is for; None: the server itself.
            method: GET or POST.
            path: behind the base URL.
            body: is sent as JSON.
            timeout_s: in place of the client's.

        Raises:
            OllamaError: there is none, or its status is not 2xx.
        """
        if model is not None and not model.strip():
            raise BadRequestError(f"a call to {self.http.at} names no model")
        reply = self.http.request(method, path, body, timeout_s=timeout_s)
        if reply.status // 100 == _SUCCESS:
            return reply.body
        error = self.error_of(model, reply.status, _words_of(reply.body))
        if isinstance(error, ServerBusyError):
            error.retry_after_s = reply.retry_after_s
        raise error

    def error_of(self, model: str | None, status: int, text: str) -> OllamaError:
        """The error that a status means, of a reply or within a stream.

        Args:
            model: whom the request was for; None: the server itself.
            status: the HTTP status.
            text: the server's words.
        """
        message = f"{self.whom(model)} answered {status}: {brief(text)!r}"
        if status >= _FAULT and _CONTEXTS_TOO_LARGE in text:
            return ServerOverloadedError(f"{message}: it dropped all calls; fewer are sent at once")
        if status in _UNAUTHORIZED:
            return BadRequestError(f"{message}: is {self._key_variable} set, and right?")
        if status == NOT_FOUND:
            return BadRequestError(f"{message}: is this an {self._server}?")
        kind = _BY_STATUS.get(status, ServerFaultError if status >= _FAULT else BadRequestError)
        return kind(message)

    @contextmanager
    def reading(self, model: str | None) -> Iterator[None]:
        """Within `with`: a reply that is not of the shape that was expected is a BadReplyError."""
        try:
            yield
        except _UNREADABLE as error:
            why = brief(str(error))
            raise BadReplyError(f"{self.whom(model)} sent an unreadable reply: {why}") from error

    def completion(
        self, call: Call, text: str, thoughts: str | None, *, is_cut: bool, usage: Usage | None
    ) -> Completion:
        """A reply, less the thoughts at its start, cut at the most characters that are kept.

        Args:
            call: what was asked.
            text: what the server sent as the reply.
            thoughts: what it sent as thoughts beside it.
            is_cut: whether the server cut it.
            usage: what it cost.

        Raises:
            BadReplyError: there is no text, or it is not valid Unicode.
        """
        whole = _without_thoughts(text)
        kept = whole[: self._max_chars]
        why = ""
        if not kept.strip():
            thought = ": it only thought; raise num_predict or pass --no-think"
            why = "without a text" + (thought if thoughts or text else "")
        elif not is_text(kept):
            why = "with text that is not valid Unicode: half of a surrogate pair"
        if why:
            message = f"{self.whom(call.model)} replied {why}"
            raise BadReplyError(message, retryable=not call.repeatable)
        return Completion(text=kept, truncated=is_cut or len(kept) < len(whole), usage=usage)

    def unit_rows_of(
        self, model: str, texts: Sequence[str], embeddings: object
    ) -> NDArray[np.float32]:
        """The embeddings of N texts as (N, D) rows of length 1.

        Raises:
            BadReplyError: they are not N rows of finite numbers, all of one length.
        """
        with self.reading(model):
            rows = np.array(embeddings)
            is_one_a_text = rows.shape[:1] == (len(texts),) and rows.shape[1:] == (rows[0].size,)
            if not is_one_a_text or not rows.size or rows.dtype.kind not in "fi":
                raise ValueError(f"{len(texts)} texts got embeddings of shape {rows.shape}")
            if not np.isfinite(rows).all():
                raise ValueError("its embeddings are not finite")
            return unit_rows(rows)


def words_of_error(error: object) -> str:
    """What a server says of its failure: the text of whatever form its error has."""
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and name in error:
            error = error[name]
    return error if isinstance(error, str) else json.dumps(error)


def _words_of(body: bytes) -> str:
    """What the body of a reply says of a failure."""
    try:
        return words_of_error(json.loads(body))
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def _without_thoughts(text: str) -> str:
    """A reply less the thoughts at its start.

    Models without a parser on the server put them there; some chat templates hold the opening tag,
    so that the reply has the closing one alone.
    """
    thoughts, closing, answer = text.partition("</think>")
    is_opened = thoughts.lstrip().startswith("<think>")
    if closing and (is_opened or "<think>" not in thoughts):
        return answer.lstrip()
    return "" if is_opened else text
