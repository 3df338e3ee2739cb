"""The wires: which client speaks to a host. The dispatcher knows no more of a server than `ModelClient`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ollama_utils.hosts import speaks_openai
from ollama_utils.types import MAX_REPLY_CHARS, Call, Completion, Embeddings, Inventory


class ModelClient(Protocol):
    """One server's client, shared by all threads; each failure is an OllamaError."""

    host: str
    """The server as messages, logs and run folders name it."""

    def generate(self, call: Call, *, stream: bool = False) -> Completion:
        """The model's reply to one call; with `stream` the server is asked to send it part by part."""
        ...

    def embed(self, model: str, texts: Sequence[str]) -> Embeddings:
        """The embeddings of texts in one request."""
        ...

    def models(self) -> dict[str, str]:
        """The models that the server has, each with what stands for its weights ("": not told)."""
        ...

    def completes(self, model: str) -> bool:
        """Whether a model writes replies; True where the server does not tell."""
        ...

    def slots(self) -> int | None:
        """How many calls the server serves at once; None where it does not tell."""
        ...

    def inventory(self) -> Inventory:
        """What the server tells of itself and its models."""
        ...

    def close(self) -> None:
        """Drop the idle connections."""
        ...


class ClientOpener(Protocol):
    """What opens the client of a host: `open_client`, or an engine's own (`ollama_utils.ray_client`)."""

    def __call__(self, host: str, *, timeout_s: float, max_reply_chars: int) -> ModelClient:
        """See `open_client`."""
        ...


def open_client(
    host: str,
    *,
    timeout_s: float,
    max_reply_chars: int = MAX_REPLY_CHARS,
) -> ModelClient:
    """The client for a host: an OpenAI-compatible server's (`openai:http://...`), else Ollama's.

    Args:
        host: as `--ollama-host` names it.
        timeout_s: the seconds after which a call counts as timed out.
        max_reply_chars: the characters of a reply that are kept; a longer one is cut, and flagged as such.

    Raises:
        ValueError: the host cannot be read, or the environment's proxy, certificates or key for it; or no
            character would be kept.
    """
    given: dict[str, Any] = {
        "timeout_s": timeout_s,
        "max_reply_chars": max_reply_chars,
    }
    if speaks_openai(host):
        from ollama_utils.openai_client import OpenAIClient

        return OpenAIClient(host, **given)
    from ollama_utils.client import OllamaClient

    return OllamaClient(host, **given)
