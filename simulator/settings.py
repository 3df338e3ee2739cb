"""The settings of a simulator: its flags, and what Ollama's environment variables make of them.

The commands' settings inherit `SimulatedServer`. Hence annotations here are types, not strings, for the flags
are read off them in other modules; and what imports the server itself is imported where it is used.
"""

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.keep_alive import is_duration, keep_alive_s
from simulator.profiles import PROFILES, parse_reply_length

if TYPE_CHECKING:
    from simulator.engine import Limits

MOST_SLOTS = 65536
"""`/slots` tells of each of them."""
_LAST_PORT = 65535
_COUNTS = {
    "slots": "OLLAMA_NUM_PARALLEL",
    "max_queue": "OLLAMA_MAX_QUEUE",
    "max_loaded_models": "OLLAMA_MAX_LOADED_MODELS",
}
_KEEP_ALIVE = "OLLAMA_KEEP_ALIVE"


@dataclass(frozen=True, kw_only=True)
class SimulatedServer:
    """What a simulated server is like, wherever it listens."""

    slots: int = 1
    """Calls one model serves at once (OLLAMA_NUM_PARALLEL)."""
    profile: str = "ideal"
    """The hardware whose speed is played: ideal, gb10, m2-ultra, rtx3090, rtx4090 or cpu16."""
    persona: str | None = None
    """A TOML file with another world for the simulated models."""
    reply_tokens: str = "64"
    """Reply length: a number, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: float = 1.0
    """1 is the pace of the profile; 0.1 is ten times faster."""
    max_loaded_models: int = 0
    """Models in memory at once (OLLAMA_MAX_LOADED_MODELS); 0 is as many as the profile keeps."""
    memory_gb: float = 0.0
    """Gigabytes that the models in memory may take, 4 each; 0 sets no limit."""
    faults: str | None = None
    """A JSON file of faults to be played, such as [{"kind": "error_500", "rate": 0.1}]."""


@dataclass(frozen=True, kw_only=True)
class Settings(SimulatedServer):
    """All settings of a server; a bad value raises ValueError and says what was expected."""

    max_queue: int = 512
    """Requests that may wait for a model to load (OLLAMA_MAX_QUEUE); 0 takes one at a time."""
    keep_alive: str = "5m"
    """How long a model stays in memory after its last use (OLLAMA_KEEP_ALIVE); negative is for ever. It is a
    promise to clients in their own time, which `time_scale` leaves alone."""
    seed: int = 0
    """Goes into every draw: another seed is another server."""
    port: int = 0
    """The port to listen on; 0 lets the system choose."""
    bind: str = "127.0.0.1"
    """The address to listen on."""

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= MOST_SLOTS:
            raise ValueError(f"slots must be between 1 and {MOST_SLOTS}, got {self.slots!r}")
        if self.profile not in PROFILES:
            raise ValueError(f"profile must be one of {sorted(PROFILES)}, got {self.profile!r}")
        if not 0 <= self.time_scale < math.inf:
            raise ValueError(f"time scale must be 0 or a positive number, got {self.time_scale!r}")
        for name in ("max_queue", "max_loaded_models", "memory_gb"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or a positive number, got {getattr(self, name)!r}")
        _stay_s(self.keep_alive)
        if not 0 <= self.port <= _LAST_PORT:
            raise ValueError(f"port must be between 0 and {_LAST_PORT}, got {self.port!r}")
        parse_reply_length(self.reply_tokens)
        if self.faults is not None:
            from simulator.faults import read_faults

            read_faults(self.faults)

    @property
    def limits(self) -> "Limits":
        """What there is room for, with the profile's own limits where these settings leave it open."""
        from simulator.engine import Limits

        return Limits(
            slots=self.slots,
            max_queue=self.max_queue,
            max_loaded_models=self.max_loaded_models or PROFILES[self.profile].max_loaded_models,
            memory_gb=self.memory_gb or math.inf,
            keep_alive_s=_stay_s(self.keep_alive),
        )


def settings_from_environment() -> dict[str, Any]:
    """The settings that Ollama's own variables make, by name; those that are not set are left out.

    Raises:
        ValueError: a variable is not a whole number, or not a duration.
    """
    found: dict[str, Any] = {}
    for name, variable in _COUNTS.items():
        if text := os.environ.get(variable, "").strip():
            if not text.isdecimal():
                raise ValueError(f"{variable} must be a whole number, got {text!r}")
            found[name] = int(text)
    if found.get("slots") == 0:
        del found["slots"]
    if text := os.environ.get(_KEEP_ALIVE, "").strip():
        found["keep_alive"] = f"{text}s" if text.lstrip("+-").isdecimal() else text
        if not is_duration(found["keep_alive"]):
            raise ValueError(f"{_KEEP_ALIVE} must be a duration such as '5m' or whole seconds, got {text!r}")
    return found


def _stay_s(keep_alive: str) -> float:
    """Seconds that a model stays, from a duration or, as in OLLAMA_KEEP_ALIVE, whole seconds."""
    return keep_alive_s(f"{keep_alive}s" if keep_alive.lstrip("+-").isdecimal() else keep_alive)
