"""The session's simulator, reset for each test of the model layer, and a dispatcher to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ollama_utils.dispatcher import Dispatcher
from simulator.process import EmbeddedServer


@pytest.fixture
def server(simulator: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's simulator, its counts at zero; without faults in the end."""
    simulator.reset_stats()
    yield simulator
    simulator.set_faults([])


@pytest.fixture
def quick(server: EmbeddedServer) -> Iterator[Dispatcher]:
    """A dispatcher that loses no time between attempts."""
    with Dispatcher([server.host], backoff_s=0.001) as dispatcher:
        yield dispatcher
