"""What learns (PPO, contextual bandits), its settings, lanes, seeds, the record of a run, what it learned."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.config import TrainConfig
    from train.lanes import LanePPO
    from train.learned_policy import LearnedPolicy, load_policy
    from train.ppo import MaskedPPO

__all__ = ["LanePPO", "LearnedPolicy", "MaskedPPO", "TrainConfig", "load_policy"]

_MODULE_OF = {
    "LanePPO": "train.lanes",
    "LearnedPolicy": "train.learned_policy",
    "MaskedPPO": "train.ppo",
    "TrainConfig": "train.config",
    "load_policy": "train.learned_policy",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    """The exported names, imported when they are used: torch takes seconds to load."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
