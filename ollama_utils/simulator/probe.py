"""Tells the simulator from a real server, so that its figures are never taken for a model's."""

from __future__ import annotations

import httpx

_REPLY_S = 5.0


def is_simulator(host: str) -> bool:
    """Whether the server at this URL is the simulator; a real one knows no such route."""
    try:
        return "slots" in httpx.get(f"{host}/simulator/stats", timeout=_REPLY_S, trust_env=False).json()
    except (httpx.HTTPError, ValueError, TypeError):
        return False
