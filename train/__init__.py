"""What learns (PPO, contextual bandits), its settings, its runs, and what they learned."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.policy import load_policy
    from train.ppo import LanePPO

__all__ = ["LanePPO", "load_policy"]

_MODULE_OF = {"LanePPO": "train.ppo", "load_policy": "train.policy"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    """The exported names, imported when they are used: torch takes seconds to load."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
