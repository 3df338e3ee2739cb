"""Hosts as people write them: read as Ollama reads them, or refused in one line."""

from __future__ import annotations

from traceback import format_exception

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama._client import _parse_host  # the package's own reading of a host; it has no public name

from ollama_utils.hosts import parse_host, parse_openai_host

BAD = [
    *(
        "localhost:many",
        "ftp://box",
        "http://box:99999",
        "http://box:0",
        "http://",
        "http:///",
        "a://b://c",
    ),
    *("192.168.1.300", "http://exa mple", "http://bo\nx", "box?x=1", "box#f", "[::1", "-é"),
    *("//x", "/x", "/"),
]


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


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_that_an_env_file_keeps_are_taken_off(quote: str) -> None:
    assert parse_host(f" {quote}http://box:80{quote} ") == "http://box:80"
    assert parse_openai_host(f"{quote}openai:http://box{quote}") == "http://box:80/v1"


@pytest.mark.parametrize(
    ("written", "url"), [("::1", "http://[::1]:11434"), ("https://::1", "https://[::1]:443")]
)
def test_an_ipv6_address_needs_no_brackets(written: str, url: str) -> None:
    assert parse_host(written) == url


@pytest.mark.parametrize("written", BAD)
def test_a_host_that_cannot_be_read_is_an_error(written: str) -> None:
    with pytest.raises(ValueError, match=r"expected a host such as .*, got ") as caught:
        parse_host(written)
    assert repr(written) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        *("http://user:secret@box:1", "user@box", "http://:secret@box", "http://u:secret@x:bad"),
        *(
            "u:secret@[::1",
            "http://u:/secret@box",
            "u:#secret?@box",
            "ftp://u:secret@box",
            "u:p@secret@box",
        ),
    ],
)
def test_a_host_with_a_user_or_password_is_an_error_that_does_not_repeat_it(written: str) -> None:
    with pytest.raises(ValueError, match="user or password") as caught:
        parse_host(written)
    assert "secret" not in "".join(format_exception(caught.value))


@given(
    st.text(st.sampled_from("abc:/.@[]?#% 01é-_\n"), max_size=12),
    st.sampled_from(["", "http://", "https://"]),
)
def test_whatever_is_written_is_a_base_url_that_httpx_takes_or_one_clear_error(
    written: str, scheme: str
) -> None:
    try:
        url = parse_host(scheme + written)
    except ValueError as error:
        url, said = "", str(error)
    if url:
        assert parse_host(url) == _parse_host(url) == url
        assert httpx.URL(url).host
    else:
        assert said.startswith("expected a host such as")


@pytest.mark.parametrize("host", ["\0" * 100_000, "openai:" + "?" * 100_000])
def test_a_long_host_that_cannot_be_read_is_told_in_part(host: str) -> None:
    parse = parse_openai_host if host.startswith("openai:") else parse_host
    with pytest.raises(ValueError, match="expected a host") as caught:
        parse(host)
    assert len(str(caught.value)) < 500
