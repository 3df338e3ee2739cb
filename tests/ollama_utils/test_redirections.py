"""Replies that point elsewhere: nothing is sent there, and the error says where it would have gone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from ollama_utils.errors import BadReplyError, BadRequestError, ServerFaultError
from ollama_utils.http import HttpClient, RedirectedError, transport_to
from simulator.process import is_simulator
from tests.ollama_utils.hostile import CALL, WIRES, RawServer, client_of, failure, http

REQUESTS: dict[str, Callable[[Any], object]] = {
    "generate": lambda client: client.generate(CALL),
    "embed": lambda client: client.embed("m", ["a secret text"]),
    "models": lambda client: client.models(),
}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_no_redirection_is_followed(
    monkeypatch: pytest.MonkeyPatch, request_name: str, wire: str, status: int
) -> None:
    for name in ("OLLAMA_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-secret")
    with (
        RawServer(http("200 OK", b"{}")) as elsewhere,
        RawServer(http(f"{status} Moved", Location=f"{elsewhere.host}/api/chat")) as server,
        closing(client_of(wire, server.host)) as client,
    ):
        with pytest.raises(BadRequestError) as caught:
            REQUESTS[request_name](client)
        assert len(server.requests) == 1
        assert not elsewhere.requests
    message = str(caught.value)
    assert not caught.value.retryable
    assert f"answered {status}: it points to '{elsewhere.host}/api/chat'" in message
    assert "name that address with --ollama-host" in message
    assert message.isprintable()


@pytest.mark.parametrize(
    "location",
    [
        b"",
        b"gopher://127.0.0.1/x",
        b"file:///etc/passwd",
        b"http://[half",
        b"http://host:port/",
        b"\xff\xfe\x1b[31mred",
        b"https://" + b"a" * 60_000,
        b"http://x/\x85\xa0 b\tc",
        b"//elsewhere/path",
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_wherever_a_redirection_points_it_is_one_short_line(wire: str, location: bytes) -> None:
    error = failure(wire, http("307 Moved", Location=location))
    assert type(error) is BadRequestError
    assert "it points to '" in str(error) or "does not say where it points" in str(error)


@pytest.mark.parametrize("status", ["300 Choices", "304 Not Modified", "399 Odd"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_redirection_to_nowhere_says_so(wire: str, status: str) -> None:
    error = failure(wire, http(status))
    assert type(error) is BadRequestError
    assert "does not say where it points" in str(error)


def test_no_other_request_of_the_http_client_is_redirected_either() -> None:
    with (
        RawServer(http("200 OK")) as elsewhere,
        RawServer(http("302 Moved", Location=elsewhere.host)) as server,
        HttpClient(transport=transport_to(server.host, direct=True), follow_redirects=True) as client,
    ):
        with pytest.raises(RedirectedError):
            client.request("POST", server.host, content=b"secret")
        with pytest.raises(RedirectedError), client.stream("GET", server.host):
            pass
        assert not elsewhere.requests


def test_whether_a_server_is_the_simulator_is_asked_of_that_server_alone() -> None:
    with (
        RawServer(http("200 OK", b'{"models": [{"details": {"format": "simulator"}}]}')) as elsewhere,
        RawServer(http("302 Moved", Location=f"{elsewhere.host}/api/tags")) as server,
    ):
        assert is_simulator(elsewhere.host)
        assert not is_simulator(server.host)
        assert len(elsewhere.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        http("200 OK", b"[" * 100_000),
        http("200 OK", b"5"),
        http("200 OK", b"9" * 5000),
        http("200 OK", b'{"models": [5]}'),
        http("500 No", b'{"models": [{"details": {"format": "simulator"}}]}'),
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2**22,
    ],
)
def test_odd_answers_are_no_simulator(answer: bytes) -> None:
    with RawServer(answer) as server:
        assert not is_simulator(server.host)


@pytest.mark.parametrize(
    "charset", ["rot13", "zlib", "hex", "base64", "idna", "nobody", "utf-7", "undefined", "\x00"]
)
@pytest.mark.parametrize("wire", WIRES)
def test_an_odd_charset_decodes_nothing(wire: str, charset: str) -> None:
    told = f"application/json; charset={charset}"
    error = failure(wire, http("500 No", b'{"error": "Schl\xc3\xbcssel \xff"}', Content_Type=told))
    assert type(error) is ServerFaultError
    assert "Schlüssel" in str(error)
    assert type(failure(wire, http("200 OK", b"<html>", Content_Type=told))) is BadReplyError
