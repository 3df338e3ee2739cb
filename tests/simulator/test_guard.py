"""The routes under /simulator/ are for programs on this machine: no web page, no other machine."""

from __future__ import annotations

import asyncio
import socket
from unittest.mock import patch

import pytest
from aiohttp.test_utils import TestClient, TestServer

from simulator import guard
from simulator.app import build_app
from simulator.process import EmbeddedServer, is_simulator
from simulator.settings import Settings
from tests.simulator.conftest import JSON, Ask

READ, WRITE = ("GET", "/simulator/stats", None), ("POST", "/simulator/slots", {"slots": 7})
NO_FAULTS: list[object] = []
ZERO, FAULTS = ("DELETE", "/simulator/stats", None), ("POST", "/simulator/faults", NO_FAULTS)
ALL: list[tuple[str, str, object]] = [READ, WRITE, ZERO, FAULTS]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rebound.example"}, 403),
        ({"Host": "rebound.example:80"}, 403),
        ({"Host": "127.0.0.1.rebound.example"}, 403),
        ({"Host": "localhost.rebound.example"}, 403),
        ({"Host": "8.8.8.8"}, 403),
        ({"Host": "["}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://page.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Host": "localhost"}, 200),
        ({"Host": "localhost:5"}, 200),
        ({"Host": "[::1]:5"}, 200),
        ({"Host": "127.1.2.3:5", "Origin": "http://127.1.2.3:5"}, 200),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
    ],
)
def test_a_page_and_a_name_that_is_not_the_servers_are_refused(
    ask: Ask, headers: dict[str, str], status: int
) -> None:
    for method, path, payload in ALL:
        got, reply = ask(method, path, payload, JSON | headers)
        assert got == status
        if status == 403:
            assert reply.count("\n") == 1
            assert reply.endswith("\n")


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"],
)
def test_what_a_page_may_send_unasked_is_refused(server: EmbeddedServer, ask: Ask, kind: str) -> None:
    for _, path, payload in (WRITE, FAULTS):
        for body in (payload, None):
            status, reply = ask("POST", path, body, {"Content-Type": kind})
            assert (status, reply.count("\n")) == (415, 1)
            assert "application/json" in reply
    assert server.stats()["slots"] == 4


def test_no_page_is_told_that_it_may(ask: Ask) -> None:
    wish = {"Origin": "http://page.example", "Access-Control-Request-Method": "DELETE"}
    assert ask("OPTIONS", "/simulator/stats", None, wish)[0] == 403


def test_a_post_that_does_not_say_what_it_brings_is_refused(server: EmbeddedServer) -> None:
    port = int(server.host.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        head = b"POST /simulator/slots HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n"
        connection.sendall(head + b'{"slots": 9}')
        assert connection.recv(100).startswith(b"HTTP/1.1 415 ")
    assert server.stats()["slots"] == 4


def test_a_client_that_names_no_host_is_refused(server: EmbeddedServer) -> None:
    with socket.create_connection(
        ("127.0.0.1", int(server.host.rpartition(":")[2])), timeout=10
    ) as connection:
        connection.sendall(b"GET /simulator/stats HTTP/1.0\r\n\r\n")
        assert b" 403 Forbidden" in connection.recv(100)


def test_models_are_for_everybody(ask: Ask) -> None:
    elsewhere = {"Host": "server.example", "Origin": "http://page.example"}
    assert ask("GET", "/api/tags", None, elsewhere)[0] == 200
    question = {"model": "sim-target", "prompt": "x", "stream": False}
    assert ask("POST", "/api/generate", question, elsewhere)[0] == 200


def test_the_address_that_the_server_listens_at_is_its_name() -> None:
    async def ask() -> list[int]:
        async with TestClient(TestServer(build_app(Settings(bind="sim.example")))) as client:
            names = ("sim.example", "SIM.example:80", "other.example")
            replies = [await client.get("/simulator/stats", headers={"Host": name}) for name in names]
            return [reply.status for reply in replies]

    assert asyncio.run(ask()) == [200, 200, 403]


def test_another_machine_is_refused_and_still_told_what_it_talks_to() -> None:
    # No other machine is at hand: for one request this one's address is no loopback address.
    async def ask() -> list[int]:
        async with TestClient(TestServer(build_app(Settings()))) as client:
            with patch.object(guard, "_is_of_this_machine", return_value=False):
                replies = [await client.request(method, path, json=body) for method, path, body in ALL]
            return [reply.status for reply in replies]

    assert asyncio.run(ask()) == [403] * len(ALL)


def test_the_simulator_is_known_by_its_models(server: EmbeddedServer) -> None:
    assert is_simulator(server.host)
    assert not is_simulator(f"{server.host}/elsewhere")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.168.1.5", False),
        ("::ffff:192.168.1.5", False),
        ("0.0.0.0", False),  # noqa: S104 - read, not bound
        ("localhost", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_known(address: str, expected: bool) -> None:  # noqa: FBT001 - pytest's
    assert guard._is_loopback(address) is expected
