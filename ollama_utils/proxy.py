"""A server on loopback that stands before a model server and rewords what a user says last.

By default a request is first sent as it is, and reworded where its reply refuses; the beginning of
a reply is held back until that is known. Everything else, requests and replies, is passed on as it
is, as it comes. The headers of a reply say what was done to its request: `X-Mutagym-Adopted`
(`true` or `false`), `-Mutator`, `-Rewording` (what was sent in place of the user's text) and `-Why`
(why it was sent as it was), percent-encoded.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ollama_utils.hosts import OPENAI, is_loopback, server_url, speaks_openai
from ollama_utils.http import CONNECT_S, brief, proxy_to, trusted_certificates
from ollama_utils.thoughts import MARKS, split_thoughts
from ollama_utils.types import is_text
from records.errors import UserError, describe
from records.json_lines import parse_json
from records.terminal import write_stderr

ADDRESS = "127.0.0.1"
MARK = "X-Mutagym-Proxy"
"""A header of every request that a proxy sends: one that comes back has it already."""
MAX_BODY_BYTES = 2**26
"""Bytes of a request that may be reworded, images and all; a longer one is refused (413)."""
HELD_CHARS = 240
"""Characters of a reply that are held back: a refusal says so in its first sentences."""
MAX_CHARS = 600
"""Characters in a header: 7 KiB of percent-encoded emoji, where clients read 8."""
_CHATS = ("/api/chat", "/v1/chat/completions")
_GENERATE = "/api/generate"
_OF_CONNECTION = frozenset(
    {"connection", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization"}
    | {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that belong to a connection and not to a message (RFC 9110, 7.6.1)."""
_LOCAL_NAMES = (".localhost", ".local", ".internal")
"""Ends of names that no site on the internet has, but a page of the local network may."""


@dataclass(frozen=True, kw_only=True)
class ProxyRewording:
    """What became of a text that a user sent."""

    text: str
    """What is sent on."""
    mutator: str = ""
    """What was to reword it; empty where nothing was."""
    why: str = ""
    """Why the text is sent on as it was, in a word; empty where it was reworded."""


Refuses = Callable[[str], bool]
"""Whether a reply refuses, by how it begins."""
Reword = Callable[[str], Future[ProxyRewording]]
"""Begins to reword a text; called on the event loop, so it waits for nothing."""


class ProxyServer:
    """The server, on a thread of its own within `with`.

    Args:
        upstream: the base URL of a server, `openai:` before that of an OpenAI-compatible one.
        reword: None: everything is passed on as it is.
        refuses: says when a request that was sent as it is has to be reworded; None: always.
        port: of 127.0.0.1; 0 takes a free one.
        timeout_s: the longest silence of the server, and the time for a rewording.

    Raises:
        UserError: the port cannot be had.
        ValueError: the proxy or the certificates that the environment names cannot be used.
    """

    def __init__(
        self,
        upstream: str,
        reword: Reword | None,
        refuses: Refuses | None = None,
        *,
        port: int,
        timeout_s: float,
    ) -> None:
        self._upstream, self._base = upstream, upstream.removeprefix(OPENAI)
        self._reword, self._refuses, self._timeout_s = reword, refuses, timeout_s
        self._tls = trusted_certificates()
        self._proxy = None if is_loopback(self._base) else proxy_to(self._base)
        try:
            self._socket = socket.create_server((ADDRESS, port))
        except OSError as error:
            raise UserError(
                f"cannot listen at {ADDRESS} port {port}: {error.strerror}; name another by --port"
            ) from error
        self.url = f"http://{ADDRESS}:{self._socket.getsockname()[1]}"
        """Where it listens."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_error: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(
            # A connection for each request: one that is kept may be closed just when it is used.
            connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(
                sock_connect=min(CONNECT_S, self._timeout_s), sock_read=self._timeout_s
            ),
            auto_decompress=False,
            proxy=self._proxy and self._proxy[0].geturl(),  # `trust_env` would read ~/.netrc, too
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that hangs up ends the server's work for it
            auto_decompress=False,
            access_log=None,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, or say why not."""
        path = request.path
        if MARK in request.headers:
            text = "this request came through a mutagym proxy: name the server itself as its host"
            return _refusal(path, 508, text)
        if not _is_local(f"http://{request.headers.get('Host', '')}", _LOCAL_NAMES):
            text = "the Host of a request must be localhost or a loopback address"
            return _refusal(path, 403, text)
        if speaks_openai(self._upstream) and not path.startswith("/v1/"):
            text = f"the server at {server_url(self._upstream)} speaks OpenAI's API alone: /v1/..."
            return _refusal(path, 501, text)
        unread = request.content if request.can_read_body else None
        if request.method != "POST" or path not in {*_CHATS, _GENERATE}:
            return await self._pass_on(request, unread, {})
        origin = request.headers.get("Origin", "")
        is_web_page = origin.startswith(("http", "null")) and not _is_local(origin)
        if self._reword is None or is_web_page:
            # A rewording would call models before the server has seen which page asks.
            why = "off" if self._reword is None else "web page"
            return await self._pass_on(request, unread, _headers(ProxyRewording(text="", why=why)))
        return await self._answer_chat(request, path, self._reword)

    async def _answer_chat(
        self, request: web.Request, path: str, reword: Reword
    ) -> web.StreamResponse:
        """Answer a request in which there may be a text to reword."""
        raw = await request.read()
        try:
            body = parse_json(raw)
        except ValueError:  # the server says what is wrong with it
            body = None
        place = _user_text(path, body)
        if place is None:
            made = ProxyRewording(text="", why="no user text")
            return await self._pass_on(request, raw, _headers(made))
        holder, key = place
        if self._refuses:
            as_it_is = _headers(ProxyRewording(text="", why="not refused"))
            failed = _headers(ProxyRewording(text="", why="not answered"))
            reply = await self._send(request, raw, failed, {"Accept-Encoding": "identity"})
            if isinstance(reply, web.Response):
                return reply
            async with reply:
                if reply.status != HTTPStatus.OK:
                    return await self._relay(request, reply, failed)
                held, said = await _beginning(reply)
                if not (said and self._refuses(said)):
                    return await self._relay(request, reply, as_it_is, held)
                made = await self._reworded(reword, holder[key])
                if made.text == holder[key]:
                    return await self._relay(request, reply, _headers(made), held)
        else:
            made = await self._reworded(reword, holder[key])
        if made.text != holder[key]:
            holder[key] = made.text
            raw = json.dumps(body).encode()
        return await self._pass_on(request, raw, _headers(made))

    async def _reworded(self, reword: Reword, text: str) -> ProxyRewording:
        """What became of a text; a rewording that nobody waits for any more is left to itself."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reword(text)), self._timeout_s)
        except TimeoutError:
            return ProxyRewording(text=text, why="late")
        except Exception as error:  # noqa: BLE001 - the user's question is asked all the same
            write_stderr(f"not reworded: {describe(error)}")
            return ProxyRewording(text=text, why="failed")

    async def _pass_on(
        self,
        request: web.Request,
        body: bytes | aiohttp.StreamReader | None,
        more: dict[str, str],
    ) -> web.StreamResponse:
        """Send a request to the server, once, and its reply to the client as it comes."""
        reply = await self._send(request, body, more)
        if isinstance(reply, web.Response):
            return reply
        async with reply:
            return await self._relay(request, reply, more)

    async def _send(
        self,
        request: web.Request,
        body: bytes | aiohttp.StreamReader | None,
        more: dict[str, str],
        own: Mapping[str, str] = MappingProxyType({}),
    ) -> aiohttp.ClientResponse | web.Response:
        """Send a request to the server, with headers of our `own`; its reply, or why there is none.

        `more` are headers for the client.
        """
        asked = request.rel_url.raw_path_qs
        url = self._base + (asked.removeprefix("/v1") if speaks_openai(self._upstream) else asked)
        headers = _passed_on(request.headers)
        headers.update({MARK: "1", **own})
        if isinstance(body, bytes):
            headers["Content-Length"] = str(len(body))
        target = URL(url, encoded=True)
        try:
            return await self._session.request(
                request.method, target, data=body, headers=headers, allow_redirects=False
            )
        except TimeoutError:
            text = f"{self._upstream} did not answer within {self._timeout_s:g} s"
            return _refusal(request.path, 504, text, more)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = f"{self._upstream} does not answer: {brief(describe(error))}"
            return _refusal(request.path, 502, text, more)

    async def _relay(
        self,
        request: web.Request,
        reply: aiohttp.ClientResponse,
        more: dict[str, str],
        held: bytes = b"",
    ) -> web.StreamResponse:
        """Give the client a reply of the server: what was held back of it, and the rest."""
        answer = web.StreamResponse(status=reply.status, headers=_passed_on(reply.headers))
        answer.headers.update(more)
        await answer.prepare(request)
        try:
            await answer.write(held)
            async for part in reply.content.iter_any():
                await answer.write(part)
        except (aiohttp.ClientError, TimeoutError):
            if request.transport is not None:  # to end it well would say that it is whole
                request.transport.abort()
        else:
            await answer.write_eof()
        return answer


async def _beginning(reply: aiohttp.ClientResponse) -> tuple[bytes, str]:
    """What a reply begins with, up to HELD_CHARS that it says, and what that is, less thoughts."""
    held = rest = b""
    streamed = said = ""
    with suppress(aiohttp.ClientError, TimeoutError):  # whoever reads on meets it again
        async for part in reply.content.iter_any():
            held += part
            *lines, rest = (rest + part).split(b"\n")
            streamed += "".join(map(_said, lines))
            said = split_thoughts(streamed, MARKS)[1]
            if len(said) >= HELD_CHARS:
                return held, said
    return held, said or split_thoughts(_said(rest) or _said(held), MARKS)[1]


def _said(line: bytes) -> str:
    """What a line of a stream, or a reply in one piece, says by either API; "" of anything else."""
    match _parsed(line.decode("utf-8", "replace").removeprefix("data:")):
        case {"message": {"content": str(said)}} | {"response": str(said)}:
            return said
        case {"choices": [{"delta": {"content": str(said)}}, *_]}:
            return said
        case {"choices": [{"message": {"content": str(said)}}, *_]}:
            return said
    return ""


def _parsed(text: str) -> Any:  # noqa: ANN401 - JSON
    """The JSON of a text, and None of what is none, such as the beginning of one."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _user_text(path: str, body: Any) -> tuple[dict[str, Any], str] | None:  # noqa: ANN401 - JSON
    """Where the last text of the user stands in a request: an object of its body, and its key.

    In a chat it is the last text of the last message of the role `user`, else the prompt, unless
    that is raw (it has the model's own marks) or has a suffix (the model fills a gap).
    """
    places: list[tuple[Any, str]] = []
    match body:
        case {"prompt": str()} if path == _GENERATE and not (body.get("raw") or body.get("suffix")):
            places = [(body, "prompt")]
        case {"messages": list(messages)} if path in _CHATS:
            users = [m for m in messages if isinstance(m, dict) and m.get("role") == "user"]
            content = users[-1].get("content") if users else None
            parts = content if isinstance(content, list) else []
            places = [(each, "content") for each in users[-1:]] + [(part, "text") for part in parts]
    found = [
        (holder, key)
        for holder, key in places
        if isinstance(holder, dict) and isinstance(holder.get(key), str)
    ]
    return found[-1] if found else None


def _is_local(url: str, ends: tuple[str, ...] = ()) -> bool:
    """Whether a URL names this machine, by a loopback address or a name with one of these ends."""
    try:
        return is_loopback(url) or (urlsplit(url).hostname or "").endswith(ends)
    except ValueError:
        return False


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers that belong to a message, and can be written again."""
    kept = headers.items()
    return CIMultiDict((k, v) for k, v in kept if k.lower() not in _OF_CONNECTION and is_text(v))


def _headers(made: ProxyRewording) -> dict[str, str]:
    """What the headers of a reply say of the text of its request."""
    values = {
        "Adopted": "false" if made.why else "true",
        "Mutator": made.mutator,
        "Rewording": "" if made.why else made.text,
        "Why": made.why,
    }
    return {
        f"X-Mutagym-{name}": quote(value[:MAX_CHARS], " '()*!?:;@$/,", errors="replace")
        for name, value in values.items()
        if value
    }


def _refusal(
    path: str, status: int, text: str, headers: dict[str, str] | None = None
) -> web.Response:
    """An error of the proxy's own, in the form of the API that was asked."""
    error: object = text
    if path.startswith("/v1/"):
        error = {"message": text, "type": "proxy_error", "param": None, "code": status}
    response = web.json_response({"error": error}, status=status, headers=headers)
    response.force_close()
    return response
