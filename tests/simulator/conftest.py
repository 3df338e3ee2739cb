"""A simulator for the whole test session, the official client on it, and the shipped persona."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import ollama
import pytest

from simulator.personas.persona import Persona
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.personas import SHIPPED

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that need none: without it each would read the certificates of the machine, 20 ms long."""

Ask = Callable[..., tuple[int, Any]]
"""`ask(method, path, payload, headers)`: the status and the decoded body; bytes go out as they are."""
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="session")
def session_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=4, time_scale=0.02)) as server:
        yield server


@pytest.fixture
def server(session_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's server without faults, with four slots and fresh counts."""
    session_server.reset_stats()
    yield session_server
    session_server.set_faults([])
    session_server.set_slots(4)


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[ollama.Client]:
    client = ollama.Client(server.host, timeout=10, trust_env=False, verify=TLS)
    yield client
    client._client.close()  # ollama's client has no public way to close


@pytest.fixture
def ask(server: EmbeddedServer) -> Iterator[Ask]:
    connection = HTTPConnection(str(urlsplit(server.host).hostname), urlsplit(server.host).port, timeout=60)

    def ask(
        method: str, path: str, payload: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        body = payload if isinstance(payload, bytes) else json.dumps(payload)
        connection.request(method, path, None if payload is None else body, headers or JSON)
        reply = connection.getresponse()
        text = reply.read()
        is_json = reply.headers.get_content_type() == "application/json" and text
        return reply.status, json.loads(text) if is_json else text.decode()

    yield ask
    connection.close()


@pytest.fixture(scope="session")
def persona() -> Persona:
    return SHIPPED
