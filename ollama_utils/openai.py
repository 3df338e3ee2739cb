"""The client of an OpenAI-compatible server: llama.cpp, vLLM, LM Studio, SGLang, Ollama's own /v1.

Fields are those of OpenAI's chat completions and embeddings; beside them llama.cpp's `timings` and
`/props` are read where they are sent. The `openai` package is not used: with 16 calls in flight it
takes 2.0 ms of CPU time a call and 6.7 ms a streamed one, where plain JSON takes .18 and .74, and
it does not check what a reply holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any

import numpy as np

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    ModelMissingError,
    OllamaError,
)
from ollama_utils.hosts import OPENAI, parse_openai_host
from ollama_utils.model_client import (
    NOT_FOUND,
    HttpModelClient,
    count_of,
    messages_of,
    words_of_error,
)
from ollama_utils.types import (
    CALL_TIMEOUT_S,
    MAX_REPLY_CHARS,
    Call,
    Completion,
    Embeddings,
    Usage,
)
from records.json_lines import json_object

_FAILED = 500
"""The status of a failure within a stream that does not name one."""
_ERRORS = range(400, 600)
_MILLISECONDS = 1e3
_MOST_SLOTS = 2**16
_DONE = "[DONE]"

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "num_predict": ("max_tokens",),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "seed": ("seed",),
    "stop": ("stop",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    # The rest are no fields of OpenAI's own.
    "top_k": ("top_k",),
    "min_p": ("min_p",),
    "repeat_penalty": ("repeat_penalty", "repetition_penalty"),  # llama.cpp's, vLLM's
}
"""Ollama's options by the fields that mean the same here."""
_TEXTS = ("content", "reasoning_content", "reasoning")
"""Parts of a message. What a model thought is `reasoning_content` at llama.cpp, SGLang and LM
Studio, `reasoning` at vLLM and Ollama."""


class OpenAIClient(HttpModelClient):
    """The connections to one server, shared by all threads.

    OPENAI_API_KEY of the environment goes with each request where it is set; servers of one's own
    need none.

    Args:
        host: `openai:` and the server's base URL: `openai:http://127.0.0.1:8000/v1`.
        timeout_s: see `ollama_utils.wires.open_client`.
        max_reply_chars: likewise.

    Raises:
        ValueError: the host, or the environment's proxy, certificates or key cannot be used.
    """

    def __init__(
        self,
        host: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        max_reply_chars: int = MAX_REPLY_CHARS,
    ) -> None:
        url = parse_openai_host(host)
        self._prefix = "/v1" if url.endswith("/v1") else ""
        super().__init__(
            OPENAI + url,
            url.removesuffix(self._prefix),
            server="OpenAI-compatible server",
            start="start it, or pass another --ollama-host",
            key="OPENAI_API_KEY",
            timeout_s=timeout_s,
            max_reply_chars=max_reply_chars,
        )

    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """See `ModelClient`; an option that has no field here is a BadRequestError."""
        body = self._body(call)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        began_s = time.monotonic()
        content = self.ask(call.model, "POST", f"{self._prefix}/chat/completions", body, timeout_s)
        wall_s = time.monotonic() - began_s
        with self.reading(call.model):
            reply = self._joined(call.model, content) if stream else json_object(content)
            choice = reply["choices"][0]
            said, thought, reasoned = (_text(choice["message"].get(name)) for name in _TEXTS)
            usage = _usage(reply, wall_s)
            is_cut = choice.get("finish_reason") == "length"
        return self.completion(call, said, thought or reasoned, is_cut=is_cut, usage=usage)

    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """See `ModelClient`."""
        if not texts:
            return Embeddings(rows=np.zeros((0, 0), dtype=np.float32))
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        began_s = time.monotonic()
        content = self.ask(model, "POST", f"{self._prefix}/embeddings", body, timeout_s)
        wall_s = time.monotonic() - began_s
        with self.reading(model):
            reply = json_object(content)
            rows = {row["index"]: row["embedding"] for row in reply["data"]}
            ordered = [rows[place] for place in range(len(reply["data"]))]
            usage = _usage(reply, wall_s)
        return Embeddings(rows=self.unit_rows_of(model, texts, ordered), usage=usage)

    def models(self) -> dict[str, str]:
        """The models by name; llama.cpp lists one file by its path, and it goes by the file's."""
        content = self.ask(None, "GET", f"{self._prefix}/models")
        with self.reading(None):
            listed = json_object(content)["data"]
            return {_name_of(each): _digest_of(each) for each in listed if each["id"]}

    def slots(self) -> int | None:
        """How many calls the server serves at once, where it says so (llama.cpp's /props)."""
        try:
            content = self.ask(None, "GET", "/props")
            with self.reading(None):
                slots = json_object(content)["total_slots"]
        except (BadRequestError, BadReplyError):
            return None
        return slots if isinstance(slots, int) and 0 < slots <= _MOST_SLOTS else None

    def error_of(self, model: str | None, status: int, text: str) -> OllamaError:
        """See `HttpModelClient`."""
        if status == NOT_FOUND and model is not None and model in text:
            return ModelMissingError(
                f"model {model!r} is not at {self.http.at}: name one that its /models lists"
            )
        return super().error_of(model, status, text)

    def _body(self, call: Call) -> dict[str, Any]:
        """The request of a call.

        Raises:
            BadRequestError: an option has no field here.
        """
        body: dict[str, Any] = {"model": call.model, "messages": messages_of(call), "stream": False}
        for name, value in call.options.items():
            is_no_limit = name == "num_predict" and isinstance(value, int) and value <= 0
            if value is None or is_no_limit or (name == "seed" and value == -1):
                continue  # what they mean to Ollama, leaving them out means here
            if name not in _FIELDS:
                do = f"expected one of {', '.join(_FIELDS)}"
                if name == "num_ctx":
                    do = "the context's size is set where the server is started; leave num_ctx out"
                at = self.whom(call.model)
                raise BadRequestError(f"option {name!r} cannot be sent to {at}: {do}")
            body |= dict.fromkeys(_FIELDS[name], value)
        if call.format is not None:
            schema = {"name": "reply", "schema": dict(call.format)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if call.think is not None:
            # For the chat templates of llama.cpp, vLLM and SGLang; one without the switch is left
            # as it is. OpenAI's own API has no field for it.
            body["chat_template_kwargs"] = {"enable_thinking": call.think}
        return body

    def _joined(self, model: str, content: bytes) -> dict[str, Any]:
        """The events of a streamed reply as the object of a whole one; a whole one as it is.

        Raises:
            OllamaError: a part says that the server failed, or there is no end.
            ValueError, TypeError, AttributeError: it is no such stream.
        """
        texts: dict[str, list[str]] = {name: [] for name in _TEXTS}
        last: dict[str, Any] = {"usage": None, "timings": None}
        reason, is_stream, is_whole = None, False, False
        for event in _events(content.decode()):
            is_stream = True
            if event == _DONE:
                is_whole = True
                break
            part = json_object(event)
            if error := part.get("error"):
                raise self.error_of(model, _status_of(error), words_of_error(error))
            for choice in part.get("choices") or ():
                if choice.get("index", 0) == 0:
                    reason = choice.get("finish_reason") or reason
                    delta = choice.get("delta") or {}
                    for name, pieces in texts.items():
                        pieces.append(delta.get(name) or "")
            last = {name: part.get(name) or before for name, before in last.items()}
        if not is_stream:
            return json_object(content)
        if not is_whole and reason is None:
            raise BrokenReplyError(f"{self.whom(model)} broke off its reply")
        message = {name: "".join(pieces) for name, pieces in texts.items()}
        return {"choices": [{"message": message, "finish_reason": reason}], **last}


def _events(text: str) -> Iterator[str]:
    """What the events of a stream hold, as JSON; `error` is older llama.cpp's."""
    for line in text.split("\n"):
        field, colon, data = line.partition(":")
        if colon and field in {"data", "error"}:
            yield data.strip()


def _status_of(error: object) -> int:
    """The status that an error within a stream names; else that of a failed server."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and code in _ERRORS else _FAILED


def _usage(reply: Mapping[str, Any], wall_s: float) -> Usage:
    """What a call cost; the total is by our own clock, so that nothing counts as queueing."""
    tokens, timings = reply.get("usage") or {}, reply.get("timings") or {}
    details = tokens.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=int(count_of(tokens.get("prompt_tokens"))),
        completion_tokens=int(count_of(tokens.get("completion_tokens"))),
        cached_tokens=int(count_of(details.get("cached_tokens"))),
        prefill_s=count_of(timings.get("prompt_ms")) / _MILLISECONDS,  # llama.cpp's
        decode_s=count_of(timings.get("predicted_ms")) / _MILLISECONDS,
        total_s=wall_s,
    )


def _text(value: object) -> str:
    """A text of a reply; "" where it is null or left out."""
    if not isinstance(value, str | None):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value or ""


def _name_of(model: Mapping[str, Any]) -> str:
    """A model's name; of one that llama.cpp lists by its path, the file's."""
    name = _text(model["id"])
    is_file = model.get("owned_by") == "llamacpp" and name.endswith(".gguf")
    return PurePath(name.replace("\\", "/")).name if is_file else name


def _digest_of(model: Mapping[str, Any]) -> str:
    """Stands for the weights, as far as a server describes them: llama.cpp's tags and metadata."""
    if not model.get("meta"):
        return ""
    meta = {name: value for name, value in model["meta"].items() if name != "n_ctx"}  # a setting
    return sha256(json.dumps([model.get("tags"), meta], sort_keys=True).encode()).hexdigest()
