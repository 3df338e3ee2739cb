"""The client of an Ollama server, built on the official `ollama` package.

The package writes the requests and reads the replies; `ollama_utils.http` sends them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import Unpack

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    ModelMissingError,
    OllamaError,
)
from ollama_utils.hosts import parse_host
from ollama_utils.http import brief
from ollama_utils.model_client import (
    FAULT,
    NOT_FOUND,
    ClientSettings,
    ModelClient,
    count_of,
    messages_of,
    words_of_error,
)
from ollama_utils.types import (
    Call,
    Completion,
    Embeddings,
    Inventory,
    Usage,
)
from records.json_lines import json_object

# At its import the package opens a client of its own from these, and fails where one cannot be
# used. Ours is given its host and reads its key, proxy and certificates itself.
_READ_AT_IMPORT = (
    "OLLAMA_HOST",
    "OLLAMA_API_KEY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSLKEYLOGFILE",
)
_kept = {
    name: os.environ.pop(name)
    for name in list(os.environ)
    if name in _READ_AT_IMPORT or name.lower().endswith("_proxy")
}
try:
    import ollama
finally:
    os.environ.update(_kept)

_NANOSECONDS = 1e9
_CALLS = frozenset({"/api/generate", "/api/chat"})


class OllamaClient(ModelClient):
    """The connections to one server, shared by all threads.

    Args:
        host: where the server listens, as OLLAMA_HOST is written: `http://127.0.0.1:11434`,
            `localhost`, `:11434`, `::1`.
        settings: see `ClientSettings`.

    Raises:
        ValueError: the host, or the environment's proxy, certificates or key cannot be used.
    """

    larger_context = "raise --num-ctx"

    def __init__(self, host: str, **settings: Unpack[ClientSettings]) -> None:
        url = parse_host(host)
        super().__init__(
            url,
            url,
            server="Ollama server",
            start="start it with 'ollama serve' or pass --ollama-host",
            key="OLLAMA_API_KEY",
            settings=settings,
        )

    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """See `ModelClient`."""
        asked: dict[str, Any] = {
            "model": call.model,
            "format": None if call.format is None else dict(call.format),
            "options": dict(call.options) or None,
            "think": call.think,
            "stream": stream,
        }
        official = _Official(self, timeout_s)
        if call.examples:
            reply = official.request("chat", messages=messages_of(call), **asked)
            text, thoughts = reply.message.content, reply.message.thinking
        else:
            reply = official.request("generate", prompt=call.prompt, system=call.system, **asked)
            text, thoughts = reply.response, reply.thinking
        if not reply.done:
            raise BadReplyError(f"{self.name_of(call.model)} broke off its reply")
        usage = _usage(reply, official.cached_tokens)
        return self.completion(
            call, text or "", thoughts or "", reason=reply.done_reason, usage=usage
        )

    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """See `ModelClient`."""
        reply = _Official(self, timeout_s).request(
            "embed", model=model, input=list(texts), truncate=False
        )
        rows = self.unit_rows_of(model, texts, reply.embeddings)
        return Embeddings(rows=rows, usage=_usage(reply))

    def models(self) -> dict[str, str]:
        """The models as the server lists them (`name:tag`), each with its digest."""
        listed = _Official(self).request("list").models
        return {item.model: item.digest or "" for item in listed if item.model}

    def completes(self, model: str) -> bool:
        """Whether a model writes replies: one that only embeds does not."""
        try:
            capabilities = _Official(self).request("show", model=model).capabilities
        except (BadReplyError, BadRequestError, ModelMissingError):  # a server without /api/show
            return True
        return not capabilities or "completion" in capabilities

    def inventory(self) -> Inventory:
        """The server's version, the sizes of its models, and those in memory."""
        version = self.ask(None, "GET", "/api/version")
        pulled, loaded = (_Official(self).request(what).models for what in ("list", "ps"))
        with self.reading(None):
            return Inventory(
                version=str(json_object(version)["version"]),
                pulled={each.model: int(count_of(each.size)) for each in pulled if each.model},
                loaded={each.model: int(count_of(each.size)) for each in loaded if each.model},
            )

    def contexts(self) -> dict[str, int]:
        """See `ModelClient`; older servers do not say."""
        with self.reading(None):
            loaded = json_object(self.ask(None, "GET", "/api/ps")).get("models") or []
            stated = {each["name"]: int(count_of(each.get("context_length"))) for each in loaded}
        return {name: context for name, context in stated.items() if context}

    def error_of(self, model: str | None, status: int, text: str) -> OllamaError:
        """See `ModelClient`."""
        if status == NOT_FOUND and model is not None and "not found" in text and model in text:
            return ModelMissingError(
                f"model {model!r} is not on the Ollama server at {self.http.at}: "
                f"run 'ollama pull {model}'"
            )
        if text.startswith("option "):  # with 500, but the same call cannot succeed later
            message = f"{self.name_of(model)} answered {status}: {brief(text)!r}"
            return BadRequestError(message)
        return super().error_of(model, status, text)


class _Official(ollama.Client):
    """The official client for one call, which is sent by ours.

    Args:
        client: our own.
        timeout_s: seconds of silence after which the call is given up; None: the client's.
    """

    def __init__(self, client: OllamaClient, timeout_s: float | None = None) -> None:
        self._ours, self._timeout_s = client, timeout_s  # the package would open an httpx client
        self.cached_tokens = 0
        """Those of the prompt that the server had in its cache, after the request."""

    def request(self, method: str, **given: Any) -> Any:
        """What a method of the package returns.

        Raises:
            OllamaError: BadRequestError where the package refuses what it is given.
        """
        try:
            return getattr(self, method)(**given)
        except (TypeError, ValueError, RecursionError) as error:
            why = brief(ascii(str(error)))
            at = self._ours.name_of(given.get("model"))
            raise BadRequestError(f"the request to {at} cannot be written: {why}") from error

    def _request(  # type: ignore[override]  # its overloads tell streams apart; ours are joined
        self,
        cls: type[Any],
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        stream: bool | None = False,
    ) -> Any:
        """Send a request: the package calls this for each one.

        The package knows neither `truncate` for completions nor the count of cached tokens.

        Raises:
            OllamaError: there is no reply, or it cannot be read.
        """
        model: str | None = (json or {}).get("model")
        is_call = path in _CALLS
        asked = {**(json or {}), "truncate": False} if is_call else json
        body = self._ours.ask(model, method, path, asked, self._timeout_s)
        with self._ours.reading(model):
            found = self._joined(model, body) if stream else json_object(body)
            for each in found.get("models") or ():
                each.setdefault("model", each.get("name"))
            self.cached_tokens = int(count_of(found.get("prompt_eval_cached_count")))
            return cls(**found)

    def _joined(self, model: str | None, body: bytes) -> dict[str, Any]:
        """The parts of a streamed reply, a JSON object a line, as the object of a whole one.

        A reply that is whole, since the server does not stream, stays as it is.

        Raises:
            OllamaError: a part says that the server failed.
            ValueError, TypeError, AttributeError: it is no such stream.
        """
        texts, thoughts, last = [], [], dict[str, Any]()
        for last in _parts(body.decode()):
            if error := last.get("error"):
                raise self._ours.error_of(model, FAULT, words_of_error(error))
            words, name = (last["message"], "content") if "message" in last else (last, "response")
            texts.append(words.get(name) or "")
            thoughts.append(words.get("thinking") or "")
            if last.get("done"):
                break
        joined = {"thinking": "".join(thoughts) or None}
        if "message" in last:
            return last | {"message": last["message"] | joined | {"content": "".join(texts)}}
        return last | joined | {"response": "".join(texts)}


def _parts(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a reply: one a line, or one alone over several lines."""
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        yield json.loads(lines[0])
    except (IndexError, ValueError):
        yield json.loads(text)
        return
    yield from map(json.loads, lines[1:])


def _usage(reply: Any, cached_tokens: int = 0) -> Usage | None:
    """What a reply cost; None where it says nothing, as Ollama leaves out what is zero."""
    total_s, tokens = count_of(reply.total_duration) / _NANOSECONDS, count_of(reply.eval_count)
    if not total_s and not tokens:
        return None
    return Usage(
        prompt_tokens=int(count_of(reply.prompt_eval_count)),
        completion_tokens=int(tokens),
        cached_tokens=cached_tokens,
        load_s=count_of(reply.load_duration) / _NANOSECONDS,
        prefill_s=count_of(reply.prompt_eval_duration) / _NANOSECONDS,
        decode_s=count_of(reply.eval_duration) / _NANOSECONDS,
        total_s=total_s,
    )
