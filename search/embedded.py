"""Where no server is named, the simulator stands in: searches can be tried without a model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.simulator.process import EmbeddedServer
from ollama_utils.simulator.settings import Settings

SOLVER = "sim-solver"
"""The embedded server's model that solves problems."""

TIME_SCALE = 0.1
"""The embedded server's seconds are so long, as in the commands: trying a search takes no patience."""

_log = logging.getLogger(__name__)


@contextmanager
def embedded_dispatcher(
    slots: int, *, timeout_s: float = 120.0, rate_limit_per_minute: float | None = None
) -> Iterator[Dispatcher]:
    """A dispatcher to a simulator in a process of its own; both end with the `with` block.

    Args:
        slots: calls that each of its models serves at once.
        timeout_s: the seconds after which an attempt without a whole reply counts as failed.
        rate_limit_per_minute: the most requests that go out a minute.

    Raises:
        SimulatorError: it does not start.
    """
    with EmbeddedServer(Settings(slots=slots, time_scale=TIME_SCALE)) as server:
        _log.warning(
            "SIMULATED: no dispatcher was given, so the embedded server at %s answers, at %g of its time",
            server.host,
            TIME_SCALE,
        )
        with Dispatcher(
            [server.host],
            timeout_s=timeout_s,
            obituary=server.obituary,
            rate_limit_per_minute=rate_limit_per_minute,
        ) as dispatcher:
            yield dispatcher
