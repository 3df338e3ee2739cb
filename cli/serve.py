"""Serve the simulator in the foreground: an Ollama-compatible server with a clock and personas, no weights.

mutagym serve --port 11434 --slots 8
OLLAMA_NUM_PARALLEL=8 mutagym serve
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ollama_utils.connect import SimulatorConfig
from records.errors import UserError
from records.settings import Count, CountOrZero, Seed
from simulator.settings import Settings, settings_from_environment

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeConfig(SimulatorConfig):
    """Where the simulator listens, and what it is like."""

    slots: Count = Settings.slots
    """Calls one model serves at once [OLLAMA_NUM_PARALLEL, else 1]."""
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 11434
    """TCP port; 0 takes a free one."""
    bind: str = Settings.bind
    """Address to listen on; anything but loopback opens the server to the network."""
    time_scale: float = Settings.time_scale
    """1 is the pace of the profile; 0.1 is ten times faster."""
    max_queue: CountOrZero = Settings.max_queue
    """Requests that may wait for a model to load [OLLAMA_MAX_QUEUE]."""
    keep_alive: str = Settings.keep_alive
    """How long a model stays in memory after its last use [OLLAMA_KEEP_ALIVE]."""
    seed: Seed = Settings.seed
    """Goes into every draw: another seed is another server."""


def serve(config: ServeConfig = ServeConfig()) -> None:
    """Serve the simulator until it is stopped. Its replies are made up: say so beside what you measure."""
    from simulator.app import run

    try:
        found, default = settings_from_environment(), ServeConfig()
        left_open = {k: v for k, v in found.items() if getattr(config, k) == getattr(default, k)}
        config = replace(config, **left_open)
        run(config.settings(), lambda host: _announce(host, config))
    except OSError as error:
        raise UserError(
            f"cannot listen at {config.bind!r} port {config.port}: {error.strerror}; "
            "name others with --bind and --port"
        ) from error
    except ValueError as error:
        raise UserError(str(error)) from error


def _announce(host: str, config: ServeConfig) -> None:
    print(f"simulated Ollama server at {host}: {config} (Ctrl-C ends it)", flush=True)
    if config.bind not in LOOPBACK:
        print(
            f"note: it listens at {config.bind!r}, where others on the network can reach it; "
            "the routes under /simulator/ stay closed to them",
            file=sys.stderr,
        )
