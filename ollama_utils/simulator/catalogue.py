"""The models as `/api/tags`, `/api/show` and `/api/ps` describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

VERSION = "0.33.0"
"""The version of Ollama whose behaviour is played."""

CONTEXT_TOKENS = 4096
"""The most tokens that a model reads at once."""

_SIZE_BYTES = 4_000_000_000
_MODIFIED_AT = "2025-01-01T00:00:00Z"
_KEEP_ALIVE = timedelta(minutes=5)


def full_name(name: str) -> str:
    """The name with its tag: `x` means `x:latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


class Catalogue:
    """The models by full name.

    Args:
        roles: what each model plays, by its name in the persona: target, mutator, judge, embedding.
    """

    def __init__(self, roles: Mapping[str, str]) -> None:
        self.roles = {full_name(name): role for name, role in roles.items()}

    def find(self, name: str) -> str | None:
        """The full name of a model that is here."""
        wanted = full_name(name.strip())
        return wanted if wanted in self.roles else None

    def capabilities(self, model: str) -> list[str]:
        """What a model can do, in Ollama's words."""
        return ["embedding"] if self.roles[model] == "embedding" else ["completion"]

    def tags(self) -> dict[str, Any]:
        """The reply of `/api/tags`."""
        return {"models": [self._tag(model) for model in self.roles]}

    def running(self, models: Iterable[str]) -> dict[str, Any]:
        """The reply of `/api/ps` when these models are loaded."""
        expires_at = (datetime.now(UTC) + _KEEP_ALIVE).isoformat().replace("+00:00", "Z")
        loaded = {"expires_at": expires_at, "size_vram": _SIZE_BYTES, "context_length": CONTEXT_TOKENS}
        return {"models": [self._entry(model) | loaded for model in models]}

    def show(self, model: str) -> dict[str, Any]:
        """The reply of `/api/show`."""
        return {
            "license": "The simulator's words come from a persona file; there are no weights.",
            "modelfile": f"FROM {model}",
            "parameters": "",
            "template": "{{ .Prompt }}",
            "details": self._details(model),
            "model_info": {
                "general.architecture": "simulator",
                "general.parameter_count": 0,
                "simulator.context_length": CONTEXT_TOKENS,
            },
            "capabilities": self.capabilities(model),
            "modified_at": _MODIFIED_AT,
        }

    def _tag(self, model: str) -> dict[str, Any]:
        more = {"modified_at": _MODIFIED_AT, "capabilities": self.capabilities(model)}
        return self._entry(model) | more

    def _entry(self, model: str) -> dict[str, Any]:
        return {
            "name": model,
            "model": model,
            "size": _SIZE_BYTES,
            "digest": sha256(f"simulator:{model}".encode()).hexdigest(),
            "details": self._details(model),
        }

    def _details(self, model: str) -> dict[str, Any]:
        return {
            "parent_model": "",
            "format": "simulator",
            "family": "simulator",
            "families": [f"simulator-{self.roles[model]}"],
            "parameter_size": "0B",
            "quantization_level": "none",
        }
