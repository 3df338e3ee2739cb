"""Sentence embeddings behind one protocol: same text, same bits, in any company."""

from __future__ import annotations

import os
import re
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.embedding_store import StoredEncoder
from ollama_utils.encoding import EncodingWorker, Job, PassEncoder, encode_jobs
from ollama_utils.errors import EncodingError, OllamaError, UnknownEncoderError
from ollama_utils.ollama_encoder import OllamaEncoder
from ollama_utils.sentence_encoder import SentenceEncoder
from ollama_utils.vectors import unit_rows

_DEFAULT_DIMENSION = 384
_CACHE_SIZE = 32768
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
    """An encoder that can be told which texts will be asked for."""

    def prefetch(self, texts: Sequence[str]) -> None:
        """Have texts encoded when nobody waits for any other; comes back at once and never raises."""
        ...


def make_encoder(
    name: str, dispatcher: Dispatcher | None = None, *, store: Path | None = None
) -> CachedEncoder:
    """The encoder of a name, which never encodes a text twice while it remembers it.

    Args:
        name: `hashing` or `hashing:256` (the dimension); `ollama:MODEL`; anything else is a
            sentence-transformers model, by name or path.
        dispatcher: sends the calls of an `ollama:` encoder.
        store: a file that keeps what a sentence-transformers model has encoded, for later runs, too; hashing
            costs less than a look, and the calls of an `ollama:` encoder are kept by the dispatcher.

    Raises:
        UnknownEncoderError: there is no such encoder; the message says what to do.
        ReplyLogError: the store cannot be used.
        OllamaError: the server of an `ollama:` encoder does not embed.
    """
    if not name.strip():
        raise UnknownEncoderError("no encoder is named; expected 'hashing', 'ollama:MODEL' or a model's name")
    kind, _, rest = name.partition(":")
    if kind == "hashing":
        return CachedEncoder(HashingEncoder(_dimension(name, rest)))
    if kind == "ollama":
        if dispatcher is None or not rest:
            raise UnknownEncoderError(f"encoder {name!r} needs a model and a server: write 'ollama:MODEL'")
        return CachedEncoder(OllamaEncoder(dispatcher, rest))
    encoder = SentenceEncoder(name)
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
        self._heed_fork()
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
        self._heed_fork()
        if self._worker is not None:
            _, new = self._look_up(texts, is_awaited=False)
            if new:
                self._worker.add(new)

    def _look_up(self, texts: Sequence[str], *, is_awaited: bool) -> tuple[dict[str, Job], list[Job]]:
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

    def _heed_fork(self) -> None:
        """A forked child remembers nothing: the rows on their way, and the worker, are its parent's."""
        if self._pid != os.getpid():
            self._begin()


def _parts(text: str) -> Iterator[str]:
    """The words of a text, and the trigrams of each word between its blanks."""
    for word in _WORD.findall(text.casefold()):
        yield word
        padded = f" {word} "
        yield from (padded[start : start + 3] for start in range(len(word)))


def _dimension(name: str, written: str) -> int:
    if not written:
        return _DEFAULT_DIMENSION
    if not written.isdecimal() or int(written) < 1:
        raise UnknownEncoderError(
            f"encoder {name!r}: expected 'hashing' or 'hashing:N' with a dimension N of at least 1"
        )
    return int(written)
