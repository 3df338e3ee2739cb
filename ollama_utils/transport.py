"""Connections to a server, each of which serves one call at a time.

httpx's own pool may close a connection that it has just given to another thread; the call on it then
hangs until its read timeout (encode/httpcore #1110; seen about once in 10,000 calls with 64 to 200
threads). Its bookkeeping also grows with the square of the calls in flight.
"""

from __future__ import annotations

import functools
import os
import ssl
import threading
from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from ollama_utils.connection import BoundedConnection

# More idle connections than this are closed: after a burst of calls their files would stay open.
_MOST_IDLE = 32
_TLS_FILES = {"SSL_CERT_FILE": "a PEM file", "SSLKEYLOGFILE": "a writable file"}


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
        """The reply, with its body read.

        Raises:
            httpx.TransportError: there is none; its connection is not used again.
            ValueError: it is too long.
        """
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
            if not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()


def transport_to(url: str, *, direct: bool) -> ExclusiveTransport:
    """Connections to a server.

    Args:
        url: its base URL, with its port.
        direct: whether proxies that the environment names are left aside.

    Raises:
        ValueError: the environment's files for TLS or its proxy for this server cannot be used.
    """
    proxy = None if direct else _proxy_to(url)

    def connect() -> BoundedConnection:
        return BoundedConnection(tls, proxy)

    try:
        # A bare context trusts no one and reads no file: a plain connection to this machine needs no more.
        plain = direct and not url.startswith("https:")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else _tls()
        connect().close()
    except OSError as error:
        expected = " and ".join(
            f"{name}={os.environ[name]!r} to name {what}"
            for name, what in _TLS_FILES.items()
            if os.environ.get(name)
        )
        raise ValueError(f"expected {expected}: {error}: name another, or leave it unset") from error
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ValueError(
            f"the proxy that the environment names for {url!r} cannot be used: {error}; "
            "name another, or the host in NO_PROXY"
        ) from error
    return ExclusiveTransport(connect)


@functools.cache
def _tls() -> ssl.SSLContext:
    """The certificates that are trusted: reading them takes some 20 ms, so it is done once."""
    return httpx.create_ssl_context()


def _proxy_to(url: str) -> str | None:
    """The proxy that the environment names for a URL.

    NO_PROXY is read as urllib reads it: names with or without a port, and `*`; no ranges (10.0.0.0/8).
    """
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(f"{parts.hostname}:{parts.port}"):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
