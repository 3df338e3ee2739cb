"""What the simulator is told when it starts."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields

from ollama_utils.simulator.lengths import parse_reply_length
from ollama_utils.simulator.profiles import PROFILES

_LAST_PORT = 65535
_SLOTS_VARIABLE = "OLLAMA_NUM_PARALLEL"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The server's settings; a bad value raises ValueError and says what was expected."""

    slots: int = 1
    """Calls that each model serves at once, like OLLAMA_NUM_PARALLEL."""
    profile: str = "ideal"
    """The hardware whose speed is played."""
    persona: str | None = None
    """A TOML file with the world of words; None is the shipped one."""
    reply_tokens: str = "64"
    """Tokens of a reply: `64`, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: float = 1.0
    """Every duration is multiplied by this; 0 answers at once."""
    seed: int = 0
    """Goes into every draw: another seed is another server."""
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
        if not 0 <= self.port <= _LAST_PORT:
            raise ValueError(f"port must be between 0 and {_LAST_PORT}, got {self.port!r}")
        parse_reply_length(self.reply_tokens)

    def arguments(self) -> list[str]:
        """The flags that make `python -m ollama_utils.simulator` start with these settings."""
        given = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def slots_from_environment() -> int:
    """The slots that OLLAMA_NUM_PARALLEL sets, as for Ollama itself; 1 without it.

    Raises:
        ValueError: it is no whole number.
    """
    text = os.environ.get(_SLOTS_VARIABLE, "").strip()
    if text and not text.isdecimal():
        raise ValueError(f"{_SLOTS_VARIABLE} must be a whole number, got {text!r}")
    return int(text or 1) or 1
