"""Names of models as Ollama writes them: `host/namespace/model:tag`, of which the model alone is enough."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?:\w[\w.-]*(?::\d+)?/)?(?:\w[\w-]*/)?\w[\w.-]*(?::\w[\w.-]*)?", re.ASCII)
FORMAT = "simulator"
"""What `/api/tags` calls the format of every model here; a real server has files of another."""
_HOST, _NAMESPACE = "registry.ollama.ai", "library"


def is_name(name: str) -> bool:
    """Whether a model can be called so."""
    return _NAME.fullmatch(name.strip()) is not None


def full_name(name: str) -> str:
    """The name with its tag: `x` means `x:latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def registry_name(name: str) -> str:
    """The name in full, as in `registry.ollama.ai/library/x:latest`."""
    parts = full_name(name).split("/")
    return "/".join([*(_HOST, _NAMESPACE)[: 3 - len(parts)], *parts])
