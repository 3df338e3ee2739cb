"""What the clients of Ollama's API (`ollama_utils.ollama`) and of OpenAI's have in common.

Whatever a server sends becomes a reply or one error of `ollama_utils.errors`.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallTimeoutError,
    CutReplyError,
    OllamaError,
    PromptTooLongError,
    ServerBusyError,
    ServerFaultError,
    ServerOverloadedError,
    ServerUnreachableError,
)
from ollama_utils.http import HttpClient, brief
from ollama_utils.thoughts import MARKS, Marks, split_thoughts
from ollama_utils.types import (
    CALL_TIMEOUT_S,
    MAX_REPLY_CHARS,
    Call,
    Completion,
    Embeddings,
    Inventory,
    Usage,
    is_text,
)
from ollama_utils.vectors import unit_rows

NOT_FOUND = 404
FAULT = 500
"""The first status of a failed server, and that of a failure within a stream, after a 200."""
_MAY_BE_TOO_LONG = frozenset({400, 413, 422})
UNAUTHORIZED = frozenset({401, 403})
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
_TOO_LONG = re.compile(
    r"context.{0,20}(length|size|window|limit)|(exceed|larger|longer).{0,40}context"
    r"|prompt is too long|input (\(\d+ tokens\) )?is too (large|long)|too many (input )?tokens"
    r"|input token count|maximum (sequence|input|prompt) length|reduce the length of the"
    r"|must have less than \d+ tokens",  # Hugging Face's server of embeddings
    re.IGNORECASE,
)
"""What servers say of a prompt that does not fit into the context."""
_CUT_FROM = 1000
"""A prompt counts as cut only if the server read at least so many tokens, or half of a smaller
context. With fewer, it may have left out of its count what it had in its cache."""
_MOST_COUNTED = 1e15
"""No reply has so many tokens or nanoseconds; less fits into floats and databases exactly."""
_ENDS_BADLY = frozenset({"error", "abort", "aborted", "cancelled"})
_FILTERED = "content_filter"
_ROWS_AND_COLUMNS = 2
_THINK_FLAGS = {"target": "--think", "mutator": "--mutator-think", "judge": "--judge-think"}
_CONTEXTS_TOO_LARGE = "Context size has been exceeded"
"""What llama.cpp's server says (500) when it drops all generations: their contexts do not fit."""
_UNREADABLE = (TypeError, AttributeError, LookupError, ValueError, OverflowError, RecursionError)
"""What is raised by reading JSON whose shape is not the expected one."""


class ClientSettings(TypedDict, total=False):
    """The settings of a client, each of which may be left out."""

    timeout_s: float
    """Seconds that a server may be silent; its whole reply may take ten times as many."""
    max_reply_chars: int
    """Characters of a reply that are kept; a longer one is cut, and flagged."""
    thought_marks: Sequence[Marks]
    """What opens and closes thoughts in a reply, beside those that are known."""
    request_fields: Sequence[str]
    """What is known of an OpenAI-compatible server; see `ollama_utils.dialect`."""
    report: Callable[[str], None]
    """Is given a line for the user with each further rule that is learned."""


class ModelClient(ABC):
    """The client of one server, shared by all threads; each failure is an OllamaError.

    Args:
        host: what the server is called in messages, logs and run folders.
        url: its base URL.
        settings: see `ClientSettings`.

    Raises:
        ValueError: the proxy, the certificates or the key of the environment cannot be used.
    """

    server: str
    """What kind of server it is, as "Ollama server"."""
    start: str
    """What to do where none answers."""
    key: str
    """The variable of the environment that holds the API key, which is sent where it is set."""
    larger_context = "raise the model's context"
    """What to do where a prompt does not fit into the model's context."""
    request_fields: tuple[str, ...] = ()
    """What is known of the server's dialect; see `ollama_utils.dialect`."""

    def __init__(self, host: str, url: str, settings: ClientSettings) -> None:
        self.host = host
        """The server as messages, logs and run folders name it."""
        self._marks = (*settings.get("thought_marks", ()), *MARKS)
        self._max_chars = settings.get("max_reply_chars", MAX_REPLY_CHARS)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        value = os.environ.get(self.key, "").strip()
        if not (value.isascii() and value.isprintable()):  # which the message does not show
            raise ValueError(
                f"{self.key} holds characters that no header can; expected ASCII alone"
            )
        if value:
            headers["Authorization"] = f"Bearer {value}"
        self.http = HttpClient(
            url,
            name=host,
            server=self.server,
            start=self.start,
            timeout_s=settings.get("timeout_s", CALL_TIMEOUT_S),
            headers=headers,
        )

    @abstractmethod
    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """The model's reply to a call, without its thoughts.

        Args:
            call: what is asked.
            stream: have it sent word by word, so that a long reply is not silent for long.
            timeout_s: seconds of silence after which it is given up; None: the client's.

        Raises:
            OllamaError: there is none; the message names host, model and what to do.
        """

    @abstractmethod
    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """The embeddings of N texts, at least one, in one request; raises an OllamaError."""

    @abstractmethod
    def models(self) -> dict[str, str]:
        """The models that the server has, each with what stands for its weights ("": unknown).

        Raises an OllamaError where the server sends no list.
        """

    def completes(self, model: str) -> bool:  # noqa: ARG002 - most servers do not say
        """Whether a model writes replies; True where the server does not say."""
        return True

    def slots(self) -> int | None:
        """How many calls the server serves at once; None where it does not say."""
        return None

    def contexts(self) -> Mapping[str, int]:
        """How many tokens prompt and reply may have, by model, as far as the server says."""
        return {}

    def inventory(self) -> Inventory:
        """What the server says of itself and its models; an OllamaError where it says nothing."""
        pulled = dict.fromkeys(self.models())
        return Inventory(version=None, pulled=pulled, loaded=None, slots=self.slots())

    def close(self) -> None:
        """End the calls under way, and all later ones, with CallCancelledError."""
        self.http.close()

    def name_of(self, model: str | None) -> str:
        """A model at this server, or with None the server itself, as messages name it."""
        at = self.http.at
        return f"the server at {at}" if model is None else f"model {model!r} at {at}"

    def ask(
        self, model: str | None, path: str, body: object = None, timeout_s: float | None = None
    ) -> bytes:
        """The body of the reply to a request for a model, or with None for the server itself.

        Its other arguments are those of `HttpClient.request`. Raises an OllamaError where there is
        none, or its status is not 2xx.
        """
        if model is not None and not model.strip():
            raise BadRequestError(f"a call to {self.http.at} names no model")
        reply = self.http.request(path, body, timeout_s=timeout_s)
        if reply.status // 100 == _SUCCESS:
            return reply.body
        words = _words_of(reply.body)
        error = self.error_of(model, reply.status, words)
        error.status, error.words = reply.status, words
        if isinstance(error, ServerBusyError):
            error.retry_after_s = reply.retry_after_s
        raise error

    def error_of(self, model: str | None, status: int, text: str) -> OllamaError:
        """The error that a status means, of a reply or within a stream, with the server's words."""
        message = f"{self.name_of(model)} answered {status}: {brief(text)!r}"
        if status >= FAULT and _CONTEXTS_TOO_LARGE in text:
            return ServerOverloadedError(f"{message}: it dropped all calls; fewer are sent at once")
        if (status in _MAY_BE_TOO_LONG or status == FAULT) and _TOO_LONG.search(text):
            do = f"shorten the prompt, lower --num-predict, or {self.larger_context}"
            return PromptTooLongError(f"{message}: {do}")
        if status in UNAUTHORIZED:
            return BadRequestError(f"{message}: is {self.key} set, and right?")
        if status == NOT_FOUND:
            return BadRequestError(f"{message}: is this an {self.server}?")
        kind = _BY_STATUS.get(status, ServerFaultError if status >= FAULT else BadRequestError)
        return kind(message)

    @contextmanager
    def reading(self, model: str | None) -> Iterator[None]:
        """Within `with`: a reply whose shape is not the expected one is a BadReplyError."""
        try:
            yield
        except _UNREADABLE as error:
            why = brief(str(error))
            raise BadReplyError(f"{self.name_of(model)} sent an unreadable reply: {why}") from error

    def completion(
        self, call: Call, text: str, thoughts: str, *, reason: object, usage: Usage | None
    ) -> Completion:
        """A reply, less the thoughts at its start, cut at the most characters that are kept.

        Args:
            call: what was asked.
            text: what the server sent as the reply.
            thoughts: what it sent as thoughts beside it.
            reason: why it ended, by the server's word.
            usage: what it cost.

        Raises:
            OllamaError: it has no text, or broke off, or the prompt was not read whole.
        """
        if isinstance(reason, str) and reason in _ENDS_BADLY:
            raise ServerFaultError(f"{self.name_of(call.model)} broke off its reply: {reason!r}")
        self._check_read_whole(call, usage)
        before, whole = split_thoughts(text, self._marks)
        thoughts += before
        if usage and thoughts and not usage.thought_tokens:
            share = len(thoughts) / (len(thoughts) + len(whole))
            usage = replace(usage, estimated_thought_tokens=round(share * usage.completion_tokens))
        kept = whole[: self._max_chars]
        is_cut, is_filtered = reason == "length", reason == _FILTERED
        if not is_text(kept):
            why = "replied with text that is not valid Unicode: half of a surrogate pair"
        elif kept.strip() or is_filtered:
            is_cut = is_cut or len(kept) < len(whole)
            return Completion(text=kept, truncated=is_cut, filtered=is_filtered, usage=usage)
        elif thoughts:
            spent = f", for {usage.completion_tokens} tokens" if usage else ""
            why = f"only thought{spent}: {_about_thoughts(call)}"
        elif is_cut:
            why = "used up its tokens before a word: raise --num-predict, or name another model"
        else:
            why = "replied without a text"
        kind = CutReplyError if not kept.strip() and (thoughts or is_cut) else BadReplyError
        raise kind(f"{self.name_of(call.model)} {why}", retryable=not call.repeatable)

    def _check_read_whole(self, call: Call, usage: Usage | None) -> None:
        """Check that the server read the whole prompt, every word of which is one token at least.

        An older one may cut it without saying so; this is a PromptTooLongError.
        """
        num_ctx = call.options.get("num_ctx")
        least = min(_CUT_FROM, num_ctx // 2) if isinstance(num_ctx, int) else _CUT_FROM
        if usage is None or usage.prompt_tokens < least:
            return
        words = sum(len(message["content"].split()) for message in messages_of(call))
        if usage.prompt_tokens + usage.cached_tokens < words:
            raise PromptTooLongError(
                f"{self.name_of(call.model)} read {usage.prompt_tokens} tokens of a prompt of "
                f"{words} words: it cut the rest off. Shorten the prompt, or {self.larger_context}"
            )

    def unit_rows_of(
        self, model: str, texts: Sequence[str], embeddings: object
    ) -> NDArray[np.float32]:
        """The embeddings of N texts as (N, D) rows of length 1.

        Raises:
            BadReplyError: they are not N rows of finite numbers, all of one length.
        """
        with self.reading(model):
            rows = np.array(embeddings)
            if rows.dtype.kind not in "fi":  # texts and truth values would be taken for numbers
                raise ValueError("its embeddings are not numbers")
            if rows.ndim != _ROWS_AND_COLUMNS or len(rows) != len(texts) or not rows.size:
                raise ValueError(f"{len(texts)} texts got embeddings of shape {rows.shape}")
            if not np.isfinite(rows).all():
                raise ValueError("its embeddings are not finite")
            return unit_rows(rows)


def messages_of(call: Call) -> list[dict[str, str]]:
    """A call as the messages of a chat; without a system prompt the model keeps its own.

    An example whose reply is "" is a question that was left without a reply.
    """
    turns = [] if call.system is None else [("system", call.system)]
    for question, reply in call.examples:
        turns += [("user", question), ("assistant", reply)] if reply else [("user", question)]
    turns.append(("user", call.prompt))
    return [{"role": role, "content": content} for role, content in turns]


def count_of(value: object) -> float:
    """A count or a duration as a server sends it; 0 where there is none, or it cannot be one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MOST_COUNTED else 0.0  # type: ignore[operator, arg-type]  # a number


def text_of(value: object) -> str:
    """A text of a reply; "" where it is null or left out; else raises TypeError."""
    if not isinstance(value, str | None):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value or ""


def words_of_error(error: object) -> str:
    """What a server says of its failure: the text of whatever form its error has."""
    field = ""
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and name in error:
            field = str(error.get("param") or field)
            error = error[name]
    words = error if isinstance(error, str) else json.dumps(error)
    return words if field in words else f"{words} ({field})"


def _words_of(body: bytes) -> str:
    """What the body of a reply says of a failure."""
    try:
        return words_of_error(json.loads(body))
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def _about_thoughts(call: Call) -> str:
    """What to do where a reply was nothing but thoughts."""
    flag = _THINK_FLAGS[call.role]
    if call.think is False:
        return f"it thinks all the same; pass {flag} low or on, and a larger --think-budget"
    return f"pass {flag} off, or {flag} on and a larger --think-budget"
