"""Hosts as people write them, and the base URLs that they mean."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import httpx

_PORTS = {"http": 80, "https": 443}
_OLLAMA_PORT = 11434
_NAME = re.compile(r"[\w.-]+")


def parse_host(host: str) -> str:
    """The base URL that a host means, read as Ollama reads OLLAMA_HOST.

    Args:
        host: `http://127.0.0.1:11434`, `localhost`, `:11434`, `::1`; a blank one is this machine.

    Returns:
        `scheme://name:port`, with a path where one is given.

    Raises:
        ValueError: it is no http or https address, or holds what would not be sent: a user, a query.
    """
    if "@" in host:
        raise ValueError(
            "expected a host such as 'http://127.0.0.1:11434', got one with an '@': "
            "a user or password is not sent; leave it out, with the '@'"
        )
    scheme, stated, address = host.strip().rpartition("://")
    if _is_ip(address, version=6):
        address = f"[{address}]"
    try:
        parts = urlsplit(f"{scheme if stated else 'http'}://{address}")
        port = parts.port
        httpx.URL(parts.geturl())  # the package would raise its InvalidURL, which is no ValueError
    except (ValueError, httpx.InvalidURL) as error:
        raise _unreadable(host) from error
    name = parts.hostname or ("" if stated and port is None else "127.0.0.1")
    usable = _is_ip(name) or _NAME.fullmatch(name)
    if parts.scheme not in _PORTS or not usable or port == 0 or re.search(r"^/|[\s?#]", address):
        raise _unreadable(host)
    default = _PORTS[parts.scheme] if stated else _OLLAMA_PORT
    bracketed = f"[{name}]" if _is_ip(name, version=6) else name
    path = parts.path.strip("/")
    return f"{parts.scheme}://{bracketed}:{port or default}" + (f"/{path}" if path else "")


def is_loopback(url: str) -> bool:
    """Whether a base URL means this machine."""
    name = urlsplit(url).hostname or ""
    if not _is_ip(name):
        return name == "localhost" or name.endswith(".localhost")
    address = ipaddress.ip_address(name)
    return address.is_loopback or address.is_unspecified


def _unreadable(host: str) -> ValueError:
    return ValueError(f"expected a host such as 'http://127.0.0.1:11434', got {host!r}")


def _is_ip(name: str, version: int | None = None) -> bool:
    try:
        return version in {None, ipaddress.ip_address(name).version}
    except ValueError:
        return False
