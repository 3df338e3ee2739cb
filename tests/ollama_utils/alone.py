"""One server and nothing else: calls are let out to it, and what is kept of it can be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ollama_utils.fleet import Fleet
from ollama_utils.limits import Admission, MaxInFlight, Server
from ollama_utils.model_client import ModelClient
from ollama_utils.ollama import OllamaClient

NOBODY = "http://127.0.0.1:1"


class Alone(AbstractContextManager["Alone"]):
    """A fleet of one server; by default nobody listens there, and nothing is sent."""

    def __init__(self, host: str = NOBODY, *, max_in_flight: MaxInFlight = 1) -> None:
        self.fleet = Fleet([host], OllamaClient, max_in_flight=max_in_flight)
        self.server: Server = self.fleet._servers[self.fleet.hosts[0]]

    @contextmanager
    def admit(self, model: str) -> Iterator[Admission]:
        """Within `with`: a call that was let out."""
        with self.fleet.admit(model, probe=_nothing) as (_, admission):
            yield admission

    def __exit__(self, *_error: object) -> None:
        self.fleet.close()
        self.fleet.abort()


def _nothing(_client: ModelClient, _within_s: float) -> None:
    """Asks for nothing."""
