"""Policies compared on held-out queries: missions and teams, episodes side by side, honest statistics.

A name is imported when it is first used, so that importing the room is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluation.config import EvalConfig
    from evaluation.policies.bandits import UCB1, BestFixed, EpsilonGreedy, Exp3
    from evaluation.policies.policy import BatchPolicy, NetworkPolicy, Policy, PolicySource, View
    from evaluation.policies.specs import make_bandit, make_source, parse_policy
    from evaluation.stepping import PolicyStepper, make_stepper
    from train.policy import load_run

__all__ = [
    "UCB1",
    "BatchPolicy",
    "BestFixed",
    "EpsilonGreedy",
    "EvalConfig",
    "Exp3",
    "NetworkPolicy",
    "Policy",
    "PolicySource",
    "PolicyStepper",
    "View",
    "load_run",
    "make_bandit",
    "make_source",
    "make_stepper",
    "parse_policy",
]

_MODULES = {
    "evaluation.config": ("EvalConfig",),
    "evaluation.policies.bandits": ("UCB1", "BestFixed", "EpsilonGreedy", "Exp3"),
    "evaluation.policies.policy": ("BatchPolicy", "NetworkPolicy", "Policy", "PolicySource", "View"),
    "evaluation.policies.specs": ("make_bandit", "make_source", "parse_policy"),
    "evaluation.stepping": ("PolicyStepper", "make_stepper"),
    "train.policy": ("load_run",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
