"""Policies compared on held-out queries: missions and teams, episodes side by side, statistics.

A name is imported when it is first used, so that importing the room is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluation.config import EvalConfig
    from evaluation.policies import BatchPolicy, NetworkPolicy, Policy, PolicySource, View
    from evaluation.specs import make_source, parse_policy
    from evaluation.stepping import PolicyStepper
    from train.policy import load_run

__all__ = [
    "BatchPolicy",
    "EvalConfig",
    "NetworkPolicy",
    "Policy",
    "PolicySource",
    "PolicyStepper",
    "View",
    "load_run",
    "make_source",
    "parse_policy",
]

_MODULES = {
    "evaluation.config": ("EvalConfig",),
    "evaluation.policies": ("BatchPolicy", "NetworkPolicy", "Policy", "PolicySource", "View"),
    "evaluation.specs": ("make_source", "parse_policy"),
    "evaluation.stepping": ("PolicyStepper",),
    "train.policy": ("load_run",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
