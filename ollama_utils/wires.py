"""The client of a host, by the dialect that its name says: Ollama's API, or OpenAI's."""

from __future__ import annotations

from collections.abc import Callable

from ollama_utils.hosts import speaks_openai
from ollama_utils.model_client import ModelClient
from ollama_utils.types import MAX_REPLY_CHARS

ClientOpener = Callable[..., ModelClient]
"""What opens the client of a host: `open_client`, or an engine's own with the same arguments."""


def open_client(
    host: str, *, timeout_s: float, max_reply_chars: int = MAX_REPLY_CHARS
) -> ModelClient:
    """The client of a host: an OpenAI-compatible server's (`openai:http://...`), else Ollama's.

    Args:
        host: as `--ollama-host` names it.
        timeout_s: seconds that a server may be silent before a call is given up; its whole reply
            may take ten times as many.
        max_reply_chars: characters of a reply that are kept; a longer one is cut, and flagged.

    Raises:
        ValueError: the host, or the environment's proxy, certificates or key cannot be used; or no
            character would be kept.
    """
    if max_reply_chars < 1:
        raise ValueError(f"max_reply_chars must be at least 1, got {max_reply_chars!r}")
    if speaks_openai(host):
        from ollama_utils.openai import OpenAIClient

        return OpenAIClient(host, timeout_s=timeout_s, max_reply_chars=max_reply_chars)
    from ollama_utils.ollama import OllamaClient

    return OllamaClient(host, timeout_s=timeout_s, max_reply_chars=max_reply_chars)
