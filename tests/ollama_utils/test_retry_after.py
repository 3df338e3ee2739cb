"""When a busy server wants to be asked again."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from ollama_utils.errors import OllamaError, ServerBusyError, ServerOverloadedError
from ollama_utils.openai_client import OpenAIClient
from tests.ollama_utils.hostile import CALL, WIRES, RawServer, client_of, failure, http
from tests.ollama_utils.threads import PATIENCE_S

BUSY = b'{"error": "busy"}'


def asked_to_wait_s(wire: str, told: str | bytes, status: str = "503 Busy") -> float | None:
    """What a busy server's error tells of its Retry-After."""
    error = failure(wire, http(status, BUSY, Retry_After=told))
    assert type(error) is ServerBusyError
    return error.retry_after_s


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
@pytest.mark.parametrize("wire", WIRES)
def test_seconds_are_read_up_to_five_minutes(wire: str, status: str) -> None:
    for told, expected in (("0", 0), ("7", 7), (" 20 ", 20), ("1.5", 1.5), ("86400", 300), ("9" * 299, 300)):
        assert asked_to_wait_s(wire, told, status) == expected


@pytest.mark.parametrize("wire", WIRES)
def test_so_is_a_date(wire: str) -> None:
    now = datetime.now(UTC)
    for ahead_s, least_s, most_s in ((120, 60, 120), (-120, 0, 0), (10**6, 300, 300)):
        told = format_datetime(now + timedelta(seconds=ahead_s), usegmt=True)
        wait_s = asked_to_wait_s(wire, told)
        assert wait_s is not None
        assert least_s <= wait_s <= most_s


@pytest.mark.parametrize(
    "told",
    [
        *("", "soon", "-5", "1e3", "1,5", "0x10", "NaN", "inf", "9" * 5000, "\x1b[31m"),
        *("Sun, 99 Nov 9999 99:99:99 GMT", "Fri, 31 Dec 99999 23:59:59 GMT", "Mon", "1 2 3 4 5 6", "12:34"),
        *("Mon, 01 Jan 0001 00:00:00 -9999", "Mon, 01 Jan 2001 00:00:00 +" + "9" * 40),
        "\uff15".encode(),
        b"\xff",
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_what_cannot_be_read_counts_as_not_said(wire: str, told: str | bytes) -> None:
    assert asked_to_wait_s(wire, told) in {None, 0.0}


def test_a_server_that_does_not_say_and_other_errors_have_none() -> None:
    for wire in WIRES:
        error = failure(wire, http("503 Busy", BUSY))
        assert isinstance(error, ServerBusyError)
        assert error.retry_after_s is None
        assert not hasattr(failure(wire, http("500 No", BUSY, Retry_After="7")), "retry_after_s")
    dropped = b'{"error": {"message": "Context size has been exceeded."}}'
    error = failure("openai", http("500 No", dropped, Retry_After="7"))
    assert isinstance(error, ServerOverloadedError)
    assert error.retry_after_s is None


@pytest.mark.parametrize("wire", WIRES)
def test_what_one_request_was_told_is_not_said_of_the_next(wire: str) -> None:
    answers = [http("503 Busy", BUSY, Retry_After="7"), http("503 Busy", BUSY)]
    with (
        RawServer(lambda connection: connection.sendall(answers.pop(0))) as server,
        closing(client_of(wire, server.host)) as client,
    ):
        told = []
        for _ in range(2):
            with pytest.raises(ServerBusyError) as caught:
                client.generate(CALL)
            told.append(caught.value.retry_after_s)
    assert told == [7, None]


def test_a_list_of_models_may_be_told_to_wait_too() -> None:
    with (
        RawServer(http("429 Slow", BUSY, Retry_After="3")) as server,
        closing(OpenAIClient(f"openai:{server.host}", timeout_s=PATIENCE_S)) as client,
        pytest.raises(OllamaError) as caught,
    ):
        client.models()
    assert isinstance(caught.value, ServerBusyError)
    assert caught.value.retry_after_s == 3
