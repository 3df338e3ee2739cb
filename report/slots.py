"""When the servers' slots were busy: each call of a run as a bar, from its log of replies.

The log says when a reply came and what the server took for it, not when it began; so a call's bar ends when
its reply was written down, and is as long as the server worked on it. Bars that overlap lie in different
lanes, so that a model at a server has as many lanes as it was seen to work on calls at once.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ollama_utils.reply_log import open_readonly
from ollama_utils.types import is_count
from records.run_folder import REPLIES

MOST_CALLS = 20_000
"""Calls that are drawn one by one."""
BINS = 240
"""Parts of a lane for each of which it is told how busy it was."""
PAUSE_S = 60.0
"""A longer time without any call is cut out: the run was stopped, and gone on with."""
MOST_LANES = 64
"""Of a model at a server."""
MOST_LANES_IN_ALL = 256
COPIES = 5
"""Times that a log is copied at most which is being written."""
MOST_BYTES = 2**32
"""Bytes of a log that is copied: 4 GiB."""
MOST_ROWS = 1_000_000
"""Calls that are read of a log."""
SLACK = 0.2
"""Bars may overlap by this share of the shorter one, and still lie in one lane: a reply is written down a
little after it came."""
_CALLS = """
SELECT substr(server, 1, 200), substr(model, 1, 200), at_s, json_extract(reply, '$.usage.load_s'),
    json_extract(reply, '$.usage.prefill_s'), json_extract(reply, '$.usage.decode_s')
FROM replies NOT INDEXED
WHERE attempts > 0 AND error IS NULL AND endpoint <> 'embed' AND json_valid(reply)
LIMIT ?
"""


class Bar(NamedTuple):
    """One call, in seconds since the first began."""

    begin_s: float
    end_s: float


class LoggedCall(NamedTuple):
    """One call as the log has it."""

    server: str
    model: str
    came_s: float
    """When its reply was written down."""
    worked_s: float
    """What the server took for it, waiting left out; 0 where it does not say."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The lanes of the servers that a run used."""

    models: list[str]
    lanes: list[dict[str, Any]]
    """For each its server, model and number, `calls` as [begin_s, seconds], and the share of each bin that it
    was busy."""
    span_s: float
    busy: float
    """The share of the lanes' time in which a call was worked on."""
    count: int
    """Calls that are drawn."""
    untimed: int
    """Calls of which the server does not say how long it worked."""
    left_out: int
    """Calls for which there were too many lanes."""
    pauses: int
    """Longer times without any call, which are cut out."""
    is_whole: bool
    """Whether every call is among the lanes' `calls`; else these are empty, and the bins tell."""


def read_slots(run: Path) -> Slots | None:
    """How busy the slots of a run's servers were; None where its log has no call that says how long it took.

    Raises:
        FileNotFoundError: there is no log.
        OSError: the file is not a log, or cannot be read.
    """
    path = run / REPLIES
    with tempfile.TemporaryDirectory() as folder:
        if path.stat().st_size and path.with_name(f"{REPLIES}-wal").exists():
            path = _copied(path, Path(folder))
        with open_readonly(path) as log:
            calls = list(_calls(log.execute(_CALLS, (MOST_ROWS,))))
    return _laid_out(calls) if any(call.worked_s for call in calls) else None


def _copied(path: Path, folder: Path) -> Path:
    """A copy of a log with its write-ahead log, for SQLite reads the two only where it may write.

    They belong together where the log did not change while both were copied, as a checkpoint changes it.

    Raises:
        OSError: they are no files, too large, or change all the time.
    """
    for _ in range(COPIES):
        before = path.stat()
        for file in (path, path.with_name(f"{path.name}-wal")):
            if file.exists() and (not file.is_file() or file.stat().st_size > MOST_BYTES):
                raise OSError(f"{file.name} is no file of up to {MOST_BYTES} bytes")
            (folder / file.name).unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # the run ended meanwhile
                shutil.copyfile(file, folder / file.name)
        now = path.stat()
        if (before.st_mtime_ns, before.st_size) == (now.st_mtime_ns, now.st_size):
            return folder / path.name
    raise OSError(f"{path.name} is written all the time; make the report again later")


def _calls(rows: Iterable[tuple[Any, ...]]) -> Iterator[LoggedCall]:
    for server, model, at_s, *seconds in rows:
        load_s, prefill_s, decode_s = (0.0 if value is None else value for value in seconds)
        if not all(map(is_count, (at_s, load_s, prefill_s, decode_s))):
            continue
        worked_s = load_s + prefill_s + decode_s if prefill_s + decode_s else 0.0
        yield LoggedCall(_text(server), _text(model), float(at_s), float(worked_s))


def _text(stored: bytes | None) -> str:
    return (stored or b"").decode("utf-8", "replace")


def _laid_out(calls: Sequence[LoggedCall]) -> Slots:
    bars, pauses = _without_pauses([call for call in calls if call.worked_s])
    lanes: dict[tuple[str, str], list[list[Bar]]] = {}
    room = MOST_LANES_IN_ALL
    for call, bar in bars:
        own = lanes.setdefault((call.server, call.model), [])
        room -= _place(own, bar, most=min(MOST_LANES, len(own) + room))
    count = sum(len(lane) for own in lanes.values() for lane in own)
    span = max(bar.end_s for _, bar in bars)
    is_whole = count <= MOST_CALLS
    told: list[dict[str, Any]] = [
        {
            "server": server,
            "model": model,
            "number": number,
            "busy": [round(share, 4) for share in _shares(lane, span)],
            "calls": [[round(b.begin_s, 4), round(b.end_s - b.begin_s, 4)] for b in lane] if is_whole else [],
        }
        for (server, model), own in sorted(lanes.items())
        for number, lane in enumerate(own, start=1)
    ]
    busy = sum(sum(lane["busy"]) for lane in told) / (BINS * len(told))
    return Slots(
        models=sorted({lane["model"] for lane in told}),
        lanes=told,
        span_s=span,
        busy=busy,
        count=count,
        untimed=len(calls) - len(bars),
        left_out=len(bars) - count,
        pauses=pauses,
        is_whole=is_whole,
    )


def _without_pauses(calls: Sequence[LoggedCall]) -> tuple[list[tuple[LoggedCall, Bar]], int]:
    """Each call, by its begin, with its bar; and how many long pauses are cut out."""
    timed = sorted(calls, key=lambda call: call.came_s - call.worked_s)
    first = timed[0].came_s - timed[0].worked_s
    cut, last, pauses, found = first, first, 0, []
    for call in timed:
        begin = call.came_s - call.worked_s
        if begin - last > PAUSE_S:
            cut += begin - last
            pauses += 1
        last = max(last, call.came_s)
        found.append((call, Bar(begin - cut, call.came_s - cut)))
    return found, pauses


def _place(lanes: list[list[Bar]], bar: Bar, most: int) -> bool:
    """Put a bar into the first lane where it overlaps nothing; a new one where there is none.

    Args:
        lanes: those of its model at its server.
        bar: left out where there is no lane and may be none.
        most: lanes that there may be; with these the bar is cut, in the one that is free first.

    Returns:
        Whether there is a new lane.
    """
    for lane in lanes:
        last = lane[-1]
        slack = SLACK * min(bar.end_s - bar.begin_s, last.end_s - last.begin_s)
        if last.end_s <= bar.begin_s + slack:
            lane.append(bar._replace(begin_s=max(bar.begin_s, last.end_s)))
            return False
    if len(lanes) < most:
        lanes.append([bar])
        return True
    if lanes:
        lane = min(lanes, key=lambda lane: lane[-1].end_s)
        lane.append(bar._replace(begin_s=min(bar.end_s, max(bar.begin_s, lane[-1].end_s))))
    return False


def _shares(lane: Sequence[Bar], span: float) -> list[float]:
    """The share of each bin in which the lane was busy."""
    shares, width = [0.0] * BINS, span / BINS
    for bar in lane:
        for k in range(int(bar.begin_s / width), min(BINS - 1, int(bar.end_s / width)) + 1):
            covered = min(bar.end_s, (k + 1) * width) - max(bar.begin_s, k * width)
            shares[k] += max(0.0, covered) / width
    return [min(1.0, share) for share in shares]
