"""When the servers' slots were busy: each call of a run as a bar, from its logs of replies.

A log says when a reply was written down and how long the server took for it: a call's bar ends
then, and is as long as the server worked on it. Bars that overlap lie in different lanes. An
evaluation on Ray has a log of each task beside its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ollama_utils.on_ray import task_logs
from ollama_utils.reply_log import open_readonly
from records.run_folder import REPLIES
from report.charts import Chart

MOST_CALLS = 20_000
"""Calls that are drawn one by one; of more the page shows only how busy the lanes were."""
MOST_LANES = 64
MOST_ROWS = 1_000_000
"""Calls that are read of the logs, all in all."""
BINS = 240
"""Parts of a lane, for each of which the page shows how busy it was."""
PAUSE_S = 60.0
"""A longer time without any call is cut out: the run was stopped, and resumed."""
SLACK = 0.2
"""Bars may overlap by this share of the shorter one, and still lie in one lane: a reply is written
down a little after it has arrived."""
_CALLS = """
SELECT server, model, at_s, coalesce(json_extract(reply, '$.usage.prefill_s'), 0)
    + coalesce(json_extract(reply, '$.usage.decode_s'), 0),
    coalesce(json_extract(reply, '$.usage.load_s'), 0)
FROM replies NOT INDEXED
WHERE attempts > 0 AND error IS NULL AND endpoint <> 'embed' LIMIT ?
"""


class Bar(NamedTuple):
    """One call; seconds since 1970."""

    begin_s: float
    end_s: float
    server: str
    model: str


def slots_chart(run: Path) -> Chart | None:
    """When the slots of a run's servers were busy; None where no reply says how long it took.

    Raises:
        FileNotFoundError: there is no log.
        ReplyLogError: the file is no log, or cannot be read.
    """
    (run / REPLIES).stat()
    calls: list[tuple[bytes, bytes, float, float, float]] = []
    for path in (run / REPLIES, *task_logs(run)):
        with open_readonly(path) as log:
            calls += log.execute(_CALLS, (MOST_ROWS - len(calls),))
    bars = sorted(
        Bar(at_s - load_s - worked_s, at_s, server.decode(), model.decode())
        for server, model, at_s, worked_s, load_s in calls
        if worked_s
    )
    if not bars:
        return None
    bars, pauses = _without_pauses(bars)
    lanes: dict[tuple[str, str, int], list[Bar]] = {}
    for bar in bars:
        _place(bar, lanes)
    count, span_s = sum(map(len, lanes.values())), max(bar.end_s for bar in bars)
    busy = {name: _shares(lane, span_s) for name, lane in lanes.items()}
    mean = sum(sum(shares) for shares in busy.values()) / (BINS * len(lanes))
    several = len({server for server, *_ in lanes}) > 1
    says = (
        f"{count:,} calls on {len(lanes)} lanes, busy {mean:.0%} of the time. A bar ends when its "
        "reply was written down and is as long as the server says that it worked; gaps are idle "
        "time. A model has as many lanes as it was seen to work on calls at once."
    )
    if untimed := len(calls) - len(bars):
        says += f" {untimed:,} more calls are left out: no server said how long they took."
    if count < len(bars):
        says += f" {len(bars) - count:,} more calls are left out: no lane was free."
    if pauses:
        says += f" {pauses} longer pauses are cut out: the run was stopped, and resumed."
    names = {name: " ".join(map(str, name if several else name[1:])) for name in sorted(lanes)}
    return {
        "kind": "slots",
        "title": "The servers' slots",
        "says": says,
        "columns": ("lane", "model", "busy share"),
        "rows": [[names[n], n[1], round(sum(busy[n]) / BINS, 4)] for n in names],
        "busy": [busy[name] for name in names],
        "calls": [
            [[round(b.begin_s, 4), round(b.end_s - b.begin_s, 4)] for b in lanes[name]]
            for name in names
        ]
        if count <= MOST_CALLS
        else None,
        "span_s": span_s,
    }


def _without_pauses(bars: list[Bar]) -> tuple[list[Bar], int]:
    """The bars in seconds since the first began, long pauses cut out, and how many these are."""
    begins, ends = np.array([(bar.begin_s, bar.end_s) for bar in bars]).T
    gaps = begins[1:] - np.maximum.accumulate(ends)[:-1]
    pauses = np.where(gaps > PAUSE_S, gaps, 0.0)
    cuts = np.cumsum([begins[0], *pauses])
    times = zip((begins - cuts).tolist(), (ends - cuts).tolist(), strict=True)
    found = [bar._replace(begin_s=t[0], end_s=t[1]) for bar, t in zip(bars, times, strict=True)]
    return found, int(np.count_nonzero(pauses))


def _place(bar: Bar, lanes: dict[tuple[str, str, int], list[Bar]]) -> None:
    """Put a bar into the first lane of its model where it overlaps nothing, or into a new one."""
    number = 1
    while lane := lanes.get(name := (bar.server, bar.model, number)):
        last = lane[-1]
        slack = SLACK * min(bar.end_s - bar.begin_s, last.end_s - last.begin_s)
        if last.end_s <= bar.begin_s + slack:
            lane.append(bar._replace(begin_s=max(bar.begin_s, last.end_s)))
            return
        number += 1
    if len(lanes) < MOST_LANES:
        lanes[name] = [bar]


def _shares(lane: list[Bar], span_s: float) -> list[float]:
    """The share of each bin in which the lane was busy."""
    ends = np.array([(bar.begin_s, bar.end_s) for bar in lane])
    done = np.cumsum(ends[:, 1] - ends[:, 0])
    so_far = np.column_stack([done - (ends[:, 1] - ends[:, 0]), done]).ravel()
    seconds = np.interp(np.linspace(0, span_s, BINS + 1), ends.ravel(), so_far)
    shares: list[float] = np.round(np.diff(seconds) * BINS / span_s, 4).tolist()
    return shares
