"""Gymnasium environments whose step is one mutation of a query and one answer to it.

Importing this room registers its environment with Gymnasium. What it exports loads when it is first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv
    from envs.make import rules_and_models
    from envs.mission import MissionConfig
    from envs.query_mutation import QueryMutationEnv

ENV_ID = "mutagym/QueryMutation-v0"
_MODULE_OF = {
    "BatchedQueryMutationEnv": "envs.batched",
    "MissionConfig": "envs.mission",
    "QueryMutationEnv": "envs.query_mutation",
    "rules_and_models": "envs.make",
}
__all__ = [
    "ENV_ID",
    "BatchedQueryMutationEnv",
    "MissionConfig",
    "QueryMutationEnv",
    "rules_and_models",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point="envs.make:make_env",
        vector_entry_point="envs.make:make_vector_env",
        nondeterministic=True,  # a real server may answer an equal request otherwise under load
    )
