"""The faults that can be asked for, which calls they strike, and how they are played.

A list of faults comes as JSON (`[{"kind": "error_500", "rate": 0.1}]`); whether one strikes a call is a
function of the seed, the request, and how often it came.

In place of a reply, at once: `error_500` (a runner crash), `busy_503` (a full queue), `not_json` (a
gateway's page, with `status`); after `seconds` without a byte: `stall` (a load that is stuck until Ollama
gives it up).

The reply that would have come, in its time: `latency` (`seconds` late), `empty` (without words), `enormous`
(`bytes` long: words over and over, or blanks before embeddings), `wrong_type` (a `field` of another type),
`not_done` (it says that more will come, as after Ollama's repeat guard), `cut_json` (half of its JSON in a
body of the right length). All but the first come in one line when the reply is streamed, whole under `/v1`.

That reply on a connection that fails: `hang` (no more bytes come), `drop` (a reset), both `at` a point of
the reply, or with `drop` an orderly end `after` it, which the client's next call meets; `truncated` (an
orderly end halfway through the body); `dribble` (its bytes come one by one, or few by few, in `seconds`
altogether: all of them, or those of the body).
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from aiohttp import web

from simulator import wire
from simulator.chance import digest_of, share_of
from simulator.engine import BUSY
from simulator.fences import without_boundaries
from simulator.names import full_name

FaultKind = Literal[
    "busy_503",
    "cut_json",
    "dribble",
    "drop",
    "empty",
    "enormous",
    "error_500",
    "hang",
    "latency",
    "not_done",
    "not_json",
    "stall",
    "truncated",
    "wrong_type",
]
"""What can go wrong with a call."""

Point = Literal["start", "body", "end", "after"]
"""Where a reply is struck: before its first byte, halfway through its body, before its last bytes (the
terminating chunk of a stream), or when all of it is sent."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of failure, and which calls it strikes."""

    kind: FaultKind
    rate: float
    """The share of calls, 0 to 1, at which it begins to strike."""
    model: str | None = None
    """The only model it strikes (without a tag it means `:latest`); None strikes all."""
    first: int | None = None
    """It begins only among the first so many occurrences of a request; None: at any."""
    burst: int = 1
    """Once it begins at an occurrence of a request, it strikes this many occurrences in a row."""
    at: Point = "start"
    """Where it strikes the reply."""
    seconds: float = 0.0
    """How long it lasts, by the wall clock whatever the time scale: a client's patience is not scaled."""
    bytes: int = 0
    """The size of the reply's body, at least."""
    status: int = 200
    """The HTTP status."""
    field: str | None = None
    """The field of the reply; None is the one with its content."""

    @property
    def fails_call(self) -> bool:
        """Whether the call fails: a late reply, or one after which the connection goes, is a good one."""
        return self.kind != "latency" and self.at != "after"

    def fits(self, endpoint: str) -> bool:
        """Whether the endpoint's replies can be so struck."""
        if self.kind == "not_done":
            return "done" in FIELDS[endpoint]
        return self.field is None or self.field in FIELDS[endpoint]


FIELDS: Mapping[str, tuple[str, ...]] = {
    "generate": ("response", "model", "total_duration", "done", "eval_count"),
    "chat": ("message", "model", "total_duration", "done", "eval_count"),
    "embed": ("embeddings", "model", "total_duration"),
    "chat/completions": ("choices", "model"),
    "embeddings": ("data", "model"),
}
"""For each endpoint the fields of its replies that may be struck; first the one with their content."""


class FaultPlan:
    """Decides which calls fail: a pure function of seed, endpoint, request and its occurrence number.

    So other requests, and their order, change nothing. A burst keeps to that law: it is a run of
    occurrences of one request, such as the attempts of a client that tries again, and not of the calls
    that happen to come next. Every request draws anew at each of its occurrences whether a fault begins.
    While faults are played every distinct request is remembered, some 150 bytes each.

    Args:
        seed: the server's seed.
        faults: what is played; of several that strike a call the first counts.
    """

    def __init__(self, seed: int, faults: Sequence[Fault] = ()) -> None:
        self._seed = seed
        self.set(faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is played."""
        return self._faults

    def set(self, faults: Sequence[Fault]) -> None:
        """Play these faults from now on and count occurrences anew."""
        self._faults = tuple(faults)
        self._seen: Counter[bytes] = Counter()

    def strike(self, endpoint: str, body: bytes, model: str) -> Fault | None:
        """The failure that this call meets, if any.

        Args:
            endpoint: one of `FIELDS`.
            body: the request's body as it came.
            model: the model's full name.
        """
        if not self._faults:
            return None
        asked = without_boundaries(body.decode("latin-1")).encode("latin-1")
        request = digest_of(self._seed, endpoint, asked.hex())
        self._seen[request] += 1
        for number, fault in enumerate(self._faults):
            meant = fault.model is None or full_name(fault.model) == model
            if meant and fault.fits(endpoint) and _strikes(fault, number, request, self._seen[request]):
                return fault
        return None


def _strikes(fault: Fault, number: int, request: bytes, occurrence: int) -> bool:
    """Whether a fault, by its number in the list, began at this occurrence or at one whose burst goes on."""
    last = occurrence if fault.first is None else min(occurrence, fault.first)
    begun = range(max(1, occurrence - fault.burst + 1), last + 1)
    return any(share_of(request, f"{number}:{fault.kind}:{each}") < fault.rate for each in begun)


KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_SECONDS_OF_A_LOAD = 300.0
"""After so long Ollama gives a load up (OLLAMA_LOAD_TIMEOUT)."""
_MOST_BYTES = 2**28
_MOST_IN_A_ROW = 1000
_COMMON = ("kind", "rate", "model", "first", "burst")
_OWN: Mapping[FaultKind, Mapping[str, Any]] = {
    "dribble": {"at": "body", "seconds": 60.0},
    "drop": {"at": "start"},
    "enormous": {"bytes": 2**26},
    "hang": {"at": "start"},
    "latency": {"seconds": 1.0},
    "not_json": {"status": 200},
    "stall": {"seconds": _SECONDS_OF_A_LOAD},
    "wrong_type": {"field": None},
}
"""What a kind may say beside `_COMMON`, and what stands for it."""
_POINTS = {
    "dribble": ("start", "body"),
    "drop": ("start", "body", "end", "after"),
    "hang": ("start", "body", "end"),
}
_TYPED_FIELDS = tuple(dict.fromkeys(field for fields in FIELDS.values() for field in fields))

_CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "rate": ("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
    "model": ("a name", lambda value: value is None or (isinstance(value, str) and bool(value))),
    "first": ("a whole number of at least 1", lambda value: value is None or _is_whole(value, 1, math.inf)),
    "burst": (
        f"a whole number from 1 to {_MOST_IN_A_ROW}",
        lambda value: _is_whole(value, 1, _MOST_IN_A_ROW),
    ),
    "seconds": ("a number above 0", lambda value: _is_number(value) and 0 < value < math.inf),
    "bytes": (f"a whole number from 1 to {_MOST_BYTES}", lambda value: _is_whole(value, 1, _MOST_BYTES)),
    "status": ("a whole number from 200 to 599", lambda value: _is_whole(value, 200, 599)),
    "field": (f"one of {list(_TYPED_FIELDS)}", lambda value: value is None or value in _TYPED_FIELDS),
}
"""What is expected of a value, and whether it is so."""


def parse_faults(items: object) -> tuple[Fault, ...]:
    """The faults of a JSON list such as `[{"kind": "error_500", "rate": 0.1}]`.

    Raises:
        ValueError: something else came; the message says what was expected.
    """
    if not isinstance(items, list):
        # The data is wrong, not a caller's code: a ValueError, as for every other fault that cannot be.
        raise ValueError(  # noqa: TRY004 - see above
            f"faults must be a list of objects with 'kind' and 'rate', got {items!r}"
        )
    return tuple(_parse(item) for item in items)


def read_faults(path: str) -> tuple[Fault, ...]:
    """The faults of a JSON file that holds such a list.

    Raises:
        ValueError: it cannot be read, or holds something else.
    """
    try:
        return parse_faults(json.loads(Path(path).read_text("utf-8")))
    except OSError as error:
        raise ValueError(f"the file of faults {path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the file of faults {path!r}: {error}") from error


def listed(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """The faults as JSON, each with all that its kind may say: `parse_faults` reads it."""
    return [{name: getattr(fault, name) for name in _names(fault.kind)} for fault in faults]


def _parse(item: object) -> Fault:
    if not isinstance(item, Mapping) or not {"kind", "rate"} <= set(item):
        raise ValueError(f"a fault must be an object with 'kind' and 'rate', got {item!r}")
    kind = item["kind"]
    if kind not in KINDS:
        raise ValueError(f"a fault's kind must be one of {list(KINDS)}, got {kind!r}")
    names = _names(kind)
    if unknown := sorted(map(str, set(item) - set(names))):
        raise ValueError(f"a fault of kind {kind!r} may have {names}, got {unknown} too")
    for name, value in item.items():
        if name in _CHECKS and not _CHECKS[name][1](value):
            raise ValueError(f"a fault's {name} must be {_CHECKS[name][0]}, got {value!r}")
    points = _POINTS.get(kind, ())
    if "at" in item and item["at"] not in points:
        raise ValueError(f"a fault of kind {kind!r} must be at one of {list(points)}, got {item['at']!r}")
    return Fault(**{**_OWN.get(kind, {}), **item})


def _names(kind: FaultKind) -> list[str]:
    return [*_COMMON, *_OWN.get(kind, {})]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object, least: int, most: float) -> bool:
    return type(value) is int and least <= value <= most


_CRASH = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
    "error, check ollama server logs for details"
)
_STUCK = "timed out waiting for llama runner to start - progress 0.00 - "
_PAGE = b"<html><head><title>Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n"
_SHORTEST_GAP_S = 0.01
_OF_LINES = frozenset({"generate", "chat"})
"""The endpoints whose streams are lines."""


class Work(Protocol):
    """Does what a request asks for: takes its time in a slot and gives the reply."""

    async def __call__(self, *, stream: bool) -> web.StreamResponse:
        """The reply, already under way when it is streamed."""
        ...


@dataclass(frozen=True, kw_only=True)
class FaultyCall:
    """One call and the fault that it meets."""

    fault: Fault
    request: web.Request
    endpoint: str
    work: Work
    stream: bool

    async def answer(self) -> web.StreamResponse:
        """What the client gets; a client that leaves ends it wherever it is."""
        kind = self.fault.kind
        if kind in {"error_500", "busy_503", "stall", "not_json"}:
            return await self._no_reply()
        if kind == "latency":
            await asyncio.sleep(self.fault.seconds)
            return await self.work(stream=self.stream)
        if kind == "dribble":
            return await self._dribble()
        if kind in {"hang", "drop", "truncated"}:
            return await self._break_off()
        return await self._damage()

    async def _no_reply(self) -> web.Response:
        if self.fault.kind == "not_json":
            return web.Response(body=_PAGE, status=self.fault.status, content_type="text/html")
        if self.fault.kind == "busy_503":
            raise wire.ApiError(503, BUSY)
        await asyncio.sleep(self.fault.seconds)
        raise wire.ApiError(500, _STUCK if self.fault.kind == "stall" else _CRASH)

    async def _damage(self) -> web.Response:
        """A body that came whole but is no good; a stream of Ollama's is one line."""
        is_line = self.stream and self.endpoint in _OF_LINES
        reply = cast("web.Response", await self.work(stream=False))
        body = _damaged(self.fault, self.endpoint, json.loads(cast("bytes", reply.body)))
        return web.Response(
            body=body + b"\n" if is_line else body,
            content_type="application/x-ndjson" if is_line else reply.content_type,
            charset=None if is_line else reply.charset,
        )

    async def _break_off(self) -> web.StreamResponse:
        """The reply up to a point, and then no more of it."""
        at: Point = "body" if self.fault.kind == "truncated" else self.fault.at
        response, pipe, rest = await self._write(at)
        if self.fault.kind == "hang":
            await asyncio.Event().wait()
        if self.fault.kind == "drop" and at != "after":
            reset(pipe)
        else:
            pipe.write(rest if at == "after" else b"")  # goes out with the orderly end
            pipe.write_eof()
            pipe.close()
        return response

    async def _dribble(self) -> web.StreamResponse:
        """The reply, the rest of it bit by bit."""
        response, pipe, rest = await self._write("start" if self.fault.at == "start" else "head")
        pieces = min(len(rest), math.ceil(self.fault.seconds / _SHORTEST_GAP_S))
        for piece in range(pieces):
            await asyncio.sleep(self.fault.seconds / pieces)
            pipe.write(rest[piece * len(rest) // pieces : (piece + 1) * len(rest) // pieces])
        return response

    async def _write(
        self, until: Point | Literal["head"]
    ) -> tuple[web.StreamResponse, asyncio.Transport, bytes]:
        """Write the whole reply, which goes out up to a point: the reply, its connection and the rest."""
        pipe = self.request.transport
        if pipe is None:
            raise ConnectionResetError("the client left")
        partial = PartialTransport(pipe, until)
        self.request.protocol.transport = cast("asyncio.Transport", partial)
        try:
            response = await self.work(stream=self.stream)
            await response.prepare(self.request)
            await response.write_eof()
        finally:
            if cast("object", self.request.transport) is partial:
                self.request.protocol.transport = pipe
        return response, pipe, partial.held


Buffer = bytes | bytearray | memoryview
_HEAD_END = b"\r\n\r\n"
_LAST_BYTES = 5
"""The terminating chunk of a stream, `0\\r\\n\\r\\n`; of another reply as much of its JSON."""


class PartialTransport:
    """Stands in for a connection while a reply is written, and passes on a part; the rest stays in `held`.

    Args:
        pipe: the connection, whose other methods are its own.
        until: the point of the reply up to which its bytes pass.
    """

    def __init__(self, pipe: asyncio.Transport, until: Point | Literal["head"]) -> None:
        self._pipe = pipe
        self._until = until
        self._written = bytearray()
        self._passed = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the connection has
        return getattr(self._pipe, name)

    @property
    def held(self) -> bytes:
        """What did not pass so far."""
        return bytes(self._written[self._passed :])

    def write(self, data: Buffer) -> None:
        """Take bytes of the reply, and pass on what may pass by now."""
        self._written += data
        passing = _passing(self._written, self._until)
        if passing > self._passed:
            self._pipe.write(bytes(self._written[self._passed : passing]))
            self._passed = passing

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """As `write`."""
        self.write(b"".join(list_of_data))


def _passing(written: bytearray, until: Point | Literal["head"]) -> int:
    """How many bytes of a reply, as far as it is written, come before a point; `head`: before its body."""
    if until == "start":
        return 0
    if until in {"end", "after"}:
        return max(0, len(written) - _LAST_BYTES)
    head, end_of_head, _ = written.partition(_HEAD_END)
    if not end_of_head:
        return 0
    before_body = len(head) + len(end_of_head)
    return before_body if until == "head" else (before_body + len(written)) // 2


def reset(pipe: asyncio.Transport) -> None:
    """Break a connection off so that the client sees a reset; one that is over stays so."""
    if pipe.is_closing():
        return
    connection = pipe.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pipe.abort()


_OTHER_TYPES: Mapping[str, Any] = {
    "response": 5,
    "message": "Yes.",
    "embeddings": [["one", "two"]],
    "choices": "Yes.",
    "data": [["one", "two"]],
    "model": 5,
    "done": "perhaps",
    "eval_count": "many",
    "total_duration": "long",
}
"""For each field a value that it never has."""


def _damaged(fault: Fault, endpoint: str, reply: wire.Body) -> bytes:
    """The body of a reply, struck by a fault of kind cut_json, empty, enormous, not_done or wrong_type."""
    content = FIELDS[endpoint][0]
    changed = dict(reply)
    if fault.kind == "empty":
        changed[content] = _without_words(reply[content])
    elif fault.kind == "enormous":
        changed[content] = _repeated(reply[content], fault.bytes)
    elif fault.kind == "not_done":
        changed = {name: value for name, value in reply.items() if name != "done_reason"} | {"done": False}
    elif fault.kind == "wrong_type":
        field = fault.field or content
        changed[field] = _OTHER_TYPES[field]
    body = wire.dumps(changed).rjust(fault.bytes)
    return body[: len(body) // 2] if fault.kind == "cut_json" else body


def _without_words(content: Any) -> Any:  # noqa: ANN401 - a field of JSON
    """A reply's content with no text, or no embeddings."""
    if _has_message(content):
        return [content[0] | {"message": _without_words(content[0]["message"])}]
    if isinstance(content, dict):
        return content | {"content": ""}
    return "" if isinstance(content, str) else []


def _repeated(content: Any, size: int) -> Any:  # noqa: ANN401 - a field of JSON
    """A reply's content with its text over and over, at least `size` bytes; embeddings as they are."""
    if _has_message(content):
        return [content[0] | {"message": _repeated(content[0]["message"], size)}]
    if isinstance(content, dict):
        return content | {"content": _repeated(content["content"], size)}
    return f"{content} " * (size // max(1, len(content)) + 1) if isinstance(content, str) else content


def _has_message(content: Any) -> bool:  # noqa: ANN401 - a field of JSON
    """Whether it is the choices of a chat completion."""
    return isinstance(content, list) and bool(content) and "message" in content[0]
