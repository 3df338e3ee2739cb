"""The simulator that the tests of the searches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulator.process import EmbeddedServer


@pytest.fixture
def server(simulator: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's simulator, which counts from 0; its faults and outages end with the test."""
    simulator.reset_stats()
    yield simulator
    simulator.set_faults([])
    simulator.end_outage()
