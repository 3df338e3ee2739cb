"""Replies that are compressed though that was not asked for: refused, without decoding a byte."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from contextlib import closing

import pytest

from ollama_utils.errors import BadReplyError
from tests.ollama_utils.hostile import CALL, WIRES, RawServer, client_of, failure, http

DECODED = 2**26
"""Bytes that a bomb would unfold to: enough to be seen, too few to do harm."""
MOST_MEMORY = 2**22


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    """64 MiB as some 64 KiB."""
    zeros = bytes(DECODED)
    return {"gzip": gzip.compress(zeros), "deflate": zlib.compress(zeros)}


def peak_memory(wire: str, answer: bytes) -> int:
    """The most bytes that one failing call takes; the server's own are those of the answer at most."""
    with RawServer(answer) as server, closing(client_of(wire, server.host)) as client:
        tracemalloc.start()
        try:
            with pytest.raises(BadReplyError):
                client.generate(CALL)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("status", ["200 OK", "500 No"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_bomb_takes_no_memory(wire: str, status: str, coding: str, bombs: dict[str, bytes]) -> None:
    assert peak_memory(wire, http(status, bombs[coding], Content_Encoding=coding)) < MOST_MEMORY


@pytest.mark.parametrize("coding", ["zlib", "bz2"])
@pytest.mark.parametrize("wire", WIRES)
def test_nor_does_one_that_calls_itself_a_charset(wire: str, coding: str, bombs: dict[str, bytes]) -> None:
    told = f"text/plain; charset={coding}"
    assert peak_memory(wire, http("200 OK", bombs["deflate"], Content_Type=told)) < MOST_MEMORY


@pytest.mark.parametrize(
    "coding", ["gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "identity, gzip", "gzip, gzip", "\x1b[31m"]
)
@pytest.mark.parametrize("wire", WIRES)
def test_any_encoding_but_identity_is_a_bad_reply_in_one_line(wire: str, coding: str) -> None:
    error = failure(wire, http("200 OK", b"anything", Content_Encoding=coding))
    assert type(error) is BadReplyError
    assert error.retryable
    assert "in an encoding that was not asked for" in str(error)
    assert repr(coding) in str(error)


@pytest.mark.parametrize("wire", WIRES)
def test_every_request_asks_for_no_encoding_and_takes_identity(wire: str) -> None:
    answer = http("200 OK", b"{}", Content_Encoding="Identity")
    with RawServer(answer) as server, closing(client_of(wire, server.host)) as client:
        with pytest.raises(BadReplyError) as caught:
            client.generate(CALL)
        assert "encoding" not in str(caught.value)
        assert b"\r\naccept-encoding: identity\r\n" in server.requests[0].lower()
