"""One simulator for the folder's tests, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings

Ask = Callable[..., httpx.Response]
"""POSTs JSON to a path, or any bytes."""


@pytest.fixture(scope="session")
def shared() -> Iterator[EmbeddedServer]:
    """Sixteen slots, replies of 64 tokens in .64 ms."""
    with EmbeddedServer(Settings(slots=16, time_scale=0.0025)) as server:
        yield server


@pytest.fixture
def server(shared: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The same with nothing wrong, counting from zero, and left so."""
    shared.reset_stats()
    yield shared
    shared.set_faults([])
    shared.end_outage()


@pytest.fixture
def http(server: EmbeddedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.host, timeout=30) as client:
        yield client


@pytest.fixture
def ask(http: httpx.Client) -> Ask:
    def post(path: str, body: Any) -> httpx.Response:
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        return http.post(path, **given)

    return post


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as threads:
        yield threads
