"""Who may use the routes under `/simulator/`: programs on this machine, and no web page that it shows.

A page of anybody's may send requests to this machine's ports. A browser names the page in `Origin`, sends
JSON to another site only after it was asked whether it may, and names in `Host` what the page called the
server, also where that name was bent to this machine's address. Programs send no `Origin`.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from simulator.state import STATE

CONTROL = "/simulator/"
"""What the paths of the guarded routes begin with."""
_JSON = "application/json"


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let nobody else reach a control route."""
    refused = _refusal(request) if request.path.startswith(CONTROL) else None
    return await handler(request) if refused is None else refused


def _refusal(request: web.Request) -> web.Response | None:
    """The reply in plain text to a request that may not use a control route; None where it may.

    403: it came from another machine, by a name that is not the server's, or from a web page; 415: it is a
    POST whose content is not called JSON.
    """
    if not _is_of_this_machine(request):
        return _refused(403, "routes under /simulator/ are for programs on the server's own machine")
    if not _is_named_right(request):
        bind = request.app[STATE].settings.bind
        return _refused(403, f"Host must be localhost, a loopback address or {bind}, got {_host(request)!r}")
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"{request.scheme}://{_host(request)}":
        return _refused(403, f"routes under /simulator/ are not for web pages, such as {origin!r}")
    if request.method == "POST" and request.content_type != _JSON:
        return _refused(415, f"Content-Type must be {_JSON}, got {request.headers.get('Content-Type')!r}")
    return None


def _refused(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


def _is_of_this_machine(request: web.Request) -> bool:
    """Whether the client is here: at a loopback address, or at the very address that it called."""
    pipe = request.transport
    if pipe is None:
        return False
    client, called = pipe.get_extra_info("peername"), pipe.get_extra_info("sockname")
    return bool(client) and (_is_loopback(client[0]) or client[0] == called[0])


def _is_named_right(request: web.Request) -> bool:
    """Whether `Host` names this machine, or the address that the server was told to listen at."""
    try:
        name = urlsplit(f"//{_host(request)}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or _is_loopback(name) or name == request.app[STATE].settings.bind.lower()


def _host(request: web.Request) -> str:
    """What the client called the server; aiohttp would look up a name of ours where it said nothing."""
    return request.headers.get("Host", "")


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        found = ip_address(address)
        if isinstance(found, IPv6Address) and found.ipv4_mapped:
            found = found.ipv4_mapped
        return found.is_loopback
    return False
