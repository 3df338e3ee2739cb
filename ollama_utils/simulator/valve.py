"""A valve between a reply and its connection: it lets through as many of the reply's bytes as it should."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

Buffer = bytes | bytearray | memoryview
Share = Callable[[bytearray], int]
"""Of the bytes of a reply so far, how many may pass; never fewer than before."""

_HEAD_END = b"\r\n\r\n"
_LAST_BYTES = 5
"""The terminating chunk of a stream, `0\\r\\n\\r\\n`; of another reply as much of its JSON."""


class Valve(asyncio.Transport):
    """Stands in for a connection while a reply is written; what may not pass stays in `held`.

    Args:
        pipe: the connection.
        share: how much may pass.
    """

    def __init__(self, pipe: asyncio.Transport, share: Share) -> None:
        super().__init__()
        self._pipe = pipe
        self._share = share
        self._written = bytearray()
        self._passed = 0

    @property
    def held(self) -> bytes:
        """What did not pass so far."""
        return bytes(self._written[self._passed :])

    def write(self, data: Buffer) -> None:
        """Take bytes of the reply, and pass on what may pass by now."""
        self._written += data
        until = self._share(self._written)
        if until > self._passed:
            self._pipe.write(bytes(self._written[self._passed : until]))
            self._passed = until

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """As `write`."""
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        """Whether the connection is gone, or about to go."""
        return self._pipe.is_closing()

    def close(self) -> None:
        """Close the connection."""
        self._pipe.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._pipe.abort()

    def pause_reading(self) -> None:
        """Read no more requests for now."""
        self._pipe.pause_reading()

    def resume_reading(self) -> None:
        """Read requests again."""
        self._pipe.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as asyncio has it
        """What the connection says of itself."""
        return self._pipe.get_extra_info(name, default)


def nothing(_: bytearray) -> int:
    """Not a byte passes."""
    return 0


def head(written: bytearray) -> int:
    """The status line and the headers pass."""
    end = written.find(_HEAD_END)
    return end + len(_HEAD_END) if end >= 0 else 0


def half_of_body(written: bytearray) -> int:
    """The head and half of the body pass."""
    return (head(written) + len(written)) // 2 if head(written) else 0


def all_but_the_end(written: bytearray) -> int:
    """All passes but the last few bytes."""
    return max(0, len(written) - _LAST_BYTES)


def end(pipe: asyncio.Transport, last: bytes = b"") -> None:
    """Send last bytes and the orderly end of a connection, together."""
    pipe.write(last)
    pipe.write_eof()
    pipe.close()


def reset(pipe: asyncio.Transport) -> None:
    """Break a connection off so that the client sees a reset and no orderly end."""
    connection = pipe.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pipe.abort()
