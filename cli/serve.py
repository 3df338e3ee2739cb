"""Serve the simulator in the foreground: an Ollama-compatible server with no weights.

mutagym serve --port 11434 --slots 8
OLLAMA_NUM_PARALLEL=8 mutagym serve
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from ollama_utils.connect import SimulatorConfig
from records.errors import UserError, as_user_error
from records.settings import Count, CountOrZero, NotNegative, Port, Seed
from records.terminal import write_stderr
from simulator.settings import Settings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeConfig(SimulatorConfig):
    """Where the simulator listens, and what it is like."""

    slots: Annotated[Count, Parameter(env_var="OLLAMA_NUM_PARALLEL")] = Settings.slots
    """Calls one model serves at once."""
    port: Port = 11434
    """TCP port; 0 takes a free one."""
    bind: str = Settings.bind
    """Address to listen on; anything but loopback opens the server to the network."""
    time_scale: NotNegative = Settings.time_scale
    """1 is 4 ms a token; 0.1 is ten times faster, 0 answers at once."""
    max_loaded_models: Annotated[CountOrZero, Parameter(env_var="OLLAMA_MAX_LOADED_MODELS")] = (
        Settings.max_loaded_models
    )
    """Models in memory at once; 0 sets no limit."""
    num_ctx: Count = Settings.num_ctx
    """Tokens of prompt and reply that a model holds at most."""
    seed: Seed = Settings.seed
    """Goes into every draw: another seed is another server."""


def serve(config: ServeConfig = ServeConfig()) -> None:
    """Serve the simulator until it is stopped. Its replies are made up: say so where you report."""
    from simulator.app import run

    def announce(host: str) -> None:
        print(f"simulated Ollama server at {host}: {config} (Ctrl-C ends it)", flush=True)
        if config.bind not in LOOPBACK:
            write_stderr(
                f"note: it listens at {config.bind!r}, where others on the network can reach it; "
                "the routes under /simulator/ stay closed to them"
            )

    try:
        with as_user_error(ValueError):
            run(config.settings(), announce)
    except OSError as error:
        raise UserError(
            f"cannot listen at {config.bind!r} port {config.port}: {error.strerror}; "
            "name others with --bind and --port"
        ) from error
