"""What can be made to go wrong: with single calls (`Fault`), and with the whole server (`Outage`).

Faults come as a JSON list, such as `[{"kind": "status", "status": 503, "rate": 0.1}]`. Whether one
strikes a call is a function of the server's seed, the request, and how often it came: other
requests, and their order, change nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from weakref import WeakSet

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from simulator.chance import digest_of, share_of
from simulator.prompts import without_boundaries

T = TypeVar("T")

_PAGE = b"<html><head><title>Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n"
_ENORMOUS_BYTES = 2**26
_CONTENT = {"response", "message", "embeddings", "choices", "data"}
"""The fields that hold what was asked for, one in each endpoint's replies."""
_STREAM = re.compile(r'"stream": ?(true|false),? ?')
Seconds = Annotated[float, Field(gt=0, le=1e9)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Fault(_Strict):
    """One kind of failure, and which calls it strikes."""

    kind: Literal["status", "drop", "hang", "late", "garbage"]
    """An HTTP error; a connection reset, or fallen silent; a late reply; one that is none."""
    rate: Annotated[float, Field(ge=0, le=1)]
    """The share of calls that it strikes."""
    first: Annotated[int, Field(ge=1)] | None = None
    """None: every occurrence of a request is drawn anew. A number: a request is struck at its first
    so many occurrences, or at none."""
    model: str | None = None
    """The only model whose calls it strikes; None strikes all."""
    at: Literal["start", "body", "end", "after"] = "start"
    """`drop`, `hang`: before the first byte, halfway, before the last byte; or (`drop` alone) when
    all of a reply is sent, so that the client's next call meets a closed connection."""
    status: Annotated[int, Field(ge=400, le=599)] = 500
    """500 is a runner crash and 503 a full queue in Ollama's words, any other a gateway's page."""
    seconds: Seconds = 1.0
    """`late`: by the wall clock, whatever the time scale: a client's patience is not scaled."""
    what: Literal["html", "cut", "wrong_type", "enormous", "not_done"] = "html"
    """`garbage`: a page; half of the JSON; content of another type; 64 MiB; a reply of Ollama's
    that is not done, as after its repeat guard."""


class Outage(_Strict):
    """A failure of the whole server, but for the routes under `/simulator/`."""

    mode: Literal["hang", "drop"]
    """`hang`: nothing is answered until it ends. `drop`: connections are reset."""
    at: Literal["calls", "all"] = "calls"
    """`calls`: lists and the like are answered as ever, so that the server looks healthy."""
    for_s: Seconds | None = None
    """Seconds by the wall clock; None is until another is set."""


def parse(kind: type[T], text: bytes) -> T:
    """A `list[Fault]` or an `Outage` from its JSON; raises ValueError, one line, if it is none."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise ValueError(f"{place}: {first['msg']}, got {first['input']!r:.100}") from None


def read_faults(path: str) -> list[Fault]:
    """The faults of a JSON file; raises ValueError where it holds no list of them."""
    try:
        return parse(list[Fault], Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"the file of faults {path!r}: {error}") from error


class FaultPlan:
    """Decides which calls fail; of several faults that strike a call the first counts.

    While faults are played every distinct request is remembered.
    """

    def __init__(self, seed: int, faults: Sequence[Fault]) -> None:
        self._seed, self._faults = seed, faults
        self._seen: Counter[bytes] = Counter()

    def strike(self, endpoint: str, body: bytes, model: str) -> Fault | None:
        """The fault that a call of a model meets, if any; its `body` is as it came."""
        if not self._faults:
            return None
        asked = _STREAM.sub("", body.decode("latin-1"))  # what is asked, not how it comes
        request = digest_of(self._seed, endpoint, without_boundaries(asked))
        self._seen[request] += 1
        occurrence = self._seen[request]
        for number, fault in enumerate(self._faults):
            draw = f"{number}" if fault.first else f"{number} {occurrence}"
            meant = fault.model in {None, model, model.removesuffix(":latest")}
            within = fault.first is None or occurrence <= fault.first
            if meant and within and share_of(request, draw) < fault.rate:
                return fault
        return None


def garbage(what: str, reply: Mapping[str, Any]) -> bytes:
    """The body of a reply that a fault of kind `garbage` struck, see `Fault.what`."""
    if what == "html":
        return _PAGE
    changed = dict(reply)
    if what == "not_done":
        changed.pop("done_reason", None)
        changed["done"] = False
    elif what == "wrong_type":
        for name in _CONTENT & changed.keys():
            changed[name] = ["not", "this"] if isinstance(changed[name], str) else "not this"
    body = json.dumps(changed).encode()
    if what == "enormous":
        return body.rjust(_ENORMOUS_BYTES)
    return body[: len(body) // 2] if what == "cut" else body


class Outages:
    """The outage that is played, if any; while the server hangs, `answers` is not set."""

    def __init__(self, answers: asyncio.Event) -> None:
        self._now: Outage | None = None
        self._answers = answers
        self._timer: asyncio.TimerHandle | None = None
        self._connections: WeakSet[asyncio.Transport] = WeakSet()
        """Those that brought calls."""

    def set(self, outage: Outage | None) -> None:
        """Play an outage from now on, in place of another; None ends it."""
        if self._timer is not None:
            self._timer.cancel()
        self._now, self._timer = outage, None
        if outage is not None and outage.for_s is not None:
            self._timer = asyncio.get_running_loop().call_later(outage.for_s, self.set, None)
        if outage is not None and outage.mode == "hang":
            self._answers.clear()
            return
        self._answers.set()
        for connection in list(self._connections) if outage is not None else ():
            reset(connection)

    async def wait(self, request: web.Request, *, is_call: bool) -> bool:
        """Wait until a request may go on; whether it had to wait.

        Raises:
            ConnectionResetError: its connection was reset.
        """
        if is_call and request.transport is not None:
            self._connections.add(request.transport)
        waited = False
        while self._now is not None and (is_call or self._now.at == "all"):
            if self._now.mode == "drop":
                reset(request.transport)
                raise ConnectionResetError("the server drops connections")
            waited = await self._answers.wait()
        return waited


def reset(connection: asyncio.Transport | None) -> None:
    """Break a connection off so that the client sees a reset; one that is over stays so."""
    if connection is None or connection.is_closing():
        return
    pipe = connection.get_extra_info("socket")
    if pipe is not None:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.abort()
