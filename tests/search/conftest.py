"""The simulators that the tests of the searches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings


@pytest.fixture
def server(simulator: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's simulator, which counts from 0; what faults the test sets end with it."""
    simulator.reset_stats()
    yield simulator
    simulator.set_faults([])


@pytest.fixture(scope="session")
def paced_server() -> Iterator[EmbeddedServer]:
    """Each of its models has 16 slots; replies take some milliseconds."""
    with EmbeddedServer(Settings(slots=16, time_scale=0.01)) as made:
        yield made
