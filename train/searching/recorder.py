"""Writes a search down as it goes: metrics.jsonl, TensorBoard, the progress line."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from math import isfinite

from ollama_utils.dispatcher import Dispatcher
from train.json_lines import JsonLines
from train.run_folder import RunFolder
from train.searching.progress import SearchProgress
from train.searching.tensorboard import TensorBoard
from train.transitions import account_totals


class SearchStoppedError(Exception):
    """The search is told that nobody waits for it any more."""


class Recorder:
    """What a search tells its rounds to; a resumed one tells all of them again, so the files begin anew.

    Args:
        folder: the run's.
        dispatcher: where the calls go.
        progress: shows how far the search is.
    """

    def __init__(self, folder: RunFolder, dispatcher: Dispatcher, progress: SearchProgress) -> None:
        self._lines = JsonLines(folder.path / "metrics.jsonl")
        self._board = TensorBoard(folder.tensorboard)
        self._dispatcher = dispatcher
        self._progress = progress
        self._stopped = False
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._before = account_totals(dispatcher)

    def record(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        *,
        done: int,
        best: float | None = None,
        standing: str | None = None,
    ) -> None:
        """Write down one round.

        Args:
            step: its number.
            metrics: by TensorBoard's names; None and what is no finite number is left out there.
            done: how much of the search is done, in the unit of its progress line.
            best: the best score so far, where there is another one.
            standing: how well the search does, in words, in the place of a best score.

        Raises:
            SearchStoppedError: nothing is to be recorded any more.
        """
        with self._lock:
            if self._stopped:
                raise SearchStoppedError
            told = {k: v if v is not None and isfinite(v) else None for k, v in metrics.items()}
            told |= self._speed()
            self._lines.write({"step": step, **told})
            self._lines.flush()
            self._board.write(step, {name: value for name, value in told.items() if value is not None})
        self._progress.advance(done, best, standing)

    def advance(self, done: int) -> None:
        """Say how much of the search is done, within a round; cheap.

        Raises:
            SearchStoppedError: nobody waits for it any more.
        """
        if self._stopped:
            raise SearchStoppedError
        self._progress.advance(done)

    def stop(self) -> None:
        """Record nothing from now on, and close the files."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._lines.close()
                self._board.close()

    def _speed(self) -> dict[str, float | None]:
        """Calls since the last round, as the dispatcher counts them."""
        now, came_s = account_totals(self._dispatcher), time.monotonic()
        spent = {key: now[key] - self._before[key] for key in now}
        wall_s = max(came_s - self._began_s, 1e-9)
        self._before, self._began_s = now, came_s
        asked = spent["calls"] + spent["cache_hits"]
        return {
            "calls/per_s": spent["calls"] / wall_s,
            "calls/cache_hit_rate": spent["cache_hits"] / max(asked, 1),
            "calls/retries": spent["retries"],
            "calls/failures": spent["failures"],
            "calls/busy_slots": spent["busy_s"] / wall_s,
            "time/wall_s": wall_s,
        }
