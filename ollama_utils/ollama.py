"""The client of an Ollama server, built on the official `ollama` package.

The package writes the requests and reads the replies; `ollama_utils.http` sends them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Unpack

from ollama_utils.errors import BadReplyError, BadRequestError, ModelMissingError, OllamaError
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
from ollama_utils.types import Call, Completion, Embeddings, Inventory, Usage
from records.json_lines import json_object

# At its import the package opens a client of its own from these, and fails where one cannot be
# used. Ours is given its host and reads its key, proxy and certificates itself.
_READ_AT_IMPORT = {
    "OLLAMA_HOST",
    "OLLAMA_API_KEY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSLKEYLOGFILE",
}
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

    server = "Ollama server"
    start = "start it with 'ollama serve' or pass --ollama-host"
    key = "OLLAMA_API_KEY"
    larger_context = "raise --num-ctx"

    def __init__(self, host: str, **settings: Unpack[ClientSettings]) -> None:
        url = parse_host(host)
        super().__init__(url, url, settings)

    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """See `ModelClient`."""
        fields: dict[str, Any] = {"prompt": call.prompt, "system": call.system}
        if call.examples:
            fields = {"messages": messages_of(call)}
        reply, usage = self._request(
            "chat" if call.examples else "generate",
            timeout_s,
            model=call.model,
            format=None if call.format is None else dict(call.format),
            options=dict(call.options) or None,
            think=call.think,
            stream=stream,
            **fields,
        )
        if not reply.done:
            raise BadReplyError(f"{self.name_of(call.model)} broke off its reply")
        words = reply.message if call.examples else reply
        text = words.content if call.examples else words.response
        return self.completion(
            call, text or "", words.thinking or "", reason=reply.done_reason, usage=usage
        )

    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """See `ModelClient`."""
        asked = {"model": model, "input": list(texts), "truncate": False}
        reply, usage = self._request("embed", timeout_s, **asked)
        return Embeddings(rows=self.unit_rows_of(model, texts, reply.embeddings), usage=usage)

    def models(self) -> dict[str, str]:
        """The models as the server lists them (`name:tag`), each with its digest."""
        listed = self._request("list")[0].models
        return {each.model: each.digest or "" for each in listed if each.model}

    def completes(self, model: str) -> bool:
        """Whether a model writes replies: one that only embeds does not."""
        try:
            capabilities = self._request("show", model=model)[0].capabilities
        except (BadReplyError, BadRequestError, ModelMissingError):  # a server without /api/show
            return True
        return not capabilities or "completion" in capabilities

    def inventory(self) -> Inventory:
        """The server's version, the sizes of its models, and those in memory."""
        pulled, loaded = (self._request(method)[0].models for method in ("list", "ps"))
        with self.reading(None):
            return Inventory(
                version=str(json_object(self.ask(None, "/api/version"))["version"]),
                pulled={each.model: int(count_of(each.size)) for each in pulled if each.model},
                loaded={each.model: int(count_of(each.size)) for each in loaded if each.model},
            )

    def contexts(self) -> dict[str, int]:
        """See `ModelClient`; older servers do not say."""
        loaded = self._request("ps")[0].models
        return {each.model: each.context_length for each in loaded if each.context_length}

    def error_of(self, model: str | None, status: int, text: str) -> OllamaError:
        """See `ModelClient`."""
        if status == NOT_FOUND and model is not None and "not found" in text and model in text:
            return ModelMissingError(
                f"model {model!r} is not on the Ollama server at {self.http.at}: "
                f"run 'ollama pull {model}'"
            )
        if text.startswith("option "):  # with 500, but the same call cannot succeed later
            return BadRequestError(f"{self.name_of(model)} answered {status}: {brief(text)!r}")
        return super().error_of(model, status, text)

    def _request(
        self, method: str, timeout_s: float | None = None, **given: Any
    ) -> tuple[Any, Usage | None]:
        """What a method of the package returns, and what it cost."""
        try:
            found: tuple[Any, Usage | None] = getattr(_Official(self, timeout_s), method)(**given)
        except (TypeError, ValueError, RecursionError) as error:
            why, at = brief(ascii(str(error))), self.name_of(given.get("model"))
            raise BadRequestError(f"the request to {at} cannot be written: {why}") from error
        return found


class _Official(ollama.Client):
    """The official client for one call, which ours sends; the package's would open one of httpx."""

    def __init__(self, ours: OllamaClient, timeout_s: float | None) -> None:
        self._ours, self._timeout_s = ours, timeout_s

    def _request(  # type: ignore[override]  # its overloads tell streams apart; ours are joined
        self,
        cls: type[Any],
        _method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        stream: bool | None = False,
    ) -> tuple[Any, Usage | None]:
        """Send a request: the package calls this for each one, and returns what this returns.

        The package knows neither `truncate` for completions nor the count of cached tokens.
        """
        model: str | None = (json or {}).get("model")
        asked = {**(json or {}), "truncate": False} if path in _CALLS else json
        body = self._ours.ask(model, path, asked, self._timeout_s)
        with self._ours.reading(model):
            found = self._joined(model, body) if stream else json_object(body)
            for each in found.get("models") or ():
                each.setdefault("model", each.get("name"))
            return cls(**found), _usage(found)

    def _joined(self, model: str | None, body: bytes) -> dict[str, Any]:
        """The parts of a streamed reply, a JSON object a line, as the object of a whole one."""
        texts, thoughts, last = [], [], dict[str, Any]()
        for last in map(json.loads, filter(str.strip, body.decode().split("\n"))):
            if error := last.get("error"):
                raise self._ours.error_of(model, FAULT, words_of_error(error))
            words, name = (last["message"], "content") if "message" in last else (last, "response")
            texts.append(words.get(name) or "")
            thoughts.append(words.get("thinking") or "")
            if last.get("done"):
                break
        if not last:
            raise ValueError("it is empty")
        joined = {"thinking": "".join(thoughts) or None, name: "".join(texts)}
        return last | ({"message": words | joined} if "message" in last else joined)


def _usage(found: Mapping[str, Any]) -> Usage | None:
    """What a reply cost; None where it says nothing, as Ollama leaves out what is zero."""

    def seconds(name: str) -> float:
        return count_of(found.get(name)) / _NANOSECONDS

    def tokens(name: str) -> int:
        return int(count_of(found.get(name)))

    if not seconds("total_duration") and not tokens("eval_count"):
        return None
    return Usage(
        prompt_tokens=tokens("prompt_eval_count"),
        completion_tokens=tokens("eval_count"),
        cached_tokens=tokens("prompt_eval_cached_count"),
        load_s=seconds("load_duration"),
        prefill_s=seconds("prompt_eval_duration"),
        decode_s=seconds("eval_duration"),
        total_s=seconds("total_duration"),
    )
