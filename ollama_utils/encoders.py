"""Sentence embeddings behind one protocol: same text, same bits, in any company."""

from __future__ import annotations

import re
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

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
from ollama_utils.sentence_encoder import SentenceEncoder
from ollama_utils.vectors import unit_rows

_DEFAULT_DIMENSION = 384
_CHUNK = 32
_CACHE_SIZE = 32768
_KNOWN_GOOD = ("dimension",)
_MAY_BE_OF_ONE_TEXT = (BadRequestError, ServerFaultError, BadReplyError)
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


def make_encoder(name: str, dispatcher: Dispatcher | None = None) -> CachedEncoder:
    """The encoder of a name, which never encodes a text twice while it remembers it.

    Args:
        name: `hashing` or `hashing:256` (the dimension); `ollama:MODEL`; anything else is a
            sentence-transformers model, by name or path.
        dispatcher: sends the calls of an `ollama:` encoder.

    Raises:
        UnknownEncoderError: there is no such encoder; the message says what to do.
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
    return CachedEncoder(SentenceEncoder(name))


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
    """An embedding model of an Ollama server, asked for many texts at once.

    One text may spoil a request: an over-long one is rejected, one whose numbers are not finite makes
    the server fail or its reply unusable. So after such an error each text is asked for alone, and gets
    the row or the error that it gets alone; unless the server now fails at the text, too, that it
    embedded at the start. Then it is the server that is broken, and the request's error is that of all
    its texts, as it is when the server is away, busy or late.

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


class CachedEncoder:
    """Remembers the latest texts; equal texts on several threads are encoded once.

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
        self._lock = threading.Lock()
        self._rows: LRUCache[str, Future[NDArray[np.float32]]] = LRUCache(size)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a text's row does not depend on the other texts.

        Raises:
            EncodingError: some texts have no row, as the encoder under this one, or another thread that
                encoded for this one, had none; CallCancelledError when that thread was interrupted.
        """
        futures, mine = self._look_up(texts)
        if mine:
            self._encode(mine, futures)
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        failures: dict[int, OllamaError] = {}
        for index, text in enumerate(texts):
            try:
                rows[index] = futures[text].result()
            except OllamaError as error:
                failures[index] = error
        if failures:
            raise EncodingError(rows, failures)
        return rows

    def _look_up(self, texts: Sequence[str]) -> tuple[dict[str, Future[NDArray[np.float32]]], list[str]]:
        """The rows, there or to come, by text; and the texts that this thread is to encode."""
        futures: dict[str, Future[NDArray[np.float32]]] = {}
        mine: list[str] = []
        with self._lock:
            for text in dict.fromkeys(texts):
                known = self._rows.get(text)
                if known is None:
                    mine.append(text)
                futures[text] = self._rows[text] = known or Future()
            self.hits += len(texts) - len(mine)
        return futures, mine

    def _encode(self, texts: list[str], futures: dict[str, Future[NDArray[np.float32]]]) -> None:
        """Encode texts for this thread and all that wait for them; a failure is not remembered."""
        outcomes: list[NDArray[np.float32] | Exception]
        outcomes = [CallCancelledError("the encoding was interrupted")] * len(texts)
        try:
            outcomes = self._outcomes(texts)
        except Exception as error:  # noqa: BLE001 - whoever waits for a row is told, this thread too
            outcomes = [error] * len(texts)
        finally:
            for text, outcome in zip(texts, outcomes, strict=True):
                self._settle(text, outcome, futures[text])

    def _outcomes(self, texts: list[str]) -> list[NDArray[np.float32] | Exception]:
        """Each text's row, or why it has none; as many as there are texts, or a ValueError."""
        failures: dict[int, OllamaError] = {}
        try:
            rows = self._encoder.encode(texts)
        except EncodingError as error:
            rows, failures = error.rows, error.failures
        if len(rows) != len(texts):
            raise ValueError(f"expected {len(texts)} rows of encoder {self.name!r}, got {len(rows)}")
        return [failures.get(index, row.copy()) for index, row in enumerate(rows)]

    def _settle(
        self, text: str, outcome: NDArray[np.float32] | Exception, future: Future[NDArray[np.float32]]
    ) -> None:
        if isinstance(outcome, Exception):
            with self._lock:
                self._rows.pop(text, None)
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


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
