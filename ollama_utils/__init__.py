"""Every word to and from a model: the dispatcher, batches of calls, plans, encoders.

A name is imported when it is first used, so that importing the room is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ollama_utils.batching import (
        batch_encode_queries,
        batch_mutate_queries,
        batch_query_target_model,
    )
    from ollama_utils.connect import ServerConfig, SimulatorConfig
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.encoders import CachedEncoder, Encoder, make_encoder
    from ollama_utils.errors import EncodingError, OllamaError
    from ollama_utils.parallel import (
        ParallelError,
        map_parallel,
        run_parallel,
        score_batch_parallel,
    )
    from ollama_utils.reply_log import ReplyLog
    from ollama_utils.types import Call, Completion, Embeddings, Usage

__all__ = [
    "CachedEncoder",
    "Call",
    "Completion",
    "Dispatcher",
    "Embeddings",
    "Encoder",
    "EncodingError",
    "OllamaError",
    "ParallelError",
    "ReplyLog",
    "ServerConfig",
    "SimulatorConfig",
    "Usage",
    "batch_encode_queries",
    "batch_mutate_queries",
    "batch_query_target_model",
    "make_encoder",
    "map_parallel",
    "run_parallel",
    "score_batch_parallel",
]

_MODULES = {
    "ollama_utils.batching": (
        "batch_encode_queries",
        "batch_mutate_queries",
        "batch_query_target_model",
    ),
    "ollama_utils.connect": ("ServerConfig", "SimulatorConfig"),
    "ollama_utils.dispatcher": ("Dispatcher",),
    "ollama_utils.encoders": ("CachedEncoder", "Encoder", "make_encoder"),
    "ollama_utils.errors": ("EncodingError", "OllamaError"),
    "ollama_utils.parallel": (
        "ParallelError",
        "map_parallel",
        "run_parallel",
        "score_batch_parallel",
    ),
    "ollama_utils.reply_log": ("ReplyLog",),
    "ollama_utils.types": ("Call", "Completion", "Embeddings", "Usage"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
