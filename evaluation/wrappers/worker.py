"""A process that policies live in, started by `evaluation.wrappers.worker_process`.

    python -m evaluation.wrappers.worker FD PARENT

It answers one request after another over the connection at the file descriptor. It ends with the connection,
or soon after the process PARENT, whatever its policies are at. A request
is a name and its arguments, a reply `("done", value)`, `("raised", pickled exception or None, traceback)`,
or `("unreadable", reason)` where a policy cannot be unpickled.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from evaluation.policies.policy import View
from evaluation.wrappers.players import Player, make_player
from evaluation.wrappers.tracebacks import policy_traceback

Reply = tuple[Any, ...]
_LOOK_UP_S = 1.0


class Household:
    """The policies that live here, by their numbers."""

    def __init__(self) -> None:
        self._players: dict[int, Player] = {}

    def answer(self, request: str, *arguments: Any) -> Reply:  # noqa: ANN401 - each request has its own
        """The reply to a request; a policy's error is one."""
        try:
            return getattr(self, f"_{request}")(*arguments)  # type: ignore[no-any-return] # all are replies
        except Exception as error:  # noqa: BLE001 - it is told
            return "raised", _pickled(error), policy_traceback(error, __name__)

    def _paths(self, paths: list[str]) -> Reply:
        """Look for modules where the other process does."""
        sys.path[:] = paths
        return "done", None

    def _make(self, number: int, payload: bytes, views: Sequence[View]) -> Reply:
        """Take in a policy, or make it from its source, and step it through what it has seen before."""
        try:
            source, seed, player = pickle.loads(payload)  # noqa: S301 - from the process that started this one
        except Exception as error:  # noqa: BLE001 - whatever a user's class raises
            return "unreadable", " ".join(f"{type(error).__name__}: {error}".split())
        self._players[number] = player = player or make_player(source, seed)
        for view in views:
            with suppress(Exception):  # it was told when it was first raised
                player.step(view)
        return "done", None

    def _step(self, number: int, view: View) -> Reply:
        return "done", self._players[number].step(view)

    def _drop(self, number: int) -> Reply:
        self._players.pop(number, None)
        return "done", None


def serve(connection: Connection) -> None:
    """Answer requests until the other side is gone."""
    household = Household()
    with suppress(EOFError, ConnectionError):
        while True:
            connection.send(household.answer(*connection.recv()))


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(_LOOK_UP_S)
    os._exit(1)


def _pickled(error: Exception) -> bytes | None:
    """The exception, if it survives being pickled."""
    try:
        payload = pickle.dumps(error)
        pickle.loads(payload)  # noqa: S301 - just pickled
    except Exception:  # noqa: BLE001 - whatever a user's class raises
        return None
    return payload


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
