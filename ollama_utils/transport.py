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
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from ollama_utils.connection import BoundedConnection

# A connection that is not needed for so long is closed: after a burst of calls their files would stay open.
_IDLE_S = 30.0
_PROXIES = frozenset({"http", "https"})
_TLS_FILES = {"SSL_CERT_FILE": "a PEM file", "SSLKEYLOGFILE": "a writable file"}


class ExclusiveTransport(httpx.BaseTransport):
    """Lends a connection to a call until its reply is read whole; idle ones are used again.

    There are as many connections as there are calls at once: whoever calls limits that. Those that fewer
    calls leave idle for half a minute are closed when a reply comes.

    Args:
        connect: makes one connection, which reads replies whole.
        clock: the seconds now.
    """

    def __init__(
        self, connect: Callable[[], httpx.BaseTransport], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: deque[tuple[httpx.BaseTransport, float]] = deque()
        """With the time of their last reply: the latest is the last, and is used first."""
        self._closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The reply, with its body read.

        Raises:
            httpx.TransportError: there is none; its connection is not used again.
            OverflowError: it is too long.
        """
        connection = self._take()
        try:
            response = connection.handle_request(request)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return response

    def close(self) -> None:
        """Close the idle connections now, and the others when their reply is there."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for connection, _ in idle:
            connection.close()

    def _take(self) -> httpx.BaseTransport:
        with self._lock:
            if self._idle:
                return self._idle.pop()[0]
        return self._connect()

    def _give_back(self, connection: httpx.BaseTransport) -> None:
        now_s = self._clock()
        needless = []
        with self._lock:
            if self._closed:
                needless.append(connection)
            else:
                self._idle.append((connection, now_s))
            while self._idle and self._idle[0][1] < now_s - _IDLE_S:
                needless.append(self._idle.popleft()[0])
        for each in needless:
            each.close()


def transport_to(url: str, *, direct: bool) -> ExclusiveTransport:
    """Connections to a server.

    Args:
        url: its base URL, with its port.
        direct: whether proxies that the environment names are left aside.

    Raises:
        ValueError: the environment's files for TLS or its proxy for this server cannot be used.
    """
    proxy = None if direct else _proxy_to(url)
    try:
        # A bare context trusts no one and reads no file: a plain connection to this machine needs no more.
        plain = direct and not url.startswith("https:")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else _tls()
    except OSError as error:
        expected = " and ".join(
            f"{name}={os.environ[name]!r} to name {what}"
            for name, what in _TLS_FILES.items()
            if os.environ.get(name)
        )
        raise ValueError(f"expected {expected}: {error}: name another, or leave it unset") from error
    return ExclusiveTransport(lambda: BoundedConnection(tls, proxy))


@functools.cache
def _tls() -> ssl.SSLContext:
    """The certificates that are trusted: reading them takes some 20 ms, so it is done once."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _proxy_to(url: str) -> httpx.Proxy | None:
    """The proxy that the environment names for a URL.

    NO_PROXY is read as urllib reads it: names with or without a port, and `*`; no ranges (10.0.0.0/8).
    """
    parts, proxies = urlsplit(url), getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or proxy_bypass(f"{parts.hostname}:{parts.port}"):
        return None
    try:
        proxy = httpx.Proxy(named if "://" in named else f"http://{named}")
        why = "" if proxy.url.scheme in _PROXIES else f"{proxy.url.scheme} is neither http nor https"
    except (ValueError, httpx.InvalidURL) as error:
        why = str(error)
    if why:
        raise ValueError(
            f"the proxy that the environment names for {url!r} cannot be used: {why}; "
            "name another, or the host in NO_PROXY"
        )
    return proxy
