"""The numbers of a run over time: metrics.jsonl, and the same in TensorBoard.

Names are tags of TensorBoard, `group/name`: `calls/` is of `CallRates`; `time/`, `rollout/`,
`outcome/`, `reward/`, `mutators/`, `train/` and `gain/` are of a training; `evolve/`, `select/`,
`optimize/` and `population/` are of a search.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from records.json_lines import JsonLines


class MetricsWriter:
    """Writes each round of numbers as a line of metrics.jsonl and as an event of TensorBoard's.

    The folder of the event files is made; they are written without torch, which takes seconds to
    import. TensorBoard hides what earlier processes wrote there from `first_step` on.
    """

    def __init__(self, lines: JsonLines, tensorboard: Path, first_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-untyped]
            EventFileWriter,
        )

        self.lines = lines
        tensorboard.mkdir(parents=True, exist_ok=True)
        self._events = EventFileWriter(str(tensorboard))
        self._add(first_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write the numbers of one step; one that is not finite is None, and not in TensorBoard."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        known = {tag: v for tag, v in metrics.items() if v is not None and isfinite(v)}
        self.lines.write({"step": step, **dict.fromkeys(metrics), **known})
        self.lines.flush()
        values = [Summary.Value(tag=tag, simple_value=v) for tag, v in known.items()]
        self._add(step, summary=Summary(value=values))

    def _add(self, step: int, **what: Any) -> None:  # noqa: ANN401 - TensorBoard has no types
        from tensorboard.compat.proto.event_pb2 import Event

        self._events.add_event(Event(wall_time=time.time(), step=step, **what))

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._events.flush()

    def close(self) -> None:
        """Close both files."""
        self.lines.close()
        self._events.close()


class CallRates:
    """What calls cost since the last `restart`, by accounts as `Dispatcher.totals` gives them."""

    def __init__(self, totals: Mapping[str, float]) -> None:
        self.restart(totals)

    def restart(self, totals: Mapping[str, float]) -> None:
        """Count from here on."""
        self._before = totals
        self._began_s = time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds since then."""
        return max(time.monotonic() - self._began_s, 1e-9)

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """The `calls/` metrics since then."""
        spent = {key: totals[key] - self._before[key] for key in totals}
        wall_s, requests = self.wall_s, spent["calls"] + spent["cache_hits"]
        as_they_are = ("cached_tokens", "prompt_tokens", "retries", "failures")
        return {
            "calls/per_s": spent["calls"] / wall_s,
            "calls/slot_wait_s": spent["queue_s"] / max(spent["calls"], 1),
            "calls/busy_slots": spent["busy_s"] / wall_s,
            "calls/cache_hit_rate": spent["cache_hits"] / max(requests, 1),
            **{f"calls/{key}": spent[key] for key in as_they_are},
        }


def finite(data: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data for JSON: None for what is not a finite number, in what is within, too."""
    return {key: _finite(value) for key, value in data.items()}


def _finite(value: Any) -> Any:  # noqa: ANN401 - plain data
    if isinstance(value, Mapping):
        return finite(value)
    if isinstance(value, list | tuple):
        return list(map(_finite, value))
    return None if isinstance(value, float) and not isfinite(value) else value
