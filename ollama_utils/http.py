"""HTTP to one server: every request bounded in time and in bytes, every failure an OllamaError.

Built on `http.client`, with a connection to itself for each request under way. The CPU time of a
request is a quarter of what httpx takes at 16 requests in flight, and does not grow with their
number. No redirection is followed: a prompt, and the key beside it, go to the server that was named
and nowhere else.
"""

from __future__ import annotations

import base64
import http.client
import io
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
    """A whole reply."""

    status: int
    body: bytes
    retry_after_s: float | None
    """Seconds after which the server wants to be asked again; None where it does not say."""


class _Request(io.RawIOBase):
    """A request under way, and the file that its reply is read from.

    That of `socket.makefile` cannot be read any more after a timeout.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.sent_s = self.silent_from_s = time.monotonic()
        """When the server's silence began. It begins anew with each word, and with each reply to a
        request that was sent before this one: until then this one may wait in a queue."""
        self.end_s = self.sent_s + WHOLE_REPLY * timeout_s
        self.connected: socket.socket | None = None
        self.is_answered = False
        """Whether a byte of the reply was read."""

    def late_s(self) -> float:
        """When the server has been silent for too long, or should have ended its reply."""
        return min(self.silent_from_s + self.timeout_s, self.end_s)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What `http.client` asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a writable buffer
        while self.connected:
            self.connected.settimeout(max(0.001, self.late_s() - time.monotonic()))
            try:
                count = self.connected.recv_into(buffer)
            except TimeoutError:
                if time.monotonic() < self.late_s():
                    continue
                raise
            self.silent_from_s = time.monotonic()
            if self.silent_from_s >= self.end_s:
                raise TimeoutError
            self.is_answered = self.is_answered or count > 0
            return count
        return 0

    def close(self) -> None:
        """Stay open: the request may be sent again, on another connection."""


class HttpClient:
    """The connections to one server. Each serves one request at a time; idle ones are used again.

    Proxies are those of the environment (http_proxy, https_proxy, all_proxy, no_proxy), but for a
    server on this machine. Certificates are certifi's, or those of SSL_CERT_FILE and SSL_CERT_DIR.

    Args:
        url: the server's base URL with its port.
        name: the server in messages; `server` and `start`: see `ModelClient`.
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
        parts = httpx.URL(url)  # which writes any name and path in ASCII
        self._address = (parts.raw_host.decode(), urlsplit(url).port)
        self._server, self._start, self._timeout_s = server, start, timeout_s
        self._tls = trusted_certificates() if parts.scheme == "https" else None
        self._proxy = None if is_loopback(url) else proxy_to(url)
        self._path, host = parts.raw_path.decode().rstrip("/"), parts.netloc.decode()
        self._headers = {"Host": host, "Accept-Encoding": "identity", **headers}
        self.at = repr(name)
        """The server as messages name it."""
        if self._proxy:
            proxy, variable = self._proxy
            address = f"http://{proxy.hostname}:{proxy.port}"
            self.at += f" through the proxy {address} that {variable} names"
            if not self._tls:  # a proxy for plain HTTP is asked for the whole URL
                self._path = f"{parts.scheme}://{host}{self._path}"
                self._headers |= _credentials(proxy)
        self._idle: deque[socket.socket] = deque()
        self._under_way: set[_Request] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def request(self, path: str, body: object = None, *, timeout_s: float | None = None) -> Reply:
        """Send a request, and read its reply to the end.

        A connection that was used before and ends before a byte of the reply is opened anew at
        once: the server had closed it meanwhile.

        Args:
            path: behind the base URL.
            body: is sent by POST as JSON; None: it is a GET.
            timeout_s: in place of the client's.

        Raises:
            OllamaError: there is no whole reply.
        """
        sent = _Request(timeout_s or self._timeout_s)
        try:
            written = "" if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False)
            content = written.encode()
        except (TypeError, ValueError, RecursionError) as error:
            message = f"the request to {self.at} cannot be written as JSON: "
            raise BadRequestError(message + brief(ascii(str(error)))) from error
        with self._lock:
            self._under_way.add(sent)
        try:
            reply = self._send(sent, path, content)
        except TimeoutError as error:
            late = f"answer within {sent.timeout_s:g} s"
            if time.monotonic() >= sent.end_s:
                late = f"end its reply within {WHOLE_REPLY * sent.timeout_s:g} s"
            do = "allow more time (--call-timeout-s), or put fewer calls in flight"
            raise self._failure(CallTimeoutError(f"{self.at} did not {late}: {do}")) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            message = f"{self.at} broke off its reply: {brief(f'{type(error).__name__}: {error}')}"
            raise self._failure(BrokenReplyError(message)) from error
        finally:
            with self._lock:
                self._under_way.remove(sent)
        with self._lock:
            for later in self._under_way:
                if later.sent_s > sent.sent_s:
                    later.silent_from_s = time.monotonic()
        return reply

    def close(self) -> None:
        """End the requests under way, and all later ones, with CallCancelledError."""
        self._is_closed = True
        with suppress(IndexError):  # another thread may close them, too
            while True:
                self._idle.pop().close()
        with self._lock:
            connected = [sent.connected for sent in self._under_way if sent.connected]
        for each in connected:
            with suppress(OSError):  # it ended by itself
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # under TLS, from any thread

    def _send(self, sent: _Request, path: str, content: bytes) -> Reply:
        """Send a request on an idle connection, or a new one, and read its reply."""
        method = "POST" if content else "GET"
        lines = [f"{method} {self._path}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        if content:
            lines.append(f"Content-Length: {len(content)}")
        message = "\r\n".join([*lines, "", ""]).encode("ascii") + content
        while True:
            try:
                connected, is_used = self._idle.pop(), True
            except IndexError:
                connected, is_used = self._connect(sent.timeout_s), False
            sent.connected, is_kept = connected, False
            try:
                if self._is_closed:  # `close` may have missed this connection
                    raise self._failure()
                connected.settimeout(sent.timeout_s)
                with suppress(*_ENDED):  # a request may be refused before all of it is read
                    connected.sendall(message)
                with http.client.HTTPResponse(sent, method=method) as reply:  # type: ignore[arg-type]  # a file's maker
                    reply.begin()
                    body = self._read(reply)
                is_kept = not reply.will_close
                return Reply(reply.status, body, _retry_after_s(reply.getheader("Retry-After")))
            except _ENDED:
                if sent.is_answered or not is_used:
                    raise
            finally:
                if is_kept:
                    self._idle.append(connected)
                else:
                    connected.close()
                if self._is_closed:  # in the meantime
                    self.close()

    def _read(self, reply: http.client.HTTPResponse) -> bytes:
        """The body of a reply, whole."""
        if reply.status // 100 == _REDIRECTION:
            place = brief(reply.getheader("Location") or "nowhere")
            raise BadRequestError(
                f"{self.at} answered {reply.status}: it points to {place!r}; nothing was sent "
                "there: name that address with --ollama-host if you mean it"
            )
        parts, size = [], 0
        while part := reply.read1(_AT_ONCE):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise BadReplyError(f"{self.at} sent more than {MOST_BYTES} bytes: unread")
        if reply.length or self._is_closed:  # which may look like the end of a reply
            raise http.client.IncompleteRead(b"", reply.length)
        return b"".join(parts)

    def _connect(self, timeout_s: float) -> socket.socket:
        """A new connection, through the proxy if there is one."""
        if self._is_closed:
            raise self._failure()
        proxy = self._proxy and self._proxy[0]
        first = (proxy.hostname or "", proxy.port) if proxy else self._address
        connect_s = min(timeout_s, CONNECT_S)
        connection = http.client.HTTPConnection(*first, timeout=connect_s)
        if self._tls:
            connection = http.client.HTTPSConnection(*first, timeout=connect_s, context=self._tls)
            if proxy:
                connection.set_tunnel(*self._address, headers=_credentials(proxy))
        try:
            connection.connect()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            connection.close()
            why = "" if isinstance(error, ConnectionRefusedError) else f" ({brief(str(error))})"
            do = "name the host in NO_PROXY, or another proxy" if proxy else self._start
            message = f"no {self._server} answers at {self.at}{why}: {do}"
            raise self._failure(ServerUnreachableError(message)) from error
        return connection.sock

    def _failure(self, error: OllamaError | None = None) -> OllamaError:
        """The error of a request; that it was cancelled, where that is why."""
        if error and not self._is_closed:
            return error
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
    return context


def proxy_to(url: str) -> tuple[SplitResult, str] | None:
    """The proxy that the environment names for a URL, with its port, and the variable that does.

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
    if not proxy.username:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user).decode()}"}


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
