"""The connection of a command: an embedded server that dies is told of at once, in words of its own."""

from __future__ import annotations

import os
import signal

from ollama_utils.types import Call
from train.server import EMBEDDED, ServerConfig, connect


def test_the_death_of_the_embedded_simulator_fails_a_call_at_once() -> None:
    with connect(ServerConfig(ollama_host=(EMBEDDED,))) as connection:
        assert connection.embedded is not None
        os.kill(connection.embedded.pid, signal.SIGKILL)
        while connection.embedded.alive():
            pass
        completion = connection.dispatcher.generate(Call(model="sim-target", prompt="Why?"))
    assert completion.attempts == 1
    assert "the embedded simulator" in str(completion.error)
    assert "has ended" in str(completion.error)
