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
from typing import Annotated, Any, Literal, Self, TypeVar
from weakref import WeakSet

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from simulator.chance import digest_of, share_of
from simulator.engine import Engine
from simulator.prompts import without_boundaries

T = TypeVar("T")

CONTENT = {
    "/api/generate": "response",
    "/api/chat": "message",
    "/api/embed": "embeddings",
    "/v1/chat/completions": "choices",
    "/v1/embeddings": "data",
}
"""By endpoint the field of its replies that holds their content."""
_PAGE = b"<html><head><title>Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n"
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
    """`drop`, `hang`: before the first byte, halfway, before the last byte, or (`drop` alone) when
    all of a reply is sent, so that the client's next call meets it."""
    status: Annotated[int, Field(ge=400, le=599)] = 500
    """500 is a runner crash and 503 a full queue in Ollama's words, any other a gateway's page."""
    seconds: Seconds = 1.0
    """`late`: by the wall clock, whatever the time scale: a client's patience is not scaled."""
    what: Literal["html", "cut", "wrong_type", "empty", "enormous", "not_done"] = "html"
    """`garbage`: a page; half of the JSON; a `field` of another type; no words; `bytes` of words;
    a reply of Ollama's that is not done, as after its repeat guard."""
    field: str | None = None
    """None is the field with the content."""
    bytes: Annotated[int, Field(ge=1, le=2**28)] = 2**26

    @property
    def fails_call(self) -> bool:
        """Whether the call fails: a late reply, or one after which all ends, is a good one."""
        return self.kind != "late" and self.at != "after"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.at == "after" and self.kind != "drop":
            raise ValueError(f"expected at 'after' of kind 'drop' alone, got it of {self.kind!r}")
        return self


class Outage(_Strict):
    """A failure of the whole server, but for the routes under `/simulator/`."""

    mode: Literal["hang", "drop"]
    """`hang`: nothing is answered, and all goes on when it ends. `drop`: connections are reset."""
    at: Literal["calls", "all"] = "calls"
    """`calls`: lists and the like are answered as ever, so that the server looks healthy."""
    for_s: Seconds | None = None
    """Seconds by the wall clock; None is until another is set."""


def parse(kind: type[T], payload: object) -> T:
    """A `list[Fault]` or an `Outage` from its JSON.

    Raises:
        ValueError: it is none; one line.
    """
    try:
        return TypeAdapter(kind).validate_python(payload)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise ValueError(f"{place}: {first['msg']}, got {first['input']!r:.100}") from None


def read_faults(path: str) -> list[Fault]:
    """The faults of a JSON file that holds a list of them.

    Raises:
        ValueError: it cannot be read, or holds something else.
    """
    try:
        return parse(list[Fault], json.loads(Path(path).read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(f"the file of faults {path!r}: {error}") from error


_STREAM = re.compile(r'"stream": ?(true|false),? ?')


class FaultPlan:
    """Decides which calls fail. While faults are played every distinct request is remembered.

    Args:
        seed: the server's.
        faults: what is played; of several that strike a call the first counts.
    """

    def __init__(self, seed: int, faults: Sequence[Fault]) -> None:
        self._seed, self._faults = seed, faults
        self._seen: Counter[bytes] = Counter()

    def strike(self, endpoint: str, body: bytes, model: str) -> Fault | None:
        """The fault that a call meets, if any.

        Args:
            endpoint: one of `CONTENT`.
            body: the request's body as it came.
            model: the model's full name.
        """
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


def garbage(fault: Fault, endpoint: str, reply: Mapping[str, Any]) -> bytes:
    """The body of a reply that a fault of kind `garbage` struck."""
    content, changed = CONTENT[endpoint], dict(reply)
    if fault.what == "html":
        return _PAGE
    if fault.what == "not_done":
        changed = {name: value for name, value in reply.items() if name != "done_reason"}
        changed["done"] = False
    elif fault.what == "wrong_type":
        field = fault.field or content
        changed[field] = ["not", "this"] if isinstance(reply.get(field), str) else "not this"
    elif fault.what in {"empty", "enormous"}:
        changed[content] = _words(reply[content], 0 if fault.what == "empty" else fault.bytes)
    body = json.dumps(changed).encode()
    if fault.what == "enormous":
        return body.rjust(fault.bytes)
    return body[: len(body) // 2] if fault.what == "cut" else body


def _words(content: Any, size: int) -> Any:  # noqa: ANN401 - a field of JSON
    """A reply's content with `size` bytes of words; embeddings go for 0, and else stay."""
    if isinstance(content, str):
        return "word " * (size // 5)
    if isinstance(content, dict):
        return content | {"content": _words(content["content"], size)}
    if content and "message" in content[0]:
        return [content[0] | {"message": _words(content[0]["message"], size)}]
    return content if size else []


class Outages:
    """The outage that is played.

    Args:
        engine: stands still while the server hangs.
    """

    def __init__(self, engine: Engine) -> None:
        self._now: Outage | None = None
        self._engine = engine
        self._timer: asyncio.TimerHandle | None = None
        self._connections: WeakSet[asyncio.Transport] = WeakSet()
        """Those that brought calls."""

    def set(self, outage: Outage | None) -> None:
        """Play an outage from now on, in place of another; None ends it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._now = outage
        if outage is not None and outage.for_s is not None:
            self._timer = asyncio.get_running_loop().call_later(outage.for_s, self.set, None)
        if outage is not None and outage.mode == "hang":
            self._engine.stop()
            return
        self._engine.go_on()
        for connection in list(self._connections) if outage is not None else ():
            reset(connection)

    async def passed(self, request: web.Request, *, is_call: bool) -> None:
        """Wait until a request may go on.

        Raises:
            ConnectionResetError: its connection was reset.
        """
        if is_call and request.transport is not None:
            self._connections.add(request.transport)
        while self._now is not None and (is_call or self._now.at == "all"):
            if self._now.mode == "drop":
                reset(request.transport)
                raise ConnectionResetError("the server drops connections")
            await self._engine.running.wait()


def reset(connection: asyncio.Transport | None) -> None:
    """Break a connection off so that the client sees a reset; one that is over stays so."""
    if connection is None or connection.is_closing():
        return
    pipe = connection.get_extra_info("socket")
    if pipe is not None:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.abort()
