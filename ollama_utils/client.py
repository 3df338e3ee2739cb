"""One client for one Ollama server: a call goes out, a reply or one of our errors comes back.

Built on the official `ollama` package, over the HTTP client of `ollama_utils.http`. It is the only place
where the package's exceptions are seen; all others are translated in `ollama_utils.exchange`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np

from ollama_utils.errors import BadReplyError, BadRequestError, ModelMissingError, OllamaError
from ollama_utils.exchange import CONNECT_S, NOT_FOUND, Exchange, ascii_key, brief, counted, messages_of
from ollama_utils.hosts import is_loopback, parse_host
from ollama_utils.http import OfficialClient, StreamingClient, transport_to
from ollama_utils.official import ollama
from ollama_utils.types import CALL_TIMEOUT_S, MAX_REPLY_CHARS, Call, Completion, Embeddings, Inventory, Usage

_NANOSECONDS = 1e9


class OllamaClient:
    """The connections to one server, shared by all threads.

    Args:
        host: where the server listens, as OLLAMA_HOST is written: `http://127.0.0.1:11434`,
            `localhost`, `:11434`, `::1`.
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
        self.host = parse_host(host)
        ascii_key("OLLAMA_API_KEY")  # which the package sends
        self._exchange = Exchange(
            self.host,
            timeout_s=timeout_s,
            absent="Ollama server",
            start="start it with 'ollama serve' or pass --ollama-host",
            max_reply_chars=max_reply_chars,
        )
        direct = is_loopback(self.host)
        self._client = OfficialClient(
            self.host,
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S)),
            transport=transport_to(self.host, direct=direct),
            trust_env=not direct,
            event_hooks=self._exchange.hooks,
            headers={"Accept-Encoding": "identity"},  # the bound on a reply's size is one on what is sent
        )
        self._streaming = StreamingClient(self._client)

    def generate(self, call: Call, *, stream: bool = False) -> Completion:
        """The model's reply to one call; its `thinking` is left out.

        Args:
            call: what is asked.
            stream: have it sent part by part. What is returned is the same.

        Raises:
            OllamaError: there is no reply; the message names host, model and what to do.
        """
        given: dict[str, Any] = {
            "format": None if call.format is None else dict(call.format),
            "options": dict(call.options) or None,
            "think": call.think,
            "stream": stream,
        }
        client = self._streaming if stream else self._client
        with self._errors_translated(call.model):
            if call.examples:
                given["messages"] = messages_of(call)
                chat = client.chat(model=call.model, **given)
                return self._completion(call, chat, chat.message.content, chat.message.thinking)
            given["system"] = call.system
            reply = client.generate(model=call.model, prompt=call.prompt, **given)
            return self._completion(call, reply, reply.response, reply.thinking)

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
        with self._errors_translated(model):
            reply = self._client.embed(model=model, input=list(texts))
        rows = self._exchange.checked_rows(model, texts, reply.embeddings)
        return Embeddings(rows=rows, usage=_usage(reply))

    def models(self) -> dict[str, str]:
        """The models that the server has, as it lists them (`name:tag`), each with its digest.

        Raises:
            OllamaError: the server gives no list.
        """
        with self._errors_translated(None):
            listed = self._client.list()
        return self._exchange.checked_models((item.model, item.digest) for item in listed.models)

    def completes(self, model: str) -> bool:
        """Whether a model writes replies: one that only embeds does not; True where the server does not tell.

        Raises:
            ServerUnreachableError: nobody answers.
        """
        try:
            with self._errors_translated(model):
                capabilities = self._client.show(model).capabilities
        except (BadReplyError, BadRequestError, ModelMissingError):  # as of a server that knows no /api/show
            return True
        return not capabilities or "completion" in capabilities

    def slots(self) -> int | None:
        """None: no endpoint of Ollama tells how many calls it serves at once."""
        return None

    def inventory(self) -> Inventory:
        """The server's version, the sizes of its models, and those in memory.

        Raises:
            OllamaError: the server does not tell.
        """
        with self._errors_translated(None):
            told = self._client._request_raw("GET", "/api/version").json()  # type: ignore[no-untyped-call]  # noqa: SLF001 - the package has no method for it
            pulled, loaded = self._client.list().models, self._client.ps().models
            return Inventory(
                version=str(told["version"]),
                pulled={item.model: _bytes(item.size) for item in pulled if item.model},
                loaded={item.model: _bytes(item.size) for item in loaded if item.model},
            )

    def close(self) -> None:
        """Drop the idle connections; calls after this raise CallCancelledError."""
        self._exchange.closed = True
        self._client.close()  # type: ignore[no-untyped-call]  # the package leaves it untyped

    def _completion(
        self,
        call: Call,
        reply: ollama.GenerateResponse | ollama.ChatResponse,
        said: str | None,
        thinking: str | None,
    ) -> Completion:
        if not reply.done:
            raise BadReplyError(f"{self._exchange.whom(call.model)} broke off its reply")
        truncated = reply.done_reason == "length"
        return self._exchange.completion(call, said or "", thinking, truncated=truncated, usage=_usage(reply))

    @contextmanager
    def _errors_translated(self, model: str | None) -> Iterator[None]:
        """Within `with`: every failure is raised as an OllamaError."""
        with self._exchange.errors_translated(model):
            try:
                yield
            except ollama.ResponseError as error:
                raise self._rejection(model, error) from error

    def _rejection(self, model: str | None, error: ollama.ResponseError) -> OllamaError:
        """The error for an HTTP status other than 2xx."""
        status, text = error.status_code, str(error.error)  # which is what JSON held, not always a text
        if status == NOT_FOUND and model is not None and "not found" in text and model in text:
            return ModelMissingError(
                f"model {model!r} is not on the Ollama server at {self.host!r}: run 'ollama pull {model}'"
            )
        # Ollama answers a mistyped option with 500: the same call cannot succeed later.
        if text.startswith("option "):
            return BadRequestError(f"{self._exchange.whom(model)} answered {status}: {brief(text)!r}")
        return self._exchange.rejection(model, status, text)


def _bytes(size: int | None) -> int:
    return int(counted(size))


def _usage(reply: ollama.GenerateResponse | ollama.ChatResponse | ollama.EmbedResponse) -> Usage | None:
    """Ollama leaves out what is zero; a reply without any of the fields reported nothing."""
    total_s, tokens = counted(reply.total_duration) / _NANOSECONDS, int(counted(reply.eval_count))
    if not total_s and not tokens:
        return None
    return Usage(
        prompt_tokens=int(counted(reply.prompt_eval_count)),
        completion_tokens=tokens,
        load_s=counted(reply.load_duration) / _NANOSECONDS,
        prefill_s=counted(reply.prompt_eval_duration) / _NANOSECONDS,
        decode_s=counted(reply.eval_duration) / _NANOSECONDS,
        total_s=total_s,
    )
