"""The settings of a simulator: its flags, and what Ollama's environment variables make of them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Any

from simulator.engine import Limits
from simulator.faults import read_faults
from simulator.profiles import PROFILES, parse_reply_length
from simulator.wire import is_duration, keep_alive_s

_LAST_PORT = 65535
_COUNTS = {
    "slots": "OLLAMA_NUM_PARALLEL",
    "max_queue": "OLLAMA_MAX_QUEUE",
    "max_loaded_models": "OLLAMA_MAX_LOADED_MODELS",
}
_KEEP_ALIVE = "OLLAMA_KEEP_ALIVE"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The server's settings; a bad value raises ValueError and says what was expected."""

    slots: int = 1
    """Calls that each model serves at once, like OLLAMA_NUM_PARALLEL."""
    profile: str = "ideal"
    """The hardware whose speed is played."""
    persona: str | None = None
    """A TOML file with the world of words; None is the shipped one."""
    max_queue: int = 512
    """Requests that may wait for a model to load, like OLLAMA_MAX_QUEUE; 0 takes one at a time."""
    max_loaded_models: int = 0
    """Models in memory at once, like OLLAMA_MAX_LOADED_MODELS; 0 is as many as the profile keeps."""
    memory_gb: float = 0.0
    """Gigabytes that the models in memory may take together; 0 sets no limit."""
    keep_alive: str = "5m"
    """How long a model stays after its last use, like OLLAMA_KEEP_ALIVE; negative is for ever. It is a
    promise to clients in their own time, which `time_scale` leaves alone."""
    reply_tokens: str = "64"
    """Tokens of a reply: `64`, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: float = 1.0
    """Every duration is multiplied by this; 0 answers at once."""
    seed: int = 0
    """Goes into every draw: another seed is another server."""
    faults: str | None = None
    """A JSON file with the list of faults that are played from the start; None is none."""
    port: int = 0
    """The port to listen on; 0 lets the system choose."""
    bind: str = "127.0.0.1"
    """The address to listen on."""

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, got {self.slots!r}")
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
            read_faults(self.faults)

    @property
    def limits(self) -> Limits:
        """What there is room for, with the profile's own limits where these settings leave it open."""
        return Limits(
            slots=self.slots,
            max_queue=self.max_queue,
            max_loaded_models=self.max_loaded_models or PROFILES[self.profile].max_loaded_models,
            memory_gb=self.memory_gb or math.inf,
            keep_alive_s=_stay_s(self.keep_alive),
        )

    def arguments(self) -> list[str]:
        """The flags that make `python -m simulator` start with these settings."""
        given = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


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
