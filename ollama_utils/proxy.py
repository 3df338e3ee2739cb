"""A server on loopback that stands before a model server and rewords what a user says last.

All else, requests and replies, is passed on as it is, as it comes.

What was done to a request is told in the headers of its reply: `X-Mutagym-Adopted` (`true` or `false`),
`-Mutator`, `-Rewording` (what was sent in place of the user's text) and `-Why` (why nothing was). Each has a
value for each text of the message, by comma, percent-encoded in UTF-8.

A request is sent to the server that was named, once, and nowhere else: no redirection is followed. It carries
a mark, by which it is refused where it comes back. That of a web page is not reworded, for a rewording calls
models before the server has seen who asks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ollama_utils.hosts import OPENAI, is_loopback, server_url, speaks_openai
from ollama_utils.http import CONNECT_S, trusted_certificates
from ollama_utils.plans import POLL_S
from ollama_utils.types import is_text
from ollama_utils.user_text import CHATS, PROMPTS, find_user_text
from records.errors import describe
from records.interrupt import raise_if_interrupted
from records.terminal import write_stderr

logger = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
MARK = "X-Mutagym-Proxy"
"""A header that every request of a proxy has, and the refusal of one that came back."""
TOLD = "X-Mutagym-"
"""What the headers of replies that tell of a rewording begin with."""
MOST_BODY_BYTES = 2**26
"""Bytes of a request that may be reworded, images and all: a longer one is refused. What is never reworded is
passed on as it comes, at any length."""
MOST_TOLD_BYTES = 2**11
"""Bytes of such a header's value; clients read headers of 8 KiB, all of them together in 16."""
_OF_A_CONNECTION = frozenset(
    {
        *(
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ),
        *("proxy-authenticate", "proxy-authorization", "host", "expect"),
    }
)
"""Headers that are no part of a message, but of the connection it comes by (RFC 9110, 7.6.1)."""
_LOCAL_NAMES = (".localhost", ".local", ".internal")
"""Ends of names that no page on the internet has: those that Ollama takes for this machine's, too."""
_APPS = frozenset({"app", "file", "tauri", "vscode-webview", "vscode-file"})
"""Schemes of the origins of programs with a page inside: those that Ollama serves."""
_MOST_ERROR_CHARS = 300
_PASSED_ON = frozenset({2, 4, 5})
"""Hundreds of the statuses that are passed on."""
_SHUTDOWN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ProxyRewording:
    """What became of a text of a user's."""

    text: str
    """What is sent on."""
    mutator: str = ""
    """What was to reword it; empty where nothing was."""
    why: str = ""
    """Why the text is sent on as it was, in a word; empty where it was reworded."""


Reword = Callable[[str], Future[ProxyRewording]]
"""Begins to reword a text, on threads of its own; called on the event loop, so it waits for nothing."""


class ProxyError(ValueError):
    """The proxy cannot listen there, or cannot stand before this server."""


class ProxyServer(AbstractContextManager["ProxyServer"]):
    """The server, on a thread of its own from `__enter__` to the end of `with`.

    Args:
        upstream: the base URL of a server, `openai:` before that of an OpenAI-compatible one.
        reword: None: everything is passed on as it is.
        port: of 127.0.0.1; 0 takes a free one.
        timeout_s: the longest silence of the server within a reply, and time for a rewording; after that the
            text is sent on as it was.

    Raises:
        ProxyError: the port cannot be had, or what is sent to the server comes back to a proxy.
    """

    def __init__(
        self, upstream: str, reword: Reword | None, *, port: int, timeout_s: float
    ) -> None:
        self.upstream = upstream
        self.url = ""
        """Where it listens."""
        self._reword = reword
        self._port = port
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession
        self._listens: Future[str] = Future()
        self._ended: Future[None] = Future()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = self._listens.result()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()
        self._thread.join()

    def wait(self) -> None:
        """Wait for ever; Ctrl-C interrupts the wait."""
        while not self._ended.done():
            self._thread.join(POLL_S)
            raise_if_interrupted()
        self._ended.result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            (self._ended if self._listens.done() else self._listens).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(self._open_session())
            runner = web.AppRunner(
                self._app(),
                handler_cancellation=True,  # a client that hangs up ends the server's work for it
                auto_decompress=False,
                access_log=None,
                logger=_http_logger(),
                shutdown_timeout=_SHUTDOWN_S,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await self._listen(runner)
            await self._check_no_loop()
            self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
            self._listens.set_result(f"http://{ADDRESS}:{runner.addresses[0][1]}")
            await stopped.wait()

    async def _listen(self, runner: web.AppRunner) -> None:
        try:
            await web.TCPSite(runner, ADDRESS, self._port, backlog=1024).start()
        except OSError as error:
            raise ProxyError(
                f"cannot listen at {ADDRESS} port {self._port}: {error.strerror}; name another with --port"
            ) from error

    def _open_session(self) -> aiohttp.ClientSession:
        base = server_url(self.upstream)
        return aiohttp.ClientSession(
            # Each request has a connection of its own: one that is kept may be closed just when it is used.
            connector=aiohttp.TCPConnector(
                limit=0,
                force_close=True,
                ssl=trusted_certificates() if base.startswith("https:") else True,
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(CONNECT_S, self._timeout_s), sock_read=self._timeout_s
            ),
            auto_decompress=False,
            proxy=_proxy_of_environment(
                base
            ),  # `trust_env` would send the passwords of ~/.netrc, too
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    def _app(self) -> web.Application:
        app = web.Application(
            client_max_size=MOST_BODY_BYTES, middlewares=[self._errors, self._guard]
        )
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _check_no_loop(self) -> None:
        """Send a request with the mark: whatever the server is called, it is no proxy if it answers that."""
        url = URL(
            _joined(self.upstream, "/v1/models" if speaks_openai(self.upstream) else "/api/version")
        )
        soon = aiohttp.ClientTimeout(total=min(CONNECT_S, self._timeout_s))
        with suppress(aiohttp.ClientError, OSError):  # not there now: that is said when it is asked
            async with self._session.get(
                url, headers={MARK: "1"}, allow_redirects=False, timeout=soon
            ) as reply:
                if MARK in reply.headers:
                    raise ProxyError(
                        f"{self.upstream} leads to a mutagym proxy, and requests would go in a circle: name "
                        "the model server itself with --ollama-host"
                    )

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What goes wrong here, in the words of the API that was asked."""
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(
                request, 413, f"the proxy reads requests of at most {MOST_BODY_BYTES >> 20} MiB"
            )
        except web.RequestPayloadError as error:
            return _refusal(request, 400, describe(error))
        except (ConnectionError, web.HTTPException):
            raise
        except Exception as error:
            logger.exception("%s %s", request.method, request.path)
            return _refusal(request, 500, describe(error))

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what came back, and pages of the internet that call this machine by a name of theirs.

        `Origin`, by which a server tells other pages from programs, is passed on to it.
        """
        if MARK in request.headers:
            text = "this request came through a mutagym proxy before: it would go in a circle"
            return _refusal(request, 508, text, {MARK: "1"})
        if not _is_local(request.headers.get("Host", "")):
            return _refusal(
                request, 403, "the Host of a request must be localhost or a loopback address"
            )
        return await handler(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if speaks_openai(self.upstream) and not path.startswith("/v1/"):
            text = f"the server at {server_url(self.upstream)} speaks OpenAI's API alone: ask for /v1/..."
            return _refusal(request, 501, text)
        unread = request.content if request.can_read_body else None
        if request.method != "POST" or path not in {*CHATS, *PROMPTS}:
            return await self._pass_on(request, unread, {})
        why = _why_not(request)
        if self._reword is None or why:
            return await self._pass_on(
                request, unread, _headers([ProxyRewording(text="", why=why or "off")])
            )
        return await self._pass_on(
            request, *await self._reworded(self._reword, path, await request.read())
        )

    async def _reworded(
        self, reword: Reword, path: str, raw: bytes
    ) -> tuple[bytes, dict[str, str]]:
        """The body that is sent on, and what the headers tell of it."""
        try:
            found = find_user_text(path, raw)
        except ValueError:  # the server says what is wrong with it
            found = None
        if found is None:
            return raw, _headers([ProxyRewording(text="", why="no user text")])
        made = await asyncio.gather(*(self._reworded_text(reword, text) for text in found.texts))
        texts = tuple(each.text for each in made)
        return raw if texts == found.texts else found.reworded(texts), _headers(made)

    async def _reworded_text(self, reword: Reword, text: str) -> ProxyRewording:
        """What became of a text; a rewording that nobody waits for any more is cancelled."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reword(text)), self._timeout_s)
        except TimeoutError:
            return ProxyRewording(text=text, why="late")
        except Exception as error:  # noqa: BLE001 - whatever it was: the user's question is asked all the same
            write_stderr(f"not reworded: {describe(error)}")
            return ProxyRewording(text=text, why="failed")

    async def _pass_on(
        self,
        request: web.Request,
        body: bytes | aiohttp.StreamReader | None,
        told: Mapping[str, str],
    ) -> web.StreamResponse:
        """Ask the server, and pass its reply on as it comes."""
        async with AsyncExitStack() as stack:
            try:
                reply = await stack.enter_async_context(self._send(request, body))
            except TimeoutError:
                text = f"{self.upstream} did not answer within {self._timeout_s:g} s"
                return _refusal(request, 504, text, told)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                text = f"{self.upstream} does not answer: {describe(error)[:_MOST_ERROR_CHARS]}"
                return _refusal(request, 502, text, told)
            if reply.status // 100 not in _PASSED_ON:
                text = f"{self.upstream} answered with status {reply.status}, which is not followed"
                return _refusal(request, 502, text, told)
            headers = _passed_on(reply.headers)
            headers.update(told)
            answer = web.StreamResponse(status=reply.status, headers=headers)
            await answer.prepare(request)
            try:
                async for chunk in reply.content.iter_any():
                    await answer.write(chunk)
            except (aiohttp.ClientError, TimeoutError):
                # It broke off, and so does this: a reply that ends well would say that it is whole.
                if request.transport is not None:
                    request.transport.abort()
            else:
                await answer.write_eof()
            return answer

    def _send(self, request: web.Request, body: bytes | aiohttp.StreamReader | None) -> Any:  # noqa: ANN401 - aiohttp's
        headers = _passed_on(request.headers)
        headers[MARK] = "1"
        if isinstance(body, bytes):
            headers["Content-Length"] = str(len(body))
        url = URL(_joined(self.upstream, request.rel_url.raw_path_qs), encoded=True)
        return self._session.request(
            request.method, url, data=body, headers=headers, allow_redirects=False
        )


def _why_not(request: web.Request) -> str:
    """Why a request is passed on unread, in a word; empty where it may be reworded."""
    origin = request.headers.get("Origin")
    if origin is not None and not _is_local_origin(origin):
        return "web page"
    return "no user text" if "Content-Encoding" in request.headers else ""


def _is_local_origin(origin: str) -> bool:
    """Whether an `Origin` is a page of this machine's or a program's, such as Ollama serves unasked."""
    try:
        return urlsplit(origin).scheme in _APPS or is_loopback(origin)
    except ValueError:
        return False


def _proxy_of_environment(url: str) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name for a server; this machine has none."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


def _joined(upstream: str, path: str) -> str:
    """The URL of a path at a server, as it stands; an OpenAI-compatible one's has its own for `/v1`."""
    if speaks_openai(upstream):
        return upstream.removeprefix(OPENAI) + path.removeprefix("/v1")
    return upstream + path


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers of a message that are its own, and that can be written again."""
    named = {name.strip().lower() for name in ",".join(headers.getall("Connection", ())).split(",")}
    left_out = named | _OF_A_CONNECTION
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in left_out
        and not name.lower().startswith(TOLD.lower())
        and is_text(value)
    )


def _headers(made: Sequence[ProxyRewording]) -> dict[str, str]:
    """What the headers of a reply tell of a message's texts."""
    told = {
        "Adopted": ["false" if each.why else "true" for each in made],
        "Mutator": [each.mutator for each in made],
        "Rewording": ["" if each.why else each.text for each in made],
        "Why": [each.why for each in made],
    }
    return {f"{TOLD}{name}": _listed(values) for name, values in told.items() if any(values)}


def _listed(values: Iterable[str]) -> str:
    """Values by comma, percent-encoded, the last ones left out or cut where they are too long."""
    left, listed = MOST_TOLD_BYTES, []
    for value in values:
        shown = _encoded(value, left)
        left -= len(shown) + 1
        listed.append(shown)
        if left <= 0:
            break
    return ",".join(listed)


def _encoded(text: str, most: int) -> str:
    """A text percent-encoded; one that takes more bytes is cut after a whole character, with an ellipsis."""
    whole = quote(text[: most + 1], safe=" '()*!?:;@$/", errors="replace")
    if len(whole) <= most:
        return whole
    end = quote("…")
    shown, room = [], most - len(end)
    for char in text:
        part = quote(char, safe=" '()*!?:;@$/", errors="replace")
        room -= len(part)
        if room < 0:
            break
        shown.append(part)
    return "".join(shown) + end


def _refusal(
    request: web.Request, status: int, text: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An error of the proxy's own, in the form of the API that was asked."""
    error: object = text
    if request.path.startswith("/v1/"):
        error = {"message": text, "type": "proxy_error", "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=headers)


def _is_local(host: str) -> bool:
    """Whether the Host of a request names this machine."""
    try:
        name = urlsplit(f"http://{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(f"http://{host}") or name.endswith(_LOCAL_NAMES)


def _http_logger() -> logging.Logger:
    """Logs nothing of requests that are not HTTP: their clients get an error. Our errors are logged above."""
    quiet = logging.getLogger(f"{__name__}.http")
    quiet.setLevel(logging.CRITICAL)
    return quiet
