"""HTTP to one server: every request bounded in time and in bytes, every failure an OllamaError.

Built on `http.client`, with a connection to itself for each request under way. The CPU time of a
request is a quarter of what httpx takes at 16 requests in flight, and does not grow with their
number. No redirection is followed: a prompt, and the key beside it, go to the server that was named
and nowhere else.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    CallCancelledError,
    CallTimeoutError,
    OllamaError,
    ServerUnreachableError,
)
from ollama_utils.hosts import is_loopback
from records.terminal import one_line

MOST_BYTES = 2**25
"""The longest reply that is read: 32 MiB, far more than a model says, and 300 embeddings of 4096
numbers as JSON."""
CONNECT_S = 10.0
"""Seconds after which nobody is there, unless a request's own time is shorter."""
WHOLE_REPLY = 10
"""A reply is given up after so many times the seconds that it may be silent."""
_AT_ONCE = 2**16
_MOST_QUOTED = 300
_MOST_OF_PAGE = 4096
_TAGS = re.compile(r"(?s)<(head|style|script)\b.*?</\1>|<[^>]*>")
_MOST_RETRY_AFTER_S = 300.0
_REDIRECTION = 3
"""The hundreds of its statuses."""
_HTTP_PORT = 80
_ENDED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What is raised where the server has closed the connection."""
_TLS_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


class Reply(NamedTuple):
    """A whole reply, of any status but a redirection's."""

    status: int
    body: bytes
    retry_after_s: float | None
    """Seconds after which the server wants to be asked again; None where it does not say."""


class _Request:
    """A request under way."""

    def __init__(self, method: str, target: str, content: bytes | None, timeout_s: float) -> None:
        self.method, self.target, self.content = method, target, content
        self.timeout_s = timeout_s
        self.sent_s = self.counts_from_s = time.monotonic()
        """When the server's silence began. It begins anew with each reply to a request that was
        sent before this one, since until then this one may have waited in the server's queue."""
        self.end_s = self.sent_s + WHOLE_REPLY * timeout_s

    def wait_for_reply(self, connected: socket.socket) -> None:
        """Wait for the first byte of the reply, or for the end of the connection.

        Raises:
            TimeoutError: the server is silent for too long.
        """
        while True:
            late_s = min(self.counts_from_s + self.timeout_s, self.end_s)
            connected.settimeout(max(0.001, late_s - time.monotonic()))
            try:
                if isinstance(connected, _TlsSocket):
                    connected.peek()
                else:
                    connected.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                if late_s == min(self.counts_from_s + self.timeout_s, self.end_s):
                    raise
            else:
                connected.settimeout(self.timeout_s)
                return


class _TlsSocket(ssl.SSLSocket):
    """A TLS connection whose next byte can be looked at.

    MSG_PEEK would see records that hold no byte of a reply, such as the tickets of TLS 1.3.
    """

    _peeked = b""

    def peek(self) -> None:
        """Wait for the next byte, or for the end of the connection."""
        self._peeked = self._peeked or self.recv(1)

    def recv_into(
        self,
        buffer: Any,  # noqa: ANN401 - a writable buffer
        nbytes: int | None = None,
        flags: int = 0,
    ) -> int:
        """Read, as `http.client` does; a byte that was looked at comes first."""
        if not self._peeked:
            return super().recv_into(buffer, nbytes, flags)
        buffer[:1], self._peeked = self._peeked, b""
        return 1


class HttpClient:
    """The connections to one server. Each serves one request at a time; idle ones are used again.

    Proxies are those of the environment (http_proxy, https_proxy, all_proxy, no_proxy), but for a
    server on this machine. Certificates are certifi's, or those of SSL_CERT_FILE and SSL_CERT_DIR.

    Args:
        url: the server's base URL with its port; each request's path is added to its path.
        name: the server's name in messages.
        server: what kind of server it is, such as "Ollama server"; for messages.
        start: what to do then.
        timeout_s: seconds that a server may be silent; a whole reply may take ten times as many.
        headers: sent with each request.

    Raises:
        ValueError: the proxy or the certificates of the environment cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        server: str,
        start: str,
        timeout_s: float,
        headers: Mapping[str, str],
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._server, self._start, self._timeout_s = server, start, timeout_s
        self._tls = trusted_certificates() if parts.scheme == "https" else None
        self._proxy = None if is_loopback(url) else proxy_to(url)
        self._headers, self._path = dict(headers), parts.path.rstrip("/")
        self.at = repr(name)
        """The server as messages name it."""
        if self._proxy:
            proxy, variable = self._proxy
            self.at += (
                f" through the proxy http://{proxy.hostname}:{proxy.port} that {variable} names"
            )
            if not self._tls:  # a proxy for plain HTTP is asked for the whole URL
                self._path = f"{parts.scheme}://{parts.netloc}{self._path}"
                self._headers |= _credentials(proxy)
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._in_use: dict[http.client.HTTPConnection, socket.socket] = {}
        self._under_way: set[_Request] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def request(
        self, method: str, path: str, body: object = None, *, timeout_s: float | None = None
    ) -> Reply:
        """Send a request, and read its reply to the end.

        A connection that was used before and ends before a byte of the reply is opened anew at
        once: the server had closed it meanwhile.

        Args:
            method: GET or POST.
            path: behind the base URL.
            body: is sent as JSON.
            timeout_s: in place of the client's.

        Raises:
            OllamaError: there is no whole reply.
        """
        timeout_s = timeout_s or self._timeout_s
        content = None if body is None else self._as_json(body)
        sent = _Request(method, self._path + path, content, timeout_s)
        with self._lock:
            self._under_way.add(sent)
        try:
            connection, reply = self._send(sent)
            whole = self._read(connection, reply, sent.end_s)
        except TimeoutError as error:
            late = f"did not answer within {timeout_s:g} s"
            if time.monotonic() >= sent.end_s:
                late = f"did not end its reply within {WHOLE_REPLY * timeout_s:g} s"
            do = "allow more time (--call-timeout-s), or put fewer calls in flight"
            raise self._failure(CallTimeoutError(f"{self.at} {late}: {do}")) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = brief(f"{type(error).__name__}: {error}")
            raise self._failure(
                BrokenReplyError(f"{self.at} broke off its reply: {why}")
            ) from error
        finally:
            with self._lock:
                self._under_way.remove(sent)
        with self._lock:
            for later in self._under_way:
                if later.sent_s > sent.sent_s:
                    later.counts_from_s = time.monotonic()
        return whole

    def close(self) -> None:
        """End the requests under way, and all later ones, with CallCancelledError."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
        for connected in list(self._in_use.values()):
            with suppress(OSError):  # it ended by itself
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # under TLS, from any thread

    def _as_json(self, body: object) -> bytes:
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            why = brief(ascii(str(error)))
            message = f"the request to {self.at} cannot be written as JSON: {why}"
            raise BadRequestError(message) from error

    def _send(self, sent: _Request) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request, and read the head of its reply."""
        while True:
            try:
                connection, is_used = self._idle.pop(), True
            except IndexError:
                connection, is_used = self._connect(sent.timeout_s), False
            self._in_use[connection] = connection.sock
            if self._is_closed:  # `close` may have missed it
                self._drop(connection)
                raise self._cancelled()
            try:
                connection.sock.settimeout(sent.timeout_s)
                try:
                    connection.request(sent.method, sent.target, sent.content, self._headers)
                except _ENDED:
                    if is_used:
                        raise
                    # A server may refuse a request before it has read all of it: read its reply.
                sent.wait_for_reply(connection.sock)
                return connection, connection.getresponse()
            except BaseException as error:
                self._drop(connection)
                if not (is_used and isinstance(error, _ENDED)):
                    raise

    def _read(
        self, connection: http.client.HTTPConnection, reply: http.client.HTTPResponse, end_s: float
    ) -> Reply:
        """Read the rest of a reply; a connection that is still good is kept."""
        parts, size, is_whole = [], 0, False
        try:
            if reply.status // 100 == _REDIRECTION:
                place = brief(reply.getheader("Location") or "nowhere")
                raise BadRequestError(
                    f"{self.at} answered {reply.status}: it points to {place!r}; nothing was sent "
                    "there: name that address with --ollama-host if you mean it"
                )
            while part := reply.read1(_AT_ONCE):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise BadReplyError(f"{self.at} sent more than {MOST_BYTES} bytes: unread")
                if time.monotonic() > end_s:
                    raise TimeoutError
            if reply.length or self._is_closed:  # which may look like the end of a reply
                raise http.client.IncompleteRead(b"", reply.length)
            is_whole = not reply.will_close
        finally:
            reply.close()
            if is_whole:
                del self._in_use[connection]
                self._idle.append(connection)
                if self._is_closed:  # in the meantime
                    self.close()
            else:
                self._drop(connection)
        return Reply(reply.status, b"".join(parts), _retry_after_s(reply.getheader("Retry-After")))

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """A new connection."""
        if self._is_closed:
            raise self._cancelled()
        near, proxy = (self._host, self._port), self._proxy and self._proxy[0]
        first = (proxy.hostname or "", proxy.port) if proxy else near
        connect_s = min(timeout_s, CONNECT_S)
        connection: http.client.HTTPConnection
        if self._tls:
            connection = http.client.HTTPSConnection(*first, timeout=connect_s, context=self._tls)
        else:
            connection = http.client.HTTPConnection(*first, timeout=connect_s)
        if proxy and self._tls:
            connection.set_tunnel(*near, headers=_credentials(proxy))
        try:
            connection.connect()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            connection.close()
            why = "" if isinstance(error, ConnectionRefusedError) else f" ({brief(str(error))})"
            do = "name the host in NO_PROXY, or another proxy" if proxy else self._start
            message = f"no {self._server} answers at {self.at}{why}: {do}"
            raise self._failure(ServerUnreachableError(message)) from error
        return connection

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        self._in_use.pop(connection, None)
        connection.close()

    def _failure(self, error: OllamaError) -> OllamaError:
        """The error of a request; that it was cancelled, where that is why."""
        return self._cancelled() if self._is_closed else error

    def _cancelled(self) -> CallCancelledError:
        return CallCancelledError(f"the client of {self.at} was closed before the reply")


@cache
def trusted_certificates() -> ssl.SSLContext:
    """The certificates that are trusted: reading them takes some 20 ms, so it is done once.

    Raises:
        ValueError: a file that the environment names cannot be used.
    """
    try:
        context = httpx.create_ssl_context()
    except OSError as error:
        names = [name for name in _TLS_FILES if os.environ.get(name)]
        files = ", ".join(f"{name}={os.environ[name]!r}" for name in names)
        raise ValueError(
            f"{files} cannot be used ({error}): name another file, or leave it unset"
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    context.sslsocket_class = _TlsSocket
    return context


def proxy_to(url: str) -> tuple[SplitResult, str] | None:
    """The proxy that the environment names for a URL, with its port, and the variable that does.

    Hosts of no_proxy are read as urllib reads them.

    Raises:
        ValueError: it cannot be used.
    """
    target, proxies = urlsplit(url), getproxies()
    scheme = target.scheme if proxies.get(target.scheme) else "all"
    named, variable = proxies.get(scheme), f"{scheme}_proxy"
    if not named or proxy_bypass(f"{target.hostname}:{target.port}"):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    with suppress(ValueError):  # a port that is no number
        if proxy.scheme == "http" and proxy.hostname:
            port = "" if proxy.port else f":{_HTTP_PORT}"
            return proxy._replace(netloc=proxy.netloc + port), variable
    raise ValueError(
        f"the proxy that {variable} names for {url!r} cannot be used: expected http://HOST:PORT; "
        "name another, or the host in NO_PROXY"
    )


def _credentials(proxy: SplitResult) -> dict[str, str]:
    """The header that carries the user and password of a proxy's URL."""
    if not proxy.username:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user).decode()}"}


def key_from_environment(variable: str) -> str:
    """An API key from the environment; "" where there is none.

    Raises:
        ValueError: no header can hold it; the message does not show it.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"{variable} holds characters that no header can; expected ASCII alone")
    return key


def brief(text: str) -> str:
    """A server's words in one line, for a message; of a page, such as a gateway's, its text."""
    if text.lstrip().startswith("<"):
        text = _TAGS.sub(" ", text[:_MOST_OF_PAGE])
    line = one_line(text)
    return line if len(line) <= _MOST_QUOTED else f"{line[:_MOST_QUOTED]}..."


def _retry_after_s(seconds: str | None) -> float | None:
    """The seconds of a Retry-After, five minutes at most; None where it is none, or a date."""
    if not seconds or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", seconds.strip()):
        return None
    return min(float(seconds), _MOST_RETRY_AFTER_S)
