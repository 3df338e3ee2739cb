"""The client of an OpenAI-compatible server: llama.cpp, vLLM, LM Studio, SGLang, Ollama's own /v1.

Fields are those of OpenAI's chat completions and embeddings; beside them llama.cpp's `timings` and
`/props` are read where they are sent. The `openai` package is not used: with 16 calls in flight it
takes 2.0 ms of CPU time a call and 6.7 ms a streamed one, where plain JSON takes .18 and .74, and
it does not check what a reply holds.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from typing_extensions import Unpack

from ollama_utils.dialect import Dialect
from ollama_utils.errors import (
    BadRequestError,
    BrokenReplyError,
    ModelMissingError,
    OllamaError,
)
from ollama_utils.hosts import OPENAI, parse_openai_host
from ollama_utils.model_client import (
    FAULT,
    NOT_FOUND,
    UNAUTHORIZED,
    ClientSettings,
    ModelClient,
    count_of,
    messages_of,
    text_of,
    words_of_error,
)
from ollama_utils.types import (
    Call,
    Completion,
    Embeddings,
    Usage,
)
from records.json_lines import json_object

_log_warning = logging.getLogger(__name__).warning
_ERRORS = range(400, 600)
_MILLISECONDS = 1e3
_MOST_SLOTS = 2**16
_DONE = "[DONE]"

_SAME = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "num_predict": ("max_tokens",),
    **{name: (name,) for name in _SAME},
    # The rest are no fields of OpenAI's own.
    "top_k": ("top_k",),
    "min_p": ("min_p",),
    "repeat_penalty": ("repeat_penalty", "repetition_penalty"),  # llama.cpp's, vLLM's
}
"""For each of Ollama's options, the fields that mean the same here."""
_THOUGHTS = frozenset({"thinking", "reasoning"})
"""The types of parts of a message that are thoughts, and the fields that hold them there."""
_CONTEXTS = ("max_model_len", "loaded_context_length", "context_length", "context_window")
"""How servers name a model's context in their list: vLLM, LM Studio, OpenRouter, Groq."""


class OpenAIClient(ModelClient):
    """The connections to one server, shared by all threads.

    If OPENAI_API_KEY is set in the environment, it goes with each request.

    Args:
        host: `openai:` and the server's base URL: `openai:http://127.0.0.1:8000/v1`.
        settings: see `ClientSettings`.

    Raises:
        ValueError: the host, a rule of `request_fields`, or the proxy, certificates or key of the
            environment cannot be used.
    """

    larger_context = "start the server with a larger context"

    def __init__(self, host: str, **settings: Unpack[ClientSettings]) -> None:
        url = parse_openai_host(host)
        self._prefix = "/v1" if url.endswith("/v1") else ""
        super().__init__(
            OPENAI + url,
            url.removesuffix(self._prefix),
            server="OpenAI-compatible server",
            start="start it, or pass another --ollama-host",
            key="OPENAI_API_KEY",
            settings=settings,
        )
        fields, report = settings.get("request_fields", ()), settings.get("report", _log_warning)
        self._dialect = Dialect(self.host, fields, report)

    @property
    def request_fields(self) -> tuple[str, ...]:  # type: ignore[override]  # it grows
        """See `ModelClient`: the rules that were given and those that were learned."""
        return self._dialect.rules

    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """See `ModelClient`; an option that has no field here is a BadRequestError."""
        body = self._body(call)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        began_s = time.monotonic()
        content = self._post("chat/completions", body, timeout_s)
        wall_s = time.monotonic() - began_s
        with self.reading(call.model):
            reply = self._joined(call.model, content) if stream else json_object(content)
            self._raise_error_of(call.model, reply)
            choice = reply["choices"][0]
            self._raise_error_of(call.model, choice)
            text, thoughts = _words_of(choice["message"])
            usage = _usage(reply, wall_s)
            reason = choice.get("finish_reason")
        return self.completion(call, text, thoughts, reason=reason, usage=usage)

    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """See `ModelClient`."""
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        began_s = time.monotonic()
        content = self._post("embeddings", body, timeout_s)
        wall_s = time.monotonic() - began_s
        with self.reading(model):
            reply = json_object(content)
            self._raise_error_of(model, reply)
            data = [(row.get("index", place), row) for place, row in enumerate(reply["data"])]
            rows = {place: row["embedding"] for place, row in data}
            ordered = [rows[place] for place in range(len(data))]
            usage = _usage(reply, wall_s)
        return Embeddings(rows=self.unit_rows_of(model, texts, ordered), usage=usage)

    def models(self) -> dict[str, str]:
        """The models by name; none where the server has no list: then any name is accepted."""
        return {_name_of(each): _digest_of(each) for each in self._listed()}

    def contexts(self) -> dict[str, int]:
        """See `ModelClient`: of llama.cpp's /props, or of the list of models."""
        props = self._found("/props").get("default_generation_settings")
        per_slot = count_of(props.get("n_ctx")) if isinstance(props, dict) else 0
        contexts = {}
        for model in self._listed():
            stated = per_slot or max(count_of(model.get(name)) for name in _CONTEXTS)
            if stated:
                contexts[_name_of(model)] = int(stated)
        return contexts

    def slots(self) -> int | None:
        """How many calls the server serves at once, where it says so (llama.cpp's /props)."""
        slots = self._found("/props").get("total_slots")
        return slots if isinstance(slots, int) and 0 < slots <= _MOST_SLOTS else None

    def error_of(self, model: str | None, status: int, text: str) -> OllamaError:
        """See `ModelClient`."""
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
                at = self.name_of(call.model)
                raise BadRequestError(f"option {name!r} cannot be sent to {at}: {do}")
            body |= dict.fromkeys(_FIELDS[name], value)
        if call.format is not None:
            schema = {"name": "reply", "schema": dict(call.format)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if call.think is not None:
            # For the chat templates of llama.cpp, vLLM and SGLang; one without the switch is left
            # as it is. Ollama's /v1 and OpenAI's own API go by the effort.
            effort = {} if call.think is True else {"reasoning_effort": call.think or "none"}
            body |= effort
            body["chat_template_kwargs"] = {"enable_thinking": bool(call.think), **effort}
        return body

    def _post(self, route: str, body: dict[str, Any], timeout_s: float | None) -> bytes:
        """The reply to a request, which is sent in the server's dialect; see `Dialect.send`."""
        path = f"{self._prefix}/{route}"
        return self._dialect.send(
            body, lambda sent: self.ask(body["model"], "POST", path, sent, timeout_s)
        )

    def _found(self, path: str) -> Mapping[str, Any]:
        """The JSON object behind a path; an empty one where there is none."""
        try:
            content = self.ask(None, "GET", path)
            with self.reading(None):
                return json_object(content)
        except OllamaError:  # calls will show whether the server is there
            return {}

    def _listed(self) -> list[Mapping[str, Any]]:
        """The models as the server lists them: objects or names, bare or within an object."""
        try:
            content = self.ask(None, "GET", f"{self._prefix}/models")
            found = json.loads(content)
        except BadRequestError as error:
            if error.status in UNAUTHORIZED:
                raise
            return []
        except (ValueError, RecursionError):  # a page, or nothing
            return []
        if isinstance(found, dict):
            found = found.get("data") or found.get("models")
        if not isinstance(found, list):
            return []
        listed = [{"id": each} if isinstance(each, str) else each for each in found]
        return [each for each in listed if isinstance(each, dict) and _id_of(each)]

    def _raise_error_of(self, model: str, reply: Mapping[str, Any]) -> None:
        """Raise what a reply of status 200 says of a failure."""
        if error := reply.get("error"):
            raise self.error_of(model, _status_of(error), words_of_error(error))

    def _joined(self, model: str, content: bytes) -> dict[str, Any]:
        """The events of a streamed reply as the object of a whole one; a whole one as it is.

        Raises:
            OllamaError: a part says that the server failed, or there is no end.
            ValueError, TypeError, AttributeError: it is no such stream.
        """
        texts, thoughts = [], []
        last: dict[str, Any] = {"usage": None, "timings": None}
        reason, is_stream, is_whole = None, False, False
        for event in _events(content.decode()):
            is_stream = True
            if event == _DONE:
                is_whole = True
                break
            part = json_object(event)
            self._raise_error_of(model, part)
            for choice in part.get("choices") or ():
                if choice.get("index", 0) == 0:
                    reason = choice.get("finish_reason") or reason
                    text, thought = _words_of(choice.get("delta") or {})
                    texts.append(text)
                    thoughts.append(thought)
            last = {name: part.get(name) or before for name, before in last.items()}
        if not is_stream:
            return json_object(content)
        if not is_whole and reason is None:
            raise BrokenReplyError(f"{self.name_of(model)} broke off its reply")
        message = {"content": "".join(texts), "reasoning": "".join(thoughts)}
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
    return code if isinstance(code, int) and code in _ERRORS else FAULT


def _usage(reply: Mapping[str, Any], wall_s: float) -> Usage:
    """What a call cost; the total is by our own clock, so that nothing counts as queueing."""
    tokens, timings = reply.get("usage") or {}, reply.get("timings") or {}
    details = tokens.get("prompt_tokens_details") or {}
    more = tokens.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=int(count_of(tokens.get("prompt_tokens"))),
        completion_tokens=int(count_of(tokens.get("completion_tokens"))),
        cached_tokens=int(count_of(details.get("cached_tokens"))),
        thought_tokens=int(count_of(more.get("reasoning_tokens"))),
        prefill_s=count_of(timings.get("prompt_ms")) / _MILLISECONDS,  # llama.cpp's
        decode_s=count_of(timings.get("predicted_ms")) / _MILLISECONDS,
        total_s=wall_s,
    )


def _words_of(message: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a message or of a part of a stream, or why the model declined, and thoughts.

    Thoughts are `reasoning_content` at llama.cpp, SGLang, LM Studio, `reasoning` at vLLM, Ollama.
    """
    content = message.get("content")
    text = thoughts = ""
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict):
            text += text_of(part)
        elif (kind := part.get("type")) in _THOUGHTS:
            thoughts += _words_of({"content": part.get(kind)})[0]
        else:
            text += text_of(part.get("text")) + text_of(part.get("refusal"))
    for name in ("reasoning_content", "reasoning"):
        if isinstance(thought := message.get(name), str) and not thoughts:
            thoughts = thought
    return text or text_of(message.get("refusal")), thoughts


def _id_of(model: Mapping[str, Any]) -> str:
    return text_of(model.get("id") or model.get("name") or model.get("model"))


def _name_of(model: Mapping[str, Any]) -> str:
    """A model's name; of one that llama.cpp lists by its path, the file's."""
    name = _id_of(model).removeprefix("models/")  # Google's
    is_file = model.get("owned_by") == "llamacpp" and name.endswith(".gguf")
    return PurePath(name.replace("\\", "/")).name if is_file else name


def _digest_of(model: Mapping[str, Any]) -> str:
    """Stands for the weights, as far as a server describes them: llama.cpp's tags and metadata."""
    if not model.get("meta"):
        return ""
    meta = {name: value for name, value in model["meta"].items() if name != "n_ctx"}  # a setting
    return sha256(json.dumps([model.get("tags"), meta], sort_keys=True).encode()).hexdigest()
