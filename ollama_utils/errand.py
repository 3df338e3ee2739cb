"""One call on its way through the dispatcher: where it was sent, since when, and what came of it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field

from ollama_utils.errors import CallCancelledError, OllamaError
from ollama_utils.gate import Gate
from ollama_utils.reply_log import Outcome


@dataclass
class Errand:
    """The hosts a call was sent to so far, and when first."""

    model: str
    deadline_s: float
    cancelled: threading.Event
    """Once it is set, nobody waits for it any more."""
    cap: Gate | None = None
    """A gate of the caller's own, in which each attempt holds a place."""
    hosts: list[str] = field(default_factory=list)
    first_sent_s: float = math.inf

    def sent_to(self, host: str) -> None:
        """It goes out now."""
        self.hosts.append(host)
        self.first_sent_s = min(self.first_sent_s, time.monotonic())

    def waited(self, seconds: float) -> None:
        """It stood at a gate for so long, which is no fault of the server: the deadline waits, too."""
        self.first_sent_s += seconds

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt.

        Raises:
            CallCancelledError: it was cancelled.
        """
        if self.cancelled.wait(seconds):
            raise CallCancelledError("the run was stopped before the next attempt")

    def outcome(self, reply: str = "", *, error: OllamaError | None = None) -> Outcome:
        """What came of it, for the log."""
        return Outcome(
            reply=reply,
            error=None if error is None else f"{type(error).__name__}: {error}",
            server=self.hosts[-1] if self.hosts else "",
            attempts=len(self.hosts),
        )

    def is_late(self, pause_s: float = 0.0) -> bool:
        """Whether an attempt that starts after this pause would start too late."""
        return time.monotonic() + pause_s > self.first_sent_s + self.deadline_s
