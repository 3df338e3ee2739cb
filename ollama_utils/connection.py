"""One connection to a server, on which every call is bounded in time and in size.

httpx's own timeouts bound a silence only: a server that sends a byte now and then would never be given up,
and one that never stops sending would fill the memory.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterable

import httpcore
import httpx

MOST_BYTES = 2**25
"""The longest reply that is read: 32 MiB. Far more than a model says in one reply, and 300 embeddings of 4096
numbers as JSON; so that 64 calls in flight hold 2 GiB at worst."""


class BoundedConnection(httpx.BaseTransport):
    """A connection for one call at a time, whose reply has to be there within the read timeout.

    That time counts from the call, and is for its head and body together.

    Args:
        tls: the certificates that are trusted.
        proxy: the proxy on the way, if any.

    Raises:
        ValueError: the proxy cannot be used.
    """

    def __init__(self, tls: ssl.SSLContext, proxy: str | None) -> None:
        self._bounds = _Bounds()
        self._transport = httpx.HTTPTransport(verify=tls, proxy=proxy)
        # httpx has no parameter for what httpcore's pools take as `network_backend`.
        self._transport._pool._network_backend = _Backend(self._bounds)  # noqa: SLF001 - see above

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The reply, whose body is still to be read.

        Raises:
            httpx.TransportError: there is none; ReadTimeout when it is late.
            ValueError: it is too long.
        """
        self._bounds.renew(request.extensions.get("timeout", {}).get("read"))
        return self._transport.handle_request(request)

    def close(self) -> None:
        """Close it."""
        self._transport.close()


class _Bounds:
    """What one call may still take."""

    def __init__(self) -> None:
        self._end_s = math.inf
        self._bytes = MOST_BYTES

    def renew(self, limit_s: float | None) -> None:
        self._end_s = math.inf if limit_s is None else time.monotonic() + limit_s
        self._bytes = MOST_BYTES

    def rest_s(self, timeout_s: float | None) -> float | None:
        """The seconds for the next read or write, of those it was given."""
        rest_s = self._end_s - time.monotonic()
        if rest_s <= 0:
            raise httpcore.ReadTimeout("the reply did not end in time")
        shortest_s = min(rest_s, math.inf if timeout_s is None else timeout_s)
        return None if math.isinf(shortest_s) else shortest_s

    def spend(self, count: int) -> None:
        """Count bytes that were read."""
        self._bytes -= count
        if self._bytes < 0:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes, the most that is read")


class _Backend(httpcore.SyncBackend):
    """Connects as httpcore does, and bounds what comes."""

    def __init__(self, bounds: _Bounds) -> None:
        self._bounds = bounds

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._bounds)


class _Stream(httpcore.NetworkStream):
    """The bytes to and from a server, within bounds."""

    def __init__(self, stream: httpcore.NetworkStream, bounds: _Bounds) -> None:
        self._stream = stream
        self._bounds = bounds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._stream.read(max_bytes, self._bounds.rest_s(timeout))
        self._bounds.spend(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._bounds.rest_s(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._bounds)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
