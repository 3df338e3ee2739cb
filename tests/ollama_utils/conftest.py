"""One simulator for the model layer's tests, reset for each, and a dispatcher to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ollama_utils.dispatcher import Dispatcher
from simulator.process import EmbeddedServer
from simulator.settings import Settings


@pytest.fixture(scope="session")
def shared_server() -> Iterator[EmbeddedServer]:
    """A simulator with 4 slots whose replies take about 5 ms: for laws, whose examples reset it."""
    with EmbeddedServer(Settings(slots=4, time_scale=0.02)) as server:
        yield server


@pytest.fixture
def server(shared_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The simulator without faults and with its counts at zero, before and after."""
    shared_server.reset_stats()
    yield shared_server
    shared_server.set_faults([])


@pytest.fixture
def quick(server: EmbeddedServer) -> Iterator[Dispatcher]:
    """A dispatcher that loses no time between attempts."""
    with Dispatcher([server.host], backoff_s=0.001) as dispatcher:
        yield dispatcher
