"""A server that drops all it is generating, as llama.cpp does when its KV cache is full."""

from __future__ import annotations

import threading
from typing import Any

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call
from tests.ollama_utils.scripted import ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S

CALLERS, CALLS = 12, 48
SAID = {
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
    ]
}
FULL = {
    "error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
}


class DropsOnce:
    """Waits until so many calls are there, drops them all, and answers every one that comes later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._came = 0
        self.most_later = 0
        """The most calls that were there at once after the drop."""

    def __call__(self, _: dict[str, Any]) -> tuple[int, Any]:
        with self._changed:
            self._came += 1
            self._inside += 1
            falls = self._came <= CALLERS
            if not falls:
                self.most_later = max(self.most_later, self._inside)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._came >= CALLERS, timeout=PATIENCE_S)
            self._inside -= 1
        return (500, FULL) if falls else (200, SAID)


def test_calls_that_were_dropped_are_sent_again_and_a_quarter_fewer_at_once() -> None:
    calls = [Call(model="m", prompt=str(number)) for number in range(CALLS)]
    server = DropsOnce()
    with (
        ScriptedServer(server) as listening,
        Dispatcher(
            [f"openai:{listening.host}"], max_in_flight=CALLERS, backoff_s=0.001
        ) as dispatcher,
    ):
        replies = map_parallel(dispatcher.generate, calls, CALLERS)
        (found,) = dispatcher.capacities().values()
        account = dispatcher.accounts()["m"]
    assert [reply.text for reply in replies] == ["Yes."] * CALLS
    assert (account.failures, account.retries) == (CALLERS, CALLERS)
    assert found.limit == CALLERS - CALLERS // 4  # all fell together: it was lowered once
    assert server.most_later <= found.limit
