"""The HTTP client under `ollama.Client`: every call bounded in time and in bytes, at little CPU time.

`OfficialClient` is `ollama.Client` on three parts of ours, each for what httpx's own does not do:

- `HttpClient`: to each request httpx joins its URL, headers, cookies and authentication anew, and looks for
  cookies in the reply, which is half of the CPU time of a call. Ours to one path of one server differ in
  nothing but their JSON.
- `ExclusiveTransport` lends a connection to one call at a time. httpx's pool may close a connection that it
  has just given to another thread, whose call then hangs until its read timeout (encode/httpcore #1110; seen
  about once in 10,000 calls with 64 to 200 threads), and its bookkeeping grows with the square of the calls
  in flight.
- `BoundedConnection` bounds the whole reply in time and size. httpx bounds a silence only: a server that
  sends a byte now and then would never be given up, and one that never stops would fill the memory.

No redirection is followed: the prompt, and the key beside it, go to the server that was named, and nowhere
else.

Well-kept clients in its place, measured on loopback against a server of 50 ms: CPU-s per 1,000 calls, 16 and
64 calls in flight (2 shared cores; the least of 12 runs in turn, with medians .60-.72 and .60 for this one):

| under `ollama.Client` | 16 | 64 |
|---|---|---|
| this | .56 | .48 |
| a urllib3 pool, bounded as here (with httpx's own request path) | .75 (.89) | .61 (.77) |
| aiohttp on a thread of its own (likewise) | .81 (.89) | .62 (.87) |
| this transport with httpx's own request path | .81 | .65 |
| one `ollama.Client` a thread, a bound on each read only | 1.00 | .96 |
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import io
import math
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from ollama_utils.official import ollama
from ollama_utils.streams import StreamedFailureError, join_lines

if TYPE_CHECKING:
    import socket

    from _typeshed import WriteableBuffer


MOST_BYTES = 2**25
"""The longest reply that is read: 32 MiB. Far more than a model says in one reply, and 300 embeddings of 4096
numbers as JSON; so that 64 calls in flight hold 2 GiB at worst."""
MOST_MARKS = 2**21
"""The most commas and opening brackets in a reply that is read: each may become an object of 60 bytes or
more once it is parsed. 300 embeddings of 4096 numbers have 1.2 million."""

MOST_STREAMED = 7 * 2**22
"""The longest stream of parts that is kept: 28 MiB, some 290,000 tokens of Ollama's or 130,000 of OpenAI's.
It is cut there, after its last whole part; what is left of MOST_BYTES is for the frames of its chunks."""


class CallWatch(Protocol):
    """Who looks after one call while its reply is waited for."""

    def counts_from_s(self) -> float:
        """Since when the reply can be late, by the monotonic clock; asked once it seems late.

        A wait in the server's own queue is no fault of the reply.
        """
        ...

    def arrived(self) -> None:
        """Hear that some of the reply came; a gateway's or a server's error is none."""
        ...

    def check(self) -> None:
        """Raise what ends the call before its time; asked every second."""
        ...


call_watch: ContextVar[CallWatch | None] = ContextVar("call_watch", default=None)
"""Looks after this thread's call; None: nobody."""

RETRY_AFTER = "Retry-After"
CUT = "cut"
"""The extension of a response that tells whether it is a stream that was cut."""

_Stream = httpcore.NetworkStream

_AT_ONCE = 2**16
_MOST_QUOTED = 50
_MOST_EARLY = 100
_REDIRECTIONS = 3
"""The hundreds of their statuses."""
_PORTS = {"http": 80, "https": 443}
_NETWORK = httpcore.SyncBackend()
_LOOK_S = 1.0
"""Who waits for a reply looks up as often: the call may have to end."""
_WHOLE = 10.0
"""However long a call waits in the server's queue, and however many words come: it is given up after so many
times the seconds that it may keep silent."""
_IDLE_S = 30.0
"""A connection that is idle for so long is closed: after a burst of calls their files would stay open."""
_STREAMS = frozenset({"application/x-ndjson", "text/event-stream"})
_PROXIES = frozenset({"http", "https"})
_TLS_FILES = {"SSL_CERT_FILE": "a PEM file", "SSLKEYLOGFILE": "a writable file"}


class RedirectedError(httpx.RequestError):
    """A reply that points elsewhere (3xx), where nothing was sent.

    Args:
        status: its HTTP status.
        location: where it points; "" where it does not say.
    """

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"redirected by {status}")
        self.status = status
        self.location = location


class EncodedError(httpx.DecodingError):
    """A reply in an encoding that was not asked for: not a byte of it is decoded, nor read."""


class OfficialClient(ollama.Client):
    """`ollama.Client` on a transport.

    Args:
        host: the server's base URL.
        transport: reads replies whole.
        given: what else `httpx.Client` is given.
    """

    def __init__(self, host: str, *, transport: httpx.BaseTransport, **given: Any) -> None:  # noqa: ANN401 - httpx's
        # ollama.Client would name httpx.Client here, and does nothing else.
        super(ollama.Client, self).__init__(HttpClient, host, transport=transport, **given)


class StreamingClient(ollama.Client):
    """The client of an `OfficialClient` once more; what it is asked to stream comes as one object, joined.

    Args:
        whole: the client that it sends by.
    """

    def __init__(self, whole: OfficialClient) -> None:
        self._client = whole._client  # noqa: SLF001 - the package gives no other way to share it

    def _request(self, cls: type[Any], *asked: Any, stream: bool = False, **given: Any) -> Any:  # noqa: ANN401, ARG002 - the package's
        """The reply to a request that asks for a stream.

        Raises:
            ollama.ResponseError: the status is not 2xx, or a part tells of a failure.
            ValueError, TypeError, AttributeError: the reply cannot be read.
        """
        response = self._request_raw(*asked, **given)  # type: ignore[no-untyped-call]  # the package's
        try:
            joined = join_lines(response.content, cut=bool(response.extensions.get(CUT)))
        except StreamedFailureError as error:
            raise ollama.ResponseError(error.said, error.status) from None
        return cls(**joined)


class HttpClient(httpx.Client):
    """`httpx.Client` with a short way for a request that is only JSON; it follows no redirection."""

    def __init__(self, *, transport: httpx.BaseTransport, **given: Any) -> None:  # noqa: ANN401 - httpx's
        # The package asks for redirections to be followed.
        super().__init__(transport=transport, **given | {"follow_redirects": False})
        self._bounded = transport
        self._templates: dict[httpx.URL | str, httpx.Request] = {}

    def request(self, method: str, url: httpx.URL | str, **given: Any) -> httpx.Response:  # noqa: ANN401 - httpx's
        """The response to a request; any other than these goes httpx's own way."""
        if not given.keys() <= {"json"} or self.is_closed:
            return super().request(method, url, **given)
        template = self._templates.get(url)
        if template is None:
            template = self._templates[url] = self.build_request("GET", url)
        request = httpx.Request(
            method, template.url, headers=template.headers, extensions=template.extensions, **given
        )
        for hook in self.event_hooks["request"]:
            hook(request)
        response = self._bounded.handle_request(request)
        response.request = request
        for hook in self.event_hooks["response"]:
            hook(response)
        return response


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


class BoundedConnection(httpx.BaseTransport):
    """A connection for one call at a time, whose reply has to be there within the read timeout.

    That time counts from the call, or from what `call_watch` says, and is for its head and body
    together. A connection that the server closed
    since the last call is made anew. One that breaks off under a call is not: the server may have read it.

    Of the reply's head only its status and Retry-After are passed on: what else it says (cookies, a charset
    that would be a decompressor) is meant for browsers.

    Args:
        tls: the certificates that are trusted.
        proxy: the proxy on the way, if any: an http or https one.
    """

    def __init__(self, tls: ssl.SSLContext, proxy: httpx.Proxy | None) -> None:
        self._tls = tls
        self._proxy = proxy
        self._stream: _Stream | None = None
        self._origin: tuple[str, str, int | None] | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The reply, with its body read.

        Raises:
            httpx.TransportError: there is none; ReadTimeout when it is late.
            RedirectedError: it points elsewhere.
            EncodedError: it is compressed, though that was not asked for.
            OverflowError: it is too long.
        """
        limits_s = request.extensions.get("timeout", {})
        deadline = _Deadline(limits_s.get("read"))
        try:
            stream = self._connected(request.url, limits_s.get("connect"), deadline)
            with contextlib.suppress(
                httpcore.WriteError
            ):  # refused before it was read: the reply may say why
                stream.write(self._message(request), deadline.rest_s())
            reply = _begun(stream, request.method, deadline)
            if httpx.codes.is_success(reply.status):
                deadline.begun()
            return self._response(reply)
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            raise getattr(httpx, type(error).__name__)(str(error)) from error  # both name them alike
        except http.client.HTTPException as error:
            raise httpx.RemoteProtocolError(repr(error)) from error

    def close(self) -> None:
        """Close it; another call opens it again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _message(self, request: httpx.Request) -> bytes:
        """A request as it is written to the server, or to a proxy that passes on plain HTTP."""
        target, headers = request.url.raw_path, request.headers.raw
        if self._proxy is not None and request.url.scheme == "http":
            target, headers = str(request.url).encode("ascii"), [*_credentials(self._proxy), *headers]
        return _head(request.method, target, headers) + request.read()

    def _response(self, reply: http.client.HTTPResponse) -> httpx.Response:
        """A response whose head was read, with its body."""
        if reply.status // 100 == _REDIRECTIONS:
            raise RedirectedError(reply.status, reply.getheader("Location", ""))
        encoding = ",".join(reply.headers.get_all("Content-Encoding", ())).strip()
        if encoding.lower() not in {"", "identity"}:
            raise EncodedError(f"status {reply.status} with Content-Encoding {encoding[:_MOST_QUOTED]!r}")
        streams = reply.getheader("Content-Type", "").partition(";")[0].strip().lower() in _STREAMS
        body = reply.read(MOST_STREAMED if streams else MOST_BYTES)
        cut = streams and len(body) == MOST_STREAMED and not reply.isclosed()
        if sum(map(body.count, (b",", b"[", b"{"))) > MOST_MARKS:
            raise OverflowError(f"it has more than {MOST_MARKS} commas and brackets, the most that is read")
        if reply.length and not cut:
            raise httpx.RemoteProtocolError(f"its body ended {reply.length} bytes early")
        if reply.will_close or cut:
            self.close()
        content = body[: body.rfind(b"\n") + 1] if cut else body
        return httpx.Response(reply.status, headers=_passed_on(reply), content=content, extensions={CUT: cut})

    def _connected(self, url: httpx.URL, timeout_s: float | None, deadline: _Deadline) -> _Stream:
        """The open connection to a URL's server."""
        origin = (url.scheme, url.host, url.port)
        stream = self._stream
        # What is readable before a request is the end that the server made of it.
        if stream is None or origin != self._origin or stream.get_extra_info("is_readable"):
            self.close()
            stream = self._stream = self._connect(url, timeout_s, deadline)
            self._origin = origin
        return stream

    def _connect(self, url: httpx.URL, timeout_s: float | None, deadline: _Deadline) -> _Stream:
        first = url if self._proxy is None else self._proxy.url
        stream = _NETWORK.connect_tcp(_name(first), _port(first), timeout_s)
        try:
            if first.scheme == "https":
                stream = stream.start_tls(self._tls, _name(first), timeout_s)
            if self._proxy is not None and url.scheme == "https":
                _tunnel(stream, self._proxy, url, deadline)
                stream = stream.start_tls(self._tls, _name(url), timeout_s)
        except BaseException:
            stream.close()
            raise
        return stream


class _Deadline:
    """When a reply must be there.

    Args:
        limit_s: seconds from the call, or from what its watch says; None: there is time for ever.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = math.inf if limit_s is None else limit_s
        self._began_s = self._from_s = time.monotonic()
        self._watch = call_watch.get()
        self._has_begun = False
        self._look_s = 0.0

    def begun(self) -> None:
        """The head of a reply came that is no error: from now on all that comes is some of it."""
        self._has_begun = True
        self.arrived()

    def arrived(self) -> None:
        """Some bytes came."""
        if self._watch is not None and self._has_begun:
            self._watch.arrived()

    def rest_s(self, most_s: float = math.inf) -> float | None:
        """The seconds left for the next read or write, `most_s` at most; None: any number.

        Raises:
            Exception: what the call's watch ends it with.
            httpcore.ReadTimeout: there are none.
        """
        now_s = time.monotonic()
        if self._watch is not None:
            if now_s >= self._look_s:
                self._look_s = now_s + _LOOK_S
                self._watch.check()
            if now_s >= self._from_s + self._limit_s:
                self._from_s = max(self._from_s, self._watch.counts_from_s())
        late_s = min(self._from_s + self._limit_s, self._began_s + _WHOLE * self._limit_s)
        if now_s >= late_s:
            raise httpcore.ReadTimeout("the reply did not end in time")
        rest_s = min(late_s - now_s, most_s)
        return rest_s if rest_s < math.inf else None


class _Arriving(io.RawIOBase):
    """The bytes of one reply as they come, within bounds.

    Args:
        stream: where they come from.
        deadline: when the last one must be there.
    """

    def __init__(self, stream: _Stream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        data = None
        while data is None:
            rest_s = self._deadline.rest_s(_LOOK_S)
            with contextlib.suppress(httpcore.ReadTimeout):  # the deadline may have moved
                data = self._stream.read(min(len(view), _AT_ONCE), rest_s)
        if data:
            self._deadline.arrived()
        self._left -= len(data)
        if self._left < 0:
            raise OverflowError(f"it is longer than {MOST_BYTES} bytes, the most that is read")
        view[: len(data)] = data
        return len(data)

    def makefile(self, _: str) -> io.BufferedReader:
        """What the standard library's reader of HTTP asks a socket for."""
        return io.BufferedReader(self)


def _begun(stream: _Stream, method: str, deadline: _Deadline) -> http.client.HTTPResponse:
    """The final reply to a request that was written, its head read.

    The standard library passes over 100 alone, and gateways send 102 and 103 before a reply, too.
    """
    reply = http.client.HTTPResponse(cast("socket.socket", _Arriving(stream, deadline)), method=method)
    reply.begin()
    early = 0
    while 101 < reply.status < 200:  # noqa: PLR2004 - what may come before a final reply
        early += 1
        if early > _MOST_EARLY:
            raise httpx.RemoteProtocolError(f"more than {_MOST_EARLY} replies came before the final one")
        reply.headers = None  # type: ignore[assignment]  # so that it begins anew
        reply.begin()
    return reply


def _passed_on(reply: http.client.HTTPResponse) -> list[tuple[bytes, bytes]]:
    """The part of a reply's head that is passed on beside its status."""
    told = reply.getheader(RETRY_AFTER)
    return [] if told is None else [(RETRY_AFTER.encode(), told.encode("latin-1"))]


def _tunnel(stream: _Stream, proxy: httpx.Proxy, url: httpx.URL, deadline: _Deadline) -> None:
    """Have a proxy pass on what comes from now on."""
    name = _name(url)
    server = f"{f'[{name}]' if ':' in name else name}:{_port(url)}".encode()
    head = _head("CONNECT", server, [(b"Host", server), *_credentials(proxy)])
    stream.write(head, deadline.rest_s())
    reply = _begun(stream, "CONNECT", deadline)
    if not httpx.codes.is_success(reply.status):
        raise httpx.ProxyError(f"the proxy answered {reply.status} {reply.reason}")


def _head(method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A request up to its body."""
    lines = [b"%s %s HTTP/1.1" % (method.encode(), target), *(b"%s: %s" % pair for pair in headers)]
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise httpx.LocalProtocolError(
            "a header of it has two lines: is it from OLLAMA_API_KEY or OPENAI_API_KEY?"
        )
    return b"\r\n".join([*lines, b"\r\n"])


def _credentials(proxy: httpx.Proxy) -> list[tuple[bytes, bytes]]:
    """The credentials for a proxy, where its URL holds them."""
    if proxy.raw_auth is None:
        return []
    return [(b"Proxy-Authorization", b"Basic " + base64.b64encode(b":".join(proxy.raw_auth)))]


def _name(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii")


def _port(url: httpx.URL) -> int:
    return url.port or _PORTS[url.scheme]


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
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else trusted_certificates()
    except OSError as error:
        expected = " and ".join(
            f"{name}={os.environ[name]!r} to name {what}"
            for name, what in _TLS_FILES.items()
            if os.environ.get(name)
        )
        raise ValueError(f"expected {expected}: {error}: name another, or leave it unset") from error
    return ExclusiveTransport(lambda: BoundedConnection(tls, proxy))


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
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
