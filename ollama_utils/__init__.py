"""Every word to and from a model: the dispatcher, batches of calls, encoders.

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
_MODULES = (
    "types",
    "errors",
    "parallel",
    "reply_log",
    "dispatcher",
    "encoders",
    "batching",
    "connect",
)
"""Those that export names, the cheapest first."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is exported
    for module in _MODULES if name in __all__ else ():
        if (
            found := getattr(importlib.import_module(f"ollama_utils.{module}"), name, None)
        ) is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
