"""One client for one OpenAI-compatible server: llama.cpp, vLLM, LM Studio, SGLang, Ollama's own /v1.

Plain JSON over the HTTP client of `ollama_utils.http`. The `openai` package (3.54) over the same transport
took 1.2 CPU seconds for 1,000 calls with 16 in flight where plain JSON took .27, in turns on 2 cores.

Fields are those of OpenAI's chat completions and embeddings; beyond them, llama.cpp's `timings` and `/props`
are read where they come (its tools/server/README.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

import httpx
import numpy as np
from pydantic import BaseModel, BeforeValidator, Field

from ollama_utils.errors import BadReplyError, BadRequestError, ModelMissingError, OllamaError
from ollama_utils.exchange import CONNECT_S, NOT_FOUND, Exchange, ascii_key, brief, counted, messages_of
from ollama_utils.hosts import OPENAI, is_loopback, parse_openai_host, server_url
from ollama_utils.http import CUT, HttpClient, transport_to
from ollama_utils.streams import StreamedFailureError, join_events
from ollama_utils.types import CALL_TIMEOUT_S, MAX_REPLY_CHARS, Call, Completion, Embeddings, Inventory, Usage

_KEY = "OPENAI_API_KEY"
_UNAUTHORIZED = frozenset({401, 403})
_MILLISECONDS = 1e3
_MOST_SLOTS = 2**16

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "num_predict": ("max_tokens",),
    **{
        name: (name,)
        for name in (
            "temperature",
            "top_p",
            "seed",
            "stop",
            "presence_penalty",
            "frequency_penalty",
            "top_k",
            "min_p",
        )
    },
    # llama.cpp and LM Studio | vLLM and SGLang; each leaves the other's name aside.
    "repeat_penalty": ("repeat_penalty", "repetition_penalty"),
}
"""Ollama's options by the fields that mean the same here. The last three are no fields of OpenAI's own."""
_UNSET = {"num_predict": lambda value: value <= 0, "seed": lambda value: value == -1}
"""Values that mean to Ollama what leaving the option out means here."""


class _Said(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    """llama.cpp's, SGLang's and LM Studio's name for what a model thought."""
    reasoning: str | None = None
    """vLLM's and Ollama's."""


class _Choice(BaseModel):
    message: _Said
    finish_reason: str | None = None


_Count = Annotated[float, BeforeValidator(counted)]


class _PromptDetails(BaseModel):
    cached_tokens: _Count = 0.0


class _Tokens(BaseModel):
    prompt_tokens: _Count = 0.0
    completion_tokens: _Count = 0.0
    prompt_tokens_details: _PromptDetails | None = None


class _Timings(BaseModel):
    """llama.cpp's, in milliseconds."""

    prompt_ms: _Count = 0.0
    predicted_ms: _Count = 0.0


class _ChatReply(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None
    timings: _Timings | None = None


class _Row(BaseModel):
    index: int
    embedding: list[float]


class _EmbedReply(BaseModel):
    data: list[_Row]
    usage: _Tokens | None = None


class _Model(BaseModel):
    id: str
    owned_by: str | None = None
    tags: list[str] = []
    meta: dict[str, Any] | None = None
    """What llama.cpp tells of the weights."""


class _ModelList(BaseModel):
    data: list[_Model]


class _Props(BaseModel):
    total_slots: int


_Body = TypeVar("_Body", bound=BaseModel)


class OpenAIClient:
    """The connections to one OpenAI-compatible server, shared by all threads.

    OPENAI_API_KEY of the environment goes with each request where it is set; servers of one's own need none.

    Args:
        host: `openai:` and the server's base URL: `openai:http://127.0.0.1:8000/v1`.
        timeout_s: the seconds after which a call counts as timed out: without a first word from the
            server, or without the whole reply.
        max_reply_chars: the characters of a reply that are kept; a longer one is cut, and flagged as such.

    Raises:
        ValueError: the host cannot be read, or the environment's proxy, certificates or key for it; or no
            character would be kept.
    """

    def __init__(
        self,
        host: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        max_reply_chars: int = MAX_REPLY_CHARS,
    ) -> None:
        self._url = parse_openai_host(host)
        self.host = OPENAI + self._url
        self._exchange = Exchange(
            self.host,
            timeout_s=timeout_s,
            absent="OpenAI-compatible server",
            start="start it, or pass another --ollama-host",
            max_reply_chars=max_reply_chars,
        )
        key = ascii_key(_KEY)
        direct = is_loopback(self._url)
        self._client = HttpClient(
            transport=transport_to(self._url, direct=direct),
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S)),
            trust_env=not direct,
            event_hooks=self._exchange.hooks,
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",  # the bound on a reply's size is one on what is sent
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
        )

    def generate(self, call: Call, *, stream: bool = False) -> Completion:
        """The model's reply to one call; its reasoning is left out.

        Args:
            call: what is asked.
            stream: have it sent part by part. What is returned is the same.

        Raises:
            OllamaError: there is no reply; the message names host, model and what to do. BadRequestError
                where an option of the call has no field here.
        """
        with self._exchange.errors_translated(call.model):
            began_s = time.monotonic()
            url, body = f"{self._url}/chat/completions", self._body(call)
            if stream:
                reply = self._ask_for_stream(call.model, url, body)
            else:
                reply = self._ask(call.model, "POST", url, _ChatReply, body)
            wall_s = time.monotonic() - began_s
            choice = reply.choices[0]
            thought = choice.message.reasoning_content or choice.message.reasoning
            return self._exchange.completion(
                call,
                choice.message.content or "",
                thought,
                truncated=choice.finish_reason == "length",
                usage=_usage(reply.usage, reply.timings, wall_s),
            )

    def embed(self, model: str, texts: Sequence[str]) -> Embeddings:
        """The embeddings of texts in one request.

        Args:
            model: an embedding model's name.
            texts: N texts; without any, no request is sent.

        Raises:
            OllamaError: there are no embeddings.
        """
        if not texts:
            return Embeddings(rows=np.zeros((0, 0), dtype=np.float32))
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        with self._exchange.errors_translated(model):
            began_s = time.monotonic()
            reply = self._ask(model, "POST", f"{self._url}/embeddings", _EmbedReply, body)
            wall_s = time.monotonic() - began_s
            found = {row.index: row.embedding for row in reply.data}
            if sorted(found) != list(range(len(reply.data))):
                raise ValueError("its rows are not numbered from 0 on")
            rows = self._exchange.checked_rows(model, texts, [found[place] for place in range(len(found))])
            return Embeddings(rows=rows, usage=_usage(reply.usage, None, wall_s))

    def models(self) -> dict[str, str]:
        """The models that the server has, each with what stands for its weights, "" where it tells nothing.

        llama.cpp lists one file by its path, and answers to any name: here it goes by the file's name.

        Raises:
            OllamaError: the server gives no list.
        """
        with self._exchange.errors_translated(None):
            listed = self._ask(None, "GET", f"{self._url}/models", _ModelList)
            return self._exchange.checked_models((_name_of(item), _digest_of(item)) for item in listed.data)

    def completes(self, model: str) -> bool:  # noqa: ARG002 - the API tells nothing of a model
        """True: `/v1/models` tells a model's name alone."""
        return True

    def slots(self) -> int | None:
        """How many calls the server serves at once, where it tells (llama.cpp's /props); else None.

        Raises:
            ServerUnreachableError: nobody answers.
        """
        url = f"{server_url(self.host)}/props"
        try:
            with self._exchange.errors_translated(None):
                told = self._ask(None, "GET", url, _Props).total_slots
        except (BadRequestError, BadReplyError):
            return None
        return told if 0 < told <= _MOST_SLOTS else None

    def inventory(self) -> Inventory:
        """The models that the server has, and llama.cpp's slots; the API has no words for the rest.

        Raises:
            OllamaError: the server gives no list.
        """
        pulled = dict.fromkeys(self.models())
        return Inventory(version=None, pulled=pulled, loaded=None, slots=self.slots())

    def close(self) -> None:
        """Drop the idle connections; calls after this raise CallCancelledError."""
        self._exchange.closed = True
        self._client.close()

    def _ask_for_stream(self, model: str, url: str, body: dict[str, Any]) -> _ChatReply:
        """A chat completion that is sent part by part; within `errors_translated`.

        Raises:
            OllamaError: the status is not 2xx, or a part tells of a failure.
            ValueError, TypeError, AttributeError: the reply cannot be read.
        """
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        response = self._answered(model, "POST", url, body | streamed)
        try:
            joined = join_events(response.content, cut=bool(response.extensions.get(CUT)))
        except StreamedFailureError as error:
            raise self._rejection(model, error.status, _words_of(error.said)) from None
        return _ChatReply.model_validate(joined)

    def _ask(
        self, model: str | None, method: str, url: str, shape: type[_Body], body: object = None
    ) -> _Body:
        """The reply to one request, read into a shape; within `errors_translated`.

        Raises:
            OllamaError: the status is not 2xx.
            ValueError: the reply is not of that shape.
        """
        return shape.model_validate_json(self._answered(model, method, url, body).content)

    def _answered(self, model: str | None, method: str, url: str, body: object = None) -> httpx.Response:
        """The response to one request; within `errors_translated`.

        Raises:
            OllamaError: the status is not 2xx.
        """
        response = self._client.request(method, url, **({} if body is None else {"json": body}))
        if not response.is_success:
            raise self._rejection(model, response.status_code, _words_of(response.text))
        return response

    def _body(self, call: Call) -> dict[str, Any]:
        body: dict[str, Any] = {"model": call.model, "messages": messages_of(call), "stream": False}
        for name, value in call.options.items():
            if value is None or (name in _UNSET and _UNSET[name](value)):
                continue
            if name not in _FIELDS:
                raise BadRequestError(
                    f"option {name!r} cannot be sent to {self._exchange.whom(call.model)}: "
                    + (
                        "the context's size is set where the server is started; leave num_ctx out"
                        if name == "num_ctx"
                        else f"expected {', '.join(_FIELDS)}"
                    )
                )
            body |= dict.fromkeys(_FIELDS[name], value)
        if call.format is not None:
            schema = {"name": "reply", "schema": dict(call.format)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if call.think is not None:
            # For the chat templates of llama.cpp, vLLM and SGLang; one without the switch is left as it is.
            # OpenAI's own API has no field for it.
            body["chat_template_kwargs"] = {"enable_thinking": call.think}
        return body

    def _rejection(self, model: str | None, status: int, text: str) -> OllamaError:
        """The error for an HTTP status other than 2xx, or a failure told within a stream."""
        whom = self._exchange.whom(model)
        if status == NOT_FOUND and model is not None and model in text:
            return ModelMissingError(
                f"model {model!r} is not at {self.host!r}: name one that {self._url}/models lists"
            )
        if status in _UNAUTHORIZED:
            return BadRequestError(f"{whom} answered {status}: {brief(text)!r}: is {_KEY} set, and right?")
        return self._exchange.rejection(model, status, text)


def _words_of(body: str) -> str:
    """What a server says of its failure, in OpenAI's form or in any other."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return body
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and name in said:
            said = said[name]
    return said if isinstance(said, str) else json.dumps(said)


def _usage(tokens: _Tokens | None, timings: _Timings | None, wall_s: float) -> Usage:
    """What a call cost. The total is by our own clock, so that without timings nothing counts as queueing."""
    tokens, timings = tokens or _Tokens(), timings or _Timings()
    details = tokens.prompt_tokens_details or _PromptDetails()
    return Usage(
        prompt_tokens=int(tokens.prompt_tokens),
        completion_tokens=int(tokens.completion_tokens),
        cached_tokens=int(details.cached_tokens),
        prefill_s=timings.prompt_ms / _MILLISECONDS,
        decode_s=timings.predicted_ms / _MILLISECONDS,
        total_s=wall_s,
    )


def _name_of(item: _Model) -> str:
    of_a_file = item.owned_by == "llamacpp" and item.id.endswith(".gguf")
    return PurePath(item.id.replace("\\", "/")).name if of_a_file else item.id


def _digest_of(item: _Model) -> str:
    """Stands for the weights as far as a server tells of them: llama.cpp's tags and what is in the file."""
    if item.meta is None:
        return ""
    told = {name: value for name, value in item.meta.items() if name != "n_ctx"}  # which the start decides
    return sha256(json.dumps([item.tags, told], sort_keys=True).encode()).hexdigest()
