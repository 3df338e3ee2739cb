"""One thread that encodes what many ask for: texts that can share a pass of the model do."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import BadRequestError, CallCancelledError, EncodingError, OllamaError
from ollama_utils.types import is_text

_LAST_PASS_S = 10.0


class TextEncoder(Protocol):
    """What turns texts into vectors: see `ollama_utils.encoders.Encoder`."""

    name: str

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows; EncodingError when some texts have none, any other error when all have none."""
        ...


@runtime_checkable
class PassEncoder(TextEncoder, Protocol):
    """A model in this process that is worth a thread of its own: several texts cost little more than one."""

    pass_size: int
    """The most texts that are encoded together."""

    def shapes(self, texts: Sequence[str]) -> Sequence[Hashable]:
        """What must be equal for texts to share a pass: one value a text."""
        ...


Row = NDArray[np.float32]
"""(D,)."""


class Job:
    """A text that somebody wants encoded."""

    __slots__ = ("_outcome", "_under_way", "is_awaited", "shape", "text")

    def __init__(self, text: str, *, is_awaited: bool = False) -> None:
        self.text = text
        self.is_awaited = is_awaited
        """Whether somebody waits for it now, and not only later."""
        self.shape: Hashable = None
        self._outcome: Row | Exception | None = None
        self._under_way = threading.Lock()
        self._under_way.acquire()

    @property
    def has_failed(self) -> bool:
        """Whether it is known that there is no row."""
        return isinstance(self._outcome, Exception)

    def settle(self, outcome: Row | Exception) -> None:
        """Tell all who wait the row, or why there is none; once."""
        self._outcome = outcome
        self._under_way.release()

    def row(self) -> Row:
        """Wait for the row; raises what stands in its place."""
        if self._outcome is None:
            with self._under_way:
                pass
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return cast("Row", self._outcome)


def encode_jobs(encoder: TextEncoder, jobs: Sequence[Job]) -> None:
    """Encode the texts together, and tell all who wait: each text's row, or why it has none.

    What is no mere failure of the encoder, such as Ctrl-C, is raised here; the others are told
    CallCancelledError.
    """
    outcomes: list[Row | Exception]
    outcomes = [CallCancelledError("the encoding was interrupted")] * len(jobs)
    try:
        outcomes = _outcomes(encoder, [job.text for job in jobs])
    except Exception as error:  # noqa: BLE001 - whoever waits for a row is told, this thread too
        outcomes = [error] * len(jobs)
    finally:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.settle(outcome)


def _outcomes(encoder: TextEncoder, texts: list[str]) -> list[Row | Exception]:
    """Each text's row, or why it has none; as many as there are texts, or a ValueError."""
    failures: dict[int, OllamaError] = {}
    try:
        rows = encoder.encode(texts)
    except EncodingError as error:
        rows, failures = error.rows, error.failures
    if len(rows) != len(texts):
        raise ValueError(f"expected {len(texts)} rows of encoder {encoder.name!r}, got {len(rows)}")
    return [failures.get(index, row.copy()) for index, row in enumerate(rows)]


class EncodingWorker:
    """Encodes the jobs of many threads on one of its own, pass by pass.

    A pass takes the first job that somebody waits for, or else the first of all, and with it as many of
    the same shape as there is room for, in the same order. The thread starts with the first job and ends
    with `stop`; it does not outlive a fork.

    Args:
        encoder: is called on the worker's thread alone.
    """

    def __init__(self, encoder: PassEncoder) -> None:
        self._pid = os.getpid()
        self._encoder = encoder
        self._changed = threading.Condition()
        self._arrived: list[Job] = []
        self._queue: list[Job] = []
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        _workers.add(self)

    def add(self, jobs: Sequence[Job]) -> None:
        """Have jobs done; after `stop` they fail with CallCancelledError. Never raises."""
        try:
            with self._changed:
                self._start()
                self._arrived.extend(jobs)
                self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - stopped, or no thread can be had: all who wait are told
            _fail(jobs, error)

    def stop(self) -> None:
        """Begin no further pass; the jobs that are left fail with CallCancelledError."""
        if self._pid != os.getpid():  # a copy in a forked child, whose lock may be held for ever
            return
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def wait_for_last_pass(self) -> None:
        """Wait, some seconds at most, for the pass that is under way when `stop` is called."""
        if self._thread is not None:
            self._thread.join(_LAST_PASS_S)

    def _start(self) -> None:
        if self._is_stopped:
            raise _closed()
        if self._thread is None:
            name = f"encoding-{self._encoder.name}"
            thread = threading.Thread(target=self._live, name=name, daemon=True)
            thread.start()
            self._thread = thread

    def _live(self) -> None:
        while self._wait_for_work():
            self._measure()
            if jobs := self._next_pass():
                with suppress(BaseException):  # all who wait were told, and nobody else is here to be
                    encode_jobs(self._encoder, jobs)
        _fail(self._arrived, _closed())
        _fail(self._queue, _closed())

    def _wait_for_work(self) -> bool:
        """Wait until there is a job; False when the worker is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._queue or self._is_stopped)
            return not self._is_stopped

    def _measure(self) -> None:
        """Queue the jobs that have arrived by their shapes; a text that would spoil a pass fails alone."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
        jobs = [job for job in arrived if is_text(job.text)]
        for job in arrived:
            if not is_text(job.text):
                _fail([job], BadRequestError(f"expected valid Unicode text, got {job.text!r}"))
        try:
            shapes = self._encoder.shapes([job.text for job in jobs]) if jobs else []
            for job, shape in zip(jobs, shapes, strict=True):
                job.shape = shape
        except Exception as error:  # noqa: BLE001 - whoever waits for a row is told
            _fail(jobs, error)
        else:
            self._queue += jobs

    def _next_pass(self) -> list[Job]:
        """The jobs to be encoded now, taken from the queue."""
        self._queue.sort(key=lambda job: not job.is_awaited)  # stable: among equals the first comes first
        alike = [job for job in self._queue if job.shape == self._queue[0].shape]
        taken = alike[: self._encoder.pass_size]
        self._queue = [job for job in self._queue if job not in taken]
        return taken


def _fail(jobs: Sequence[Job], error: Exception) -> None:
    """Tell all who wait why there are no rows."""
    for job in jobs:
        job.settle(error)


def _closed() -> CallCancelledError:
    return CallCancelledError("the encoder was closed before the text was encoded")


_workers: weakref.WeakSet[EncodingWorker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """An interpreter that ends while a thread computes in native code aborts the process."""
    workers = list(_workers)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.wait_for_last_pass()
