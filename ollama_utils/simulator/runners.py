"""What is said of a model in memory: with which options, for how long, and who asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ollama_utils.simulator.agenda import Entry
from ollama_utils.simulator.decoding import Batch
from ollama_utils.simulator.slots import Slots

_LEAST_CONTEXT = 4


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """The options that a model is loaded with; another value loads it anew."""

    num_ctx: int = 4096
    num_batch: int = 512
    num_gpu: int = -1
    main_gpu: int = 0
    use_mmap: bool | None = None
    num_thread: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RunnerOptions:
        """Those among a request's options, whose types were checked; the rest at Ollama's defaults."""
        names = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread")
        given: dict[str, Any] = {name: int(options[name]) for name in names if options.get(name) is not None}
        context = max(given.pop("num_ctx", cls.num_ctx), _LEAST_CONTEXT)
        return cls(num_ctx=context, use_mmap=options.get("use_mmap"), **given)

    def served_by(self, loaded: RunnerOptions) -> bool:
        """Whether a model loaded with other options will do: any `num_gpu` does for one that is below 0."""
        return loaded == self or (self.num_gpu < 0 and loaded == replace(self, num_gpu=loaded.num_gpu))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server's environment sets."""

    slots: int = 1
    """Calls that each model serves at once: OLLAMA_NUM_PARALLEL."""
    max_queue: int = 512
    """Requests that may wait for a model to load, the one it loads for included: OLLAMA_MAX_QUEUE. With 0
    one is taken at a time."""
    max_loaded_models: float = 3
    """Models in memory at once: OLLAMA_MAX_LOADED_MODELS."""
    memory_gb: float = float("inf")
    """What the models in memory may take together."""
    keep_alive_s: float = 300.0
    """Seconds that a model stays after its last use, when its requests do not say: OLLAMA_KEEP_ALIVE."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What loading a model needs to know of it."""

    size_gb: float = 4.0
    one_slot: bool = False
    """Whether it has one slot whatever the limits say, as models that only embed have."""


@dataclass(eq=False, kw_only=True)
class Runner:
    """A model in memory, or on its way there."""

    model: str
    size_gb: float
    one_slot: bool
    options: RunnerOptions
    slots: Slots
    batch: Batch
    keep_alive_s: float
    loading: bool = True
    users: int = 0
    """Requests that it has, waiting for a slot or in one."""
    expires_s: float = 0.0
    """When it is unloaded, as of its last use."""
    expiry: Entry | None = None


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A model in memory, as it is shown."""

    model: str
    num_ctx: int
    stays_s: float
    """Seconds for which it stays if nobody comes."""


@dataclass(eq=False, kw_only=True)
class Request:
    """A request for a model in memory."""

    model: str
    options: RunnerOptions = field(default_factory=RunnerOptions)
    keep_alive_s: float | None = None
    ready: Callable[[Runner], None]
    """Is called with the loaded model, which is then to be given back with `release`."""
