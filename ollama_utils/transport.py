"""Connections to a server, each of which serves one call at a time.

httpx's own pool may close a connection that it has just given to another thread; the call on it then
hangs until its read timeout (encode/httpcore #1110; seen about once in 10,000 calls with 64 to 200
threads). Its bookkeeping also grows with the square of the calls in flight.
"""

from __future__ import annotations

import functools
import ssl
import threading
from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx


class ExclusiveTransport(httpx.BaseTransport):
    """Lends a connection to a call until its reply is read whole; idle ones are used again.

    There are as many connections as there are calls at once: whoever calls limits that.

    Args:
        connect: makes one connection.
    """

    def __init__(self, connect: Callable[[], httpx.BaseTransport]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[httpx.BaseTransport] = []
        self._closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The reply, with its body read."""
        connection = self._take()
        try:
            response = connection.handle_request(request)
            response.read()
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return response

    def close(self) -> None:
        """Close the idle connections now, and the others when their reply is there."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> httpx.BaseTransport:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, connection: httpx.BaseTransport) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def transport_to(url: str, *, direct: bool) -> ExclusiveTransport:
    """Connections to a server.

    Args:
        url: its base URL.
        direct: whether proxies that the environment names are left aside.
    """
    proxy = None if direct else _proxy_to(url)
    return ExclusiveTransport(lambda: httpx.HTTPTransport(verify=_tls(), proxy=proxy))


@functools.cache
def _tls() -> ssl.SSLContext:
    """The certificates that are trusted: reading them takes some 20 ms, so it is done once."""
    return httpx.create_ssl_context()


def _proxy_to(url: str) -> str | None:
    """The proxy that the environment names for a URL."""
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
