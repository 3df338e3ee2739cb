"""Replies that neither Ollama gives nor a fault of the simulator: each is one of our errors, in one line."""

from __future__ import annotations

from contextlib import closing

import pytest

from ollama_utils.client import OllamaClient
from ollama_utils.errors import OllamaError, ServerFaultError, ServerUnreachableError
from ollama_utils.types import Call
from tests.ollama_utils.scripted import ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S

CALL = Call(model="m", prompt="p")


def failure(status: int, body: object) -> OllamaError:
    """The error of a call that is answered so."""
    with (
        ScriptedServer(lambda _: (status, body)) as server,
        closing(OllamaClient(server.host, timeout_s=PATIENCE_S)) as client,
        pytest.raises(OllamaError) as caught,
    ):
        client.generate(CALL)
    return caught.value


@pytest.mark.parametrize("said", [{"message": "no slot", "type": "server_error"}, ["no slot"], 5, None])
def test_an_error_that_is_no_text_as_other_servers_send_is_quoted(said: object) -> None:
    error = failure(500, {"error": said})
    assert type(error) is ServerFaultError
    assert str(said).strip("[]")[:9] in str(error).replace('"', "'")


def test_of_a_gateway_s_long_page_only_its_beginning_is_quoted_in_one_line() -> None:
    error = failure(502, b"<html>\n<h1>Bad gateway</h1>\n" + b"<p>Sorry.</p>\n" * 10_000)
    assert type(error) is ServerUnreachableError
    assert "<h1>Bad gateway</h1> <p>Sorry.</p>" in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 500
