"""Sentence embeddings behind one protocol: a text has the same row, bit for bit, in any company.

`make_encoder` makes one by name: `HashingEncoder` (words into buckets), `OllamaEncoder` (an embedding model
of a server) or `SentenceEncoder` (a sentence-transformers model, see `sentence_encoder`), whose rows
`StoredEncoder` keeps in a file for later runs. `CachedEncoder` stands before each of them: it remembers
rows, and has the texts of many threads encoded together by an `EncodingWorker`.
"""

from __future__ import annotations

import json
import os
import re
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallCancelledError,
    EncodingError,
    OllamaError,
    ServerFaultError,
    UnknownEncoderError,
)
from ollama_utils.plans import stop_at_exit
from ollama_utils.quantized_encoder import QuantizedEncoder, can_quantize
from ollama_utils.reply_log import CallOutcome, ReplyLog, embed_question
from ollama_utils.sentence_encoder import SentenceEncoder, model_folder
from ollama_utils.types import is_text, short_name, unit_rows

_SAMPLE = "The same text has the same embedding."
_KNOWN = "known"
"""The shape of all texts that need no pass of the model."""
_CHUNK = 32
_KNOWN_GOOD = ("dimension",)
_MAY_BE_OF_ONE_TEXT = (BadRequestError, ServerFaultError, BadReplyError)
_DEFAULT_DIMENSION = 384
_MOST_DIMENSION, _MOST_DIGITS = 2**16, 5
"""The longest row, as of a server's embeddings, and the digits of its length."""
_CACHE_SIZE = 32768
_LAST_PASS_S = 10.0
_SIGN_BIT = 31
_WORD = re.compile(r"\w+")


class Encoder(Protocol):
    """Turns texts into vectors."""

    name: str
    """The name that `make_encoder` knows it by."""
    dimension: int
    """D, the length of a vector."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a text's row does not depend on the other texts.

        Raises:
            EncodingError: some texts have no row; it holds those of the others.
        """
        ...


@runtime_checkable
class PrefetchingEncoder(Encoder, Protocol):
    """An encoder that can encode texts before they are asked for."""

    def prefetch(self, texts: Sequence[str]) -> None:
        """Have texts encoded when nobody waits for any other; comes back at once and never raises."""
        ...


@runtime_checkable
class PassEncoder(Encoder, Protocol):
    """A model in this process that is worth a thread of its own: several texts cost little more than one."""

    pass_size: int
    """The most texts that are encoded together."""

    def shapes(self, texts: Sequence[str]) -> Sequence[Hashable]:
        """What must be equal for texts to share a pass: one value a text."""
        ...


def make_encoder(
    name: str, dispatcher: Dispatcher | None = None, *, store: Path | None = None
) -> CachedEncoder:
    """The encoder of a name, which never encodes a text twice while it remembers it.

    Args:
        name: `hashing` or `hashing:256` (the dimension); `ollama:MODEL`; anything else is a
            sentence-transformers model, by name or path.
        dispatcher: sends the calls of an `ollama:` encoder.
        store: a log of replies that keeps what a sentence-transformers model has encoded, for later runs, too;
            hashing costs less than a look, and the calls of an `ollama:` encoder are kept by the dispatcher.

    Raises:
        UnknownEncoderError: there is no such encoder; the message says what to do.
        ReplyLogError: the store cannot be used.
        OllamaError: the server of an `ollama:` encoder does not embed.
    """
    if not name.strip():
        raise UnknownEncoderError(
            "no encoder is named; expected 'hashing', 'ollama:MODEL' or a model's name"
        )
    kind, _, rest = name.partition(":")
    if kind == "hashing":
        return CachedEncoder(HashingEncoder(_dimension(name, rest)))
    if kind == "ollama":
        if dispatcher is None or not rest:
            raise UnknownEncoderError(
                f"encoder {name!r} needs a model and a server: write 'ollama:MODEL'"
            )
        return CachedEncoder(OllamaEncoder(dispatcher, rest))
    folder = model_folder(name)
    quantize = folder is not None and can_quantize(folder)
    encoder = QuantizedEncoder(name, folder) if folder and quantize else SentenceEncoder(name)
    return CachedEncoder(StoredEncoder(encoder, store) if store else encoder)


class HashingEncoder:
    """Words and character trigrams hashed into signed buckets: fast, and the same everywhere.

    Texts that share words are near each other; meaning it does not know. For tests and benchmarks.
    The hashing trick is that of Weinberger et al., 2009 (arXiv 0902.2206).

    Args:
        dimension: D, the number of buckets.
    """

    def __init__(self, dimension: int = _DEFAULT_DIMENSION) -> None:
        self.name = f"hashing:{dimension}"
        self.dimension = dimension

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a text without words gives (1, 0, ..., 0)."""
        rows = np.zeros((len(texts), self.dimension))
        for row, text in zip(rows, texts, strict=True):
            for part in _parts(text):
                code = zlib.crc32(part.encode("utf-8"))
                row[code % self.dimension] += 1.0 if code >> _SIGN_BIT else -1.0
        return unit_rows(rows)


class OllamaEncoder:
    """An embedding model of an Ollama server, sent many texts at once.

    One text may spoil a request: an over-long one is rejected, one whose numbers are not finite makes
    the server fail or its reply unusable. So after such an error each text is sent alone, and gets
    the row or the error that it gets alone; unless the server now fails at the text, too, that it
    embedded at the start. Then it is the server that is broken, and the request's error is that of all
    its texts, as it is when the server is away, busy or late.

    Texts of several threads are not put into one request. A server embeds one text after another anyway,
    and how many requests a run makes, which is counted and kept, would depend on who came when.

    Args:
        dispatcher: sends the calls.
        model: the embedding model's name.

    Raises:
        OllamaError: the model does not embed; it is tried once, to learn the dimension.
    """

    def __init__(self, dispatcher: Dispatcher, model: str) -> None:
        self.name = f"ollama:{model}"
        self._dispatcher = dispatcher
        self._model = model
        self.dimension = int(dispatcher.embed(model, _KNOWN_GOOD).shape[1])

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a blank text, which servers refuse, gives (1, 0, ..., 0).

        Raises:
            EncodingError: the server gave no embeddings of some texts, after all attempts.
        """
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        rows[:, :1] = 1.0
        failures: dict[int, OllamaError] = {}
        written = [index for index, text in enumerate(texts) if text.strip()]
        chunks = deque(written[start : start + _CHUNK] for start in range(0, len(written), _CHUNK))
        while chunks:
            chunk = chunks.popleft()
            try:
                rows[chunk] = self._embed([texts[index] for index in chunk])
            except OllamaError as error:
                if len(chunk) > 1 and isinstance(error, _MAY_BE_OF_ONE_TEXT) and self._is_up():
                    chunks.extend([index] for index in chunk)
                else:
                    failures |= dict.fromkeys(chunk, error)
        if failures:
            raise EncodingError(rows, failures)
        return rows

    def _is_up(self) -> bool:
        try:
            self._dispatcher.embed(self._model, _KNOWN_GOOD, fresh=True)
        except OllamaError:
            return False
        return True

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = self._dispatcher.embed(self._model, texts)
        if rows.shape[1] != self.dimension:
            raise BadReplyError(
                f"encoder {self.name!r} gave embeddings of length {rows.shape[1]}; "
                f"expected {self.dimension}, as at first: was its model exchanged?"
            )
        return rows


class StoredEncoder:
    """An encoder whose rows are kept in a log of replies, and read from it as the same bits.

    Rows are kept apart by the encoder's name and by how it embeds a sample: other weights find nothing.

    Args:
        encoder: encodes what is not in the log.
        path: the file of the log, which other encoders and the replies of models may share; it is
            made, but not its folder.

    Raises:
        ReplyLogError: the file cannot be made, or is not a log.
    """

    def __init__(self, encoder: PassEncoder, path: Path) -> None:
        self.name = encoder.name
        self.pass_size = encoder.pass_size
        self._encoder = encoder
        sample = encoder.encode([_SAMPLE])
        self.dimension = sample.shape[1]
        digest = blake2b(sample.tobytes(), digest_size=16).hexdigest()
        self._log = ReplyLog(path, digests={short_name(self.name): digest})
        weakref.finalize(self, self._log.close)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1: those in the log, the others by the encoder, which are then kept.

        Raises:
            ReplyLogError: the log cannot be read or written.
        """
        rows = self._find(texts)
        new = [text for text in dict.fromkeys(texts) if text not in rows]
        if new:
            for text, row in zip(new, self._encoder.encode(new), strict=True):
                # Nine digits are all bits of a float32; those of a float64 take twice as long to read.
                numbers = ", ".join(f"{number:.8e}" for number in row.tolist())
                reply = f"[{numbers}]"
                self._log.write(embed_question(self.name, text), CallOutcome(reply=reply))
                rows[text] = row
        return np.stack([rows[text] for text in texts])

    def shapes(self, texts: Sequence[str]) -> list[Hashable]:
        """What must be equal for texts to share a pass: texts in the log pass together.

        Raises:
            ReplyLogError: the log cannot be read.
        """
        known = self._find(texts)
        new = [text for text in texts if text not in known]
        shapes = iter(self._encoder.shapes(new) if new else ())
        return [_KNOWN if text in known else next(shapes) for text in texts]

    def _find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        found = {}
        for text in dict.fromkeys(texts):
            reply = self._log.find(embed_question(self.name, text))
            row = np.array(json.loads(reply or "[]"), dtype=np.float32)
            if row.shape == (self.dimension,):
                found[text] = row
        return found


class CachedEncoder:
    """Remembers the latest texts; equal texts on several threads are encoded once.

    A `PassEncoder` gets a thread of its own, on which the texts that many threads ask for are encoded
    together. Any other encoder is called on the thread that asks.

    Args:
        encoder: encodes the texts that are not known.
        size: how many texts are remembered; the one unused for longest goes first.
    """

    def __init__(self, encoder: Encoder, size: int = _CACHE_SIZE) -> None:
        self.name = encoder.name
        self.dimension = encoder.dimension
        self.hits = 0
        """Texts whose row was known, or on its way."""
        self._encoder = encoder
        self._size = size
        self._begin()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a text's row does not depend on the other texts.

        Raises:
            EncodingError: some texts have no row, as the encoder under this one had none for this thread
                or for another; CallCancelledError when it was interrupted.
        """
        self._forget_after_fork()
        jobs, new = self._look_up(texts, is_awaited=True)
        if new and self._worker is not None:
            self._worker.add(new)
        elif new:
            encode_jobs(self._encoder, new)
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        failures: dict[int, OllamaError] = {}
        for index, text in enumerate(texts):
            try:
                rows[index] = jobs[text].row()
            except OllamaError as error:
                failures[index] = error
        if failures:
            raise EncodingError(rows, failures)
        return rows

    def prefetch(self, texts: Sequence[str]) -> None:
        """Have texts encoded that will be asked for later, when nobody waits for any other.

        Comes back at once and never raises; a failure is not remembered. It does nothing where texts are
        encoded on the thread that asks: hashing is too cheap to hand over, and a call to a server is
        counted, kept and paid for, so none is made that may turn out not to be needed.
        """
        self._forget_after_fork()
        if self._worker is not None:
            _, new = self._look_up(texts, is_awaited=False)
            if new:
                self._worker.add(new)

    def _look_up(
        self, texts: Sequence[str], *, is_awaited: bool
    ) -> tuple[dict[str, Job], list[Job]]:
        """The job of each text, done or not; and those among them that are new. A failed one is not known."""
        jobs: dict[str, Job] = {}
        new: list[Job] = []
        with self._lock:
            for text in dict.fromkeys(texts):
                job = self._jobs.get(text)
                if job is None or job.has_failed:
                    job = Job(text)
                    new.append(job)
                job.is_awaited |= is_awaited
                jobs[text] = self._jobs[text] = job
            if is_awaited:
                self.hits += len(texts) - len(new)
        return jobs, new

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._jobs: LRUCache[str, Job] = LRUCache(self._size)
        self._worker: EncodingWorker | None = None
        if isinstance(self._encoder, PassEncoder):
            self._worker = EncodingWorker(self._encoder)
            weakref.finalize(self, self._worker.stop)
        self._pid = os.getpid()

    def _forget_after_fork(self) -> None:
        """A forked child remembers nothing: the rows on their way, and the worker, are its parent's."""
        if self._pid != os.getpid():
            self._begin()


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
        """Give all who wait the row, or why there is none; once."""
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


def encode_jobs(encoder: Encoder, jobs: Sequence[Job]) -> None:
    """Encode the texts together, and give all who wait each text's row, or why it has none.

    What is not a failure of the encoder, such as Ctrl-C, is raised here; the others get CallCancelledError.
    """
    outcomes: list[Row | Exception]
    outcomes = [CallCancelledError("the encoding was interrupted")] * len(jobs)
    try:
        outcomes = _outcomes(encoder, [job.text for job in jobs])
    except Exception as error:  # noqa: BLE001 - it is raised to whoever waits for a row, this thread too
        outcomes = [error] * len(jobs)
    finally:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.settle(outcome)


def _outcomes(encoder: Encoder, texts: list[str]) -> list[Row | Exception]:
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
        stop_at_exit(self, _LAST_PASS_S)

    def add(self, jobs: Sequence[Job]) -> None:
        """Have jobs done; after `stop` they fail with CallCancelledError. Never raises."""
        try:
            with self._changed:
                self._start()
                self._arrived.extend(jobs)
                self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - stopped, or no thread can be had: all who wait get it
            _fail(jobs, error)

    def stop(self) -> None:
        """Begin no further pass; the jobs that are left fail with CallCancelledError."""
        if self._pid != os.getpid():  # a copy in a forked child, whose lock may be held for ever
            return
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the pass that was under way when `stop` was called, or for so long."""
        if self._thread is not None:
            self._thread.join(max(0.0, timeout_s))

    def _start(self) -> None:
        if self._is_stopped:
            raise _closed()
        if self._thread is None:
            name = f"encoding-{self._encoder.name}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while self._wait_for_work():
            self._measure()
            if jobs := self._next_pass():
                with suppress(BaseException):  # all who wait have it, and nobody is here
                    encode_jobs(self._encoder, jobs)
        _fail(self._arrived, _closed())
        _fail(self._queue, _closed())
        # This may end the model and its native threads: here the end of the interpreter still waits for it.
        del self._encoder

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
        except Exception as error:  # noqa: BLE001 - it is raised to whoever waits for a row
            _fail(jobs, error)
        else:
            self._queue += jobs

    def _next_pass(self) -> list[Job]:
        """The jobs to be encoded now, taken from the queue."""
        self._queue.sort(
            key=lambda job: not job.is_awaited
        )  # stable: among equals the first comes first
        alike = [job for job in self._queue if job.shape == self._queue[0].shape]
        taken = alike[: self._encoder.pass_size]
        self._queue = [job for job in self._queue if job not in taken]
        return taken


def _fail(jobs: Sequence[Job], error: Exception) -> None:
    """Give all who wait the reason why there are no rows."""
    for job in jobs:
        job.settle(error)


def _closed() -> CallCancelledError:
    return CallCancelledError("the encoder was closed before the text was encoded")


def _parts(text: str) -> Iterator[str]:
    """The words of a text, and the trigrams of each word between its blanks."""
    for word in _WORD.findall(text.casefold()):
        yield word
        padded = f" {word} "
        yield from (padded[start : start + 3] for start in range(len(word)))


def _dimension(name: str, written: str) -> int:
    if not written:
        return _DEFAULT_DIMENSION
    if (
        not written.isdecimal()
        or len(written) > _MOST_DIGITS
        or not 1 <= int(written) <= _MOST_DIMENSION
    ):
        raise UnknownEncoderError(
            f"encoder {name!r:.60}: expected 'hashing' or 'hashing:N' with a dimension N from 1 to "
            f"{_MOST_DIMENSION}"
        )
    return int(written)
