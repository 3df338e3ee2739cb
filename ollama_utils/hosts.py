"""Hosts as people write them: a URL, or a word for a server that the command starts for itself.

A URL is an Ollama server's; with `openai:` before it, an OpenAI-compatible one's. Words are
`embedded`, the simulator, and `smollm2` and `gguf:PATH`, a model on llama.cpp's server.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import httpx

OPENAI = "openai:"
"""What the host of an OpenAI-compatible server starts with."""
EMBEDDED, SMOLLM2, GGUF = "embedded", "smollm2", "gguf:"
_PORTS = {"http": 80, "https": 443}
_OLLAMA_PORT = 11434
_NAME = re.compile(r"[\w.-]+")


def parse_host(host: str) -> str:
    """The base URL that a host stands for, read as Ollama reads OLLAMA_HOST.

    Args:
        host: `http://127.0.0.1:11434`, `localhost`, `:11434`, `::1`; a blank one is this machine.

    Returns:
        `scheme://name:port`, with a path where one is given.

    Raises:
        ValueError: it is no http or https URL, or holds what would not be sent: a user, a query.
    """
    if "@" in host:
        raise ValueError(
            "expected a host such as 'http://127.0.0.1:11434', got one with an '@': "
            "a user or password is not sent; leave it out, with the '@'"
        )
    unreadable = f"expected a host such as 'http://127.0.0.1:11434', got {host!r:.300}"
    scheme, separator, address = _bare(host).rpartition("://")
    if _is_ip(address, version=6):
        address = f"[{address}]"
    try:
        parts = urlsplit(f"{scheme if separator else 'http'}://{address}")
        port = parts.port
        httpx.URL(parts.geturl())  # it knows which names can be written in DNS
    except (ValueError, httpx.InvalidURL) as error:
        raise ValueError(unreadable) from error
    name = parts.hostname or ("" if separator and port is None else "127.0.0.1")
    usable = _is_ip(name) or _NAME.fullmatch(name)
    if parts.scheme not in _PORTS or not usable or port == 0 or re.search(r"^/|[\s?#]", address):
        raise ValueError(unreadable)
    default = _PORTS[parts.scheme] if separator else _OLLAMA_PORT
    bracketed = f"[{name}]" if _is_ip(name, version=6) else name
    path = parts.path.strip("/")
    return f"{parts.scheme}://{bracketed}:{port or default}" + (f"/{path}" if path else "")


def parse_openai_host(host: str) -> str:
    """The base URL of an OpenAI-compatible server, from `openai:URL`.

    Args:
        host: such as `openai:http://127.0.0.1:8000/v1`; where the URL has no path, it is `/v1`.

    Raises:
        ValueError: what follows is no http or https URL.
    """
    url = _bare(host).removeprefix(OPENAI)
    if "://" not in url:
        raise ValueError(
            f"expected a host such as 'openai:http://127.0.0.1:8000/v1', got {host!r:.300}"
        )
    base = parse_host(url)
    return base if urlsplit(base).path else f"{base}/v1"


def speaks_openai(host: str) -> bool:
    """Whether a host is an OpenAI-compatible server's."""
    return _bare(host).startswith(OPENAI)


def is_child(host: str) -> bool:
    """Whether a host is a server that the command starts for itself."""
    return host in {EMBEDDED, SMOLLM2} or host.startswith(GGUF)


def server_url(host: str) -> str:
    """The URL of a dispatcher's host without `openai:` and `/v1`."""
    return host.removeprefix(OPENAI).removesuffix("/v1")


def is_loopback(url: str) -> bool:
    """Whether a base URL means this machine."""
    name = urlsplit(url).hostname or ""
    if not _is_ip(name):
        return name == "localhost" or name.endswith(".localhost")
    address = ipaddress.ip_address(name)
    return address.is_loopback or address.is_unspecified


def _bare(host: str) -> str:
    """Without the blanks and quotes around it, which `docker run --env-file` keeps, for one."""
    return host.strip().strip("\"'").strip()


def _is_ip(name: str, version: int | None = None) -> bool:
    try:
        return version in {None, ipaddress.ip_address(name).version}
    except ValueError:
        return False
