"""Hosts as people write them: read as Ollama reads them, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from traceback import format_exception

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama._client import _parse_host  # the package's own reading of a host; it has no public name

from ollama_utils.hosts import parse_host, parse_openai_host

BAD_PORTS = ["localhost:many", "http://box:99999", "http://box:0"]
BAD_SCHEMES = ["ftp://box", "http://", "http:///", "a://b://c"]
BAD_NAMES = ["192.168.1.300", "http://exa mple", "http://bo\nx", "[::1", "-é"]
MORE_THAN_A_HOST = ["box?x=1", "box#f", "//x", "/x", "/"]


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("localhost", "http://localhost:11434"),
        ("localhost:8080", "http://localhost:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ("http://box", "http://box:80"),
        ("https://box/ollama/", "https://box:443/ollama"),
        (" 10.0.0.2 ", "http://10.0.0.2:11434"),
        ("[::1]:80", "http://[::1]:80"),
        ("", "http://127.0.0.1:11434"),
    ],
)
def test_hosts_are_read_as_ollama_reads_them(written: str, url: str) -> None:
    assert parse_host(written) == _parse_host(written.strip()) == url


@pytest.mark.parametrize(
    ("read", "written", "url"),
    [
        (parse_host, "https://::1", "https://[::1]:443"),  # IPv6 needs no brackets
        (parse_host, " 'http://box:80' ", "http://box:80"),  # quotes of an env file
        (parse_openai_host, "openai:http://box", "http://box:80/v1"),
        (parse_openai_host, "'openai:http://box:8000/api/v2'", "http://box:8000/api/v2"),
    ],
)
def test_a_host_is_read_however_it_is_quoted(
    read: Callable[[str], str], written: str, url: str
) -> None:
    assert read(written) == url


@pytest.mark.parametrize("written", [*BAD_PORTS, *BAD_SCHEMES, *BAD_NAMES, *MORE_THAN_A_HOST])
def test_a_host_that_cannot_be_read_is_an_error(written: str) -> None:
    with pytest.raises(ValueError, match=r"expected a host such as .*, got ") as caught:
        parse_host(written)
    assert repr(written) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "written",
    ["http://user:secret@box:1", "http://:secret@box", "u:secret@[::1", "u:p@secret@box"],
)
def test_a_host_with_a_password_is_an_error_that_does_not_repeat_it(written: str) -> None:
    with pytest.raises(ValueError, match="user or password") as caught:
        parse_host(written)
    assert "secret" not in "".join(format_exception(caught.value))


@given(
    st.text(st.sampled_from("abc:/.@[]?#% 01é-_\n"), max_size=12),
    st.sampled_from(["", "http://", "https://"]),
)
def test_whatever_is_written_is_a_base_url_or_one_clear_error(written: str, scheme: str) -> None:
    try:
        url = parse_host(scheme + written)
    except ValueError as error:
        assert str(error).startswith("expected a host such as")  # noqa: PT017 - or none is raised
    else:
        assert parse_host(url) == _parse_host(url) == url
        assert httpx.URL(url).host
