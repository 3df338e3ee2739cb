"""The numbers of a run over time: metrics.jsonl, and the same in TensorBoard.

Names are tags of TensorBoard, `group/name`. The groups, and where their numbers come from:

    calls/      calls a second, the wait for a slot, cache hits, retries, failures      `call_rates`
    time/       seconds, steps a second                                                 `call_rates`, train/
    rollout/ outcome/ reward/ mutators/   a rollout's episodes and steps                train/recorder.py
    train/      losses and updates                                                      train/ppo.py
    gain/       the policy against fixed mutators on kept queries                       train/gain.py
    audit/      the training reward against a second judge                              train/audit.py
    evolve/     a generation                                                            cli/evolve.py
    select/     a round of a selection                                                  cli/select.py
    optimize/ population/   a batch of questions, and the prompts behind it             search/optimizing/
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from records.json_lines import JsonLines
from records.terminal import code_block


class TensorBoard:
    """An event file, written without torch, which takes seconds to import.

    Args:
        path: the folder of the event files; it is made.
        first_step: what earlier processes wrote there of steps from this one on is hidden.
    """

    def __init__(self, path: Path, first_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]
            Event,
            SessionLog,
        )
        from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-untyped]
            EventFileWriter,
        )

        path.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(path))
        started = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=first_step, session_log=started))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add the numbers of one step."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self.add(step, Summary(value=values))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Add a text. TensorBoard takes it for Markdown, so it goes there as code."""
        from tensorboard.plugins.text.summary import text_pb  # type: ignore[import-untyped]

        self.add(step, text_pb(tag, code_block(text)))

    def add(self, step: int, summary: Any) -> None:  # noqa: ANN401 - TensorBoard has no types
        """Add a summary as TensorBoard's own message."""
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class MetricsWriter:
    """Writes each round of numbers as a line of metrics.jsonl and into TensorBoard.

    Args:
        lines: metrics.jsonl.
        board: TensorBoard's.
    """

    def __init__(self, lines: JsonLines, board: TensorBoard) -> None:
        self.lines = lines
        self.board = board

    def write(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write the numbers of one step; one that is not finite is None, and not in TensorBoard."""
        numbers = {name: v if v is not None and isfinite(v) else None for name, v in metrics.items()}
        self.lines.write({"step": step, **numbers})
        self.lines.flush()
        self.board.write(step, {name: value for name, value in numbers.items() if value is not None})

    def close(self) -> None:
        """Close both files."""
        self.lines.close()
        self.board.close()


class CallRates:
    """What calls cost between two looks at a dispatcher's accounts.

    Args:
        totals: the accounts now, see `ollama_utils.dispatcher.account_totals`.
    """

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
        return {
            "calls/per_s": spent["calls"] / wall_s,
            "calls/slot_wait_s": spent["queue_s"] / max(spent["calls"], 1),
            "calls/busy_slots": spent["busy_s"] / wall_s,
            "calls/cache_hit_rate": spent["cache_hits"] / max(requests, 1),
            "calls/retries": spent["retries"],
            "calls/failures": spent["failures"],
        }


def finite(data: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data ready for JSON: None in place of what is not a finite number, in mappings within, too."""
    return {key: _finite(value) for key, value in data.items()}


def _finite(value: Any) -> Any:  # noqa: ANN401 - plain data
    if isinstance(value, Mapping):
        return finite(value)
    return None if isinstance(value, float) and not isfinite(value) else value
