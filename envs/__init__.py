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
    from envs.make import make_parts
    from envs.mission import MissionConfig
    from envs.models import Models
    from envs.queries import Query, load_queries, split_queries
    from envs.query_mutation import EnvConfig, QueryMutationEnv

ENV_ID = "mutagym/QueryMutation-v0"
_MODULE_OF = {
    "BatchedQueryMutationEnv": "envs.batched",
    "EnvConfig": "envs.query_mutation",
    "MissionConfig": "envs.mission",
    "Models": "envs.models",
    "Query": "envs.queries",
    "QueryMutationEnv": "envs.query_mutation",
    "load_queries": "envs.queries",
    "make_parts": "envs.make",
    "split_queries": "envs.queries",
}
__all__ = [
    "ENV_ID",
    "BatchedQueryMutationEnv",
    "EnvConfig",
    "MissionConfig",
    "Models",
    "Query",
    "QueryMutationEnv",
    "load_queries",
    "make_parts",
    "split_queries",
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
