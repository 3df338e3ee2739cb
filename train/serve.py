"""Serve the simulator in the foreground: an Ollama-compatible server with a clock and personas, no weights.

mutagym serve --port 11434 --slots 8
OLLAMA_NUM_PARALLEL=8 mutagym serve
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from train.errors import UserError
from train.server import SimulatorConfig
from train.settings import Count

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeConfig(SimulatorConfig):
    """Where the simulator listens, and what it is like."""

    slots: Count = 1
    """Calls one model serves at once [OLLAMA_NUM_PARALLEL, else 1]."""
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 11434
    """TCP port; 0 takes a free one."""
    bind: str = "127.0.0.1"
    """Address to listen on; anything but loopback opens the server to the network."""
    time_scale: float = 1.0
    """1 is the pace of the profile; 0.1 is ten times faster."""


def serve(config: ServeConfig = ServeConfig()) -> None:
    """Serve the simulator until it is stopped. Its replies are made up: say so beside what you measure."""
    from ollama_utils.simulator.serve import run

    slots = os.environ.get("OLLAMA_NUM_PARALLEL", "")
    if config.slots == 1 and slots:
        if not slots.isdecimal() or int(slots) < 1:
            raise UserError(f"OLLAMA_NUM_PARALLEL is {slots!r}; expected a number above 0")
        config = replace(config, slots=int(slots))
    try:
        run(config.settings(port=config.port, bind=config.bind), lambda host: _announce(host, config))
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
            f"note: it listens at {config.bind!r}, where others on the network can reach it", file=sys.stderr
        )
