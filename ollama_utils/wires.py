"""The client of a host, by the API that its name says: Ollama's or OpenAI's."""

from __future__ import annotations

from typing_extensions import Unpack

from ollama_utils.hosts import speaks_openai
from ollama_utils.model_client import ClientSettings, ModelClient


def open_client(host: str, **settings: Unpack[ClientSettings]) -> ModelClient:
    """The client of a host: an OpenAI-compatible server's (`openai:http://...`), else Ollama's.

    Args:
        host: as `--ollama-host` names it.
        settings: see `ClientSettings`.

    Raises:
        ValueError: the host, a setting, or the environment's proxy, certificates or key cannot be
            used; or no character would be kept.
    """
    if (most := settings.get("max_reply_chars", 1)) < 1:
        raise ValueError(f"max_reply_chars must be at least 1, got {most!r}")
    if speaks_openai(host):
        from ollama_utils.openai import OpenAIClient

        return OpenAIClient(host, **settings)
    from ollama_utils.ollama import OllamaClient

    return OllamaClient(host, **settings)
