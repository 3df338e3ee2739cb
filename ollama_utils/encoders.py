"""Sentence embeddings: a text has the same row, bit for bit, in any company and on any thread.

`make_encoder` makes an encoder by name. It remembers rows, keeps those of a local model in a log
for later runs, and encodes a long text piece by piece: all of this is `CachedEncoder`, around one
of `HashingEncoder`, `OllamaEncoder` and the local models of `sentence_encoder`.
"""

from __future__ import annotations

import re
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from hashlib import sha256
from pathlib import Path
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
from ollama_utils.reply_log import ReplyLog, embed_question, row_from_json
from ollama_utils.sentence_encoder import local_encoder
from ollama_utils.types import is_text, short_name
from ollama_utils.vectors import unit_rows

MOST_BYTES = 512
"""UTF-8 bytes of a text that is encoded in one piece.

Of these, prose in any script makes at most 256 word pieces of all-MiniLM-L6-v2 (English some 140),
which is what many models read; base64 makes some 370."""
_BLANK_LINES = re.compile(r"\n\s*\n")
_WORD = re.compile(r"\w+")
_SIGN_BIT = 31
_DEFAULT_DIMENSION, _MOST_DIMENSION = 384, 2**16
_CHUNK = 32
"""Texts of a request to a server."""
_KNOWN_GOOD = ("dimension",)
"""Texts that a server was seen to embed."""
_MAY_BE_OF_ONE_TEXT = (BadRequestError, ServerFaultError, BadReplyError)
"""Errors of a request that a single text in it may have caused."""
_CACHE_SIZE = 16384

Row = NDArray[np.float32]
"""(D,)."""


class Encoder(Protocol):
    """Turns texts into vectors."""

    name: str
    """The name that `make_encoder` knows it by."""
    dimension: int
    """D, the length of a vector."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1, N from 1; a text's row does not depend on the other texts.

        Raises:
            EncodingError: some texts have no row; it holds those of the others.
        """
        ...


def fingerprint(encoder: Encoder) -> str:
    """The SHA-256 of how it embeds a sample: encoders with other weights have another."""
    sample = "The same text has the same embedding."
    return sha256(encoder.encode([sample]).tobytes()).hexdigest()


def make_encoder(
    name: str, dispatcher: Dispatcher | None = None, *, store: Path | None = None
) -> CachedEncoder:
    """The encoder of a name, which never encodes a text twice while it remembers it.

    Args:
        name: `hashing` or `hashing:256` (the dimension); `ollama:MODEL`; anything else is a
            sentence-transformers model, by name or path.
        dispatcher: sends the calls of an `ollama:` encoder, and keeps what they get.
        store: a log of replies that keeps what other models have encoded for later runs.

    Raises:
        UnknownEncoderError: there is no such encoder; the message says what to do.
        ReplyLogError: the store cannot be used.
        OllamaError: the server of an `ollama:` encoder does not embed.
    """
    kind, _, rest = name.partition(":")
    if kind not in {"hashing", "ollama"}:
        return CachedEncoder(local_encoder(name), store=store)
    if kind == "ollama" and dispatcher and rest:
        return CachedEncoder(OllamaEncoder(dispatcher, rest))
    dimension = rest or str(_DEFAULT_DIMENSION)
    if kind == "hashing" and dimension.isdecimal() and 1 <= int(dimension) <= _MOST_DIMENSION:
        return CachedEncoder(HashingEncoder(int(dimension)))
    raise UnknownEncoderError(
        f"encoder {name!r:.60}: expected 'hashing', 'hashing:N' with a dimension N from 1 to "
        f"{_MOST_DIMENSION}, or 'ollama:MODEL' and a server"
    )


class CachedEncoder:
    """Encodes a text once, and a long one piece by piece; many threads may share it.

    Models leave out what is longer than they read. So a text of more than MOST_BYTES is cut by
    `pieces`, and its row is unit(unit(first + mean of those between) + last): what is asked stands
    mostly at one end, in a paragraph of its own. Measured on texts of 700 to 4,000 bytes of our
    docs, by all-MiniLM-L6-v2: two with the same context and different requests after it had a
    cosine of .65, before it .80; with one request in other words .93 and .96. By pieces of equal
    weight these four were .96, .98, .97 and .99.

    Args:
        encoder: encodes what is not known, on the thread that asks.
        store: a log of replies that keeps rows for later runs, as the same bits, apart by the
            encoder's name and by how it embeds a sample: other weights find nothing.
        size: how many pieces are remembered; the one unused for longest goes first.

    Raises:
        ReplyLogError: the store cannot be used.
    """

    def __init__(
        self, encoder: Encoder, *, store: Path | None = None, size: int = _CACHE_SIZE
    ) -> None:
        self.name = encoder.name
        self.dimension = encoder.dimension
        self._encoder = encoder
        self._log = None
        if store is not None:
            self._log = ReplyLog(store, digests={short_name(self.name): fingerprint(encoder)})
            weakref.finalize(self, self._log.close)
        self._lock = threading.Lock()
        self._known: LRUCache[str, Future[Row]] = LRUCache(size)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a text's row does not depend on the other texts.

        Raises:
            EncodingError: some texts are not valid Unicode, or have no row.
            ReplyLogError: the store cannot be read or written.
        """
        cut = {text: pieces(text) for text in texts if is_text(text)}
        found = self._look_up([piece for parts in cut.values() for piece in parts])
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        failures: dict[int, OllamaError] = {}
        for index, text in enumerate(texts):
            try:
                if text not in cut:
                    raise BadRequestError(f"expected valid Unicode text, got {text!r}")
                rows[index] = _joined([found[piece].result() for piece in cut[text]])
            except OllamaError as error:
                failures[index] = error
        if failures:
            raise EncodingError(rows, failures)
        return rows

    def _look_up(self, texts: Sequence[str]) -> dict[str, Future[Row]]:
        """The row of each text: known, under way on another thread, or found now."""
        with self._lock:
            found = {text: self._known[text] for text in texts if text in self._known}
            new: dict[str, Future[Row]] = {text: Future() for text in texts if text not in found}
            self._known.update(new)
        why: Exception = CallCancelledError("the encoding was interrupted")
        try:
            self._find_or_encode(new)
        except Exception as error:
            why = error
            raise
        finally:
            for text, future in new.items():
                if not future.done():
                    future.set_exception(why)
                if future.exception():  # which is not remembered
                    with self._lock:
                        self._known.pop(text, None)
        return found | new

    def _find_or_encode(self, new: Mapping[str, Future[Row]]) -> None:
        """Give each text its row, from the log where it is there, or why it has none."""
        for text, future in new.items():
            reply = self._log.find(embed_question(self.name, text)) if self._log else None
            if reply is not None:
                future.set_result(np.array(row_from_json(reply), dtype=np.float32))
        unknown = [text for text, future in new.items() if not future.done()]
        if not unknown:
            return
        failures: Mapping[int, OllamaError] = {}
        try:
            rows = self._encoder.encode(unknown)
        except EncodingError as error:
            rows, failures = error.rows, error.failures
        for index, (text, row) in enumerate(zip(unknown, rows, strict=True)):
            if index in failures:
                new[text].set_exception(failures[index])
                continue
            if self._log:
                # Nine digits are all bits of a float32; a float64's take twice as long to read.
                numbers = ", ".join(f"{number:.8e}" for number in row.tolist())
                self._log.write(embed_question(self.name, text), reply=f"[{numbers}]")
            new[text].set_result(row.copy())


def pieces(text: str) -> list[str]:
    """What is encoded of a text: itself, or where it has more than MOST_BYTES, its pieces.

    It is cut at blank lines, and a longer paragraph in about the middle until each part is short
    enough: at a blank, or between two characters where there is none near.
    """
    if len(text.encode()) <= MOST_BYTES:
        return [text]
    parts = [part for paragraph in _BLANK_LINES.split(text) for part in _halves(paragraph)]
    return [part.strip() for part in parts if part.strip()] or [""]


def _halves(text: str) -> list[str]:
    if len(text.encode()) <= MOST_BYTES:
        return [text]
    middle = len(text) // 2
    blank = max(text.rfind(mark, middle // 2, middle) for mark in " \n\t")
    place = middle if blank < 0 else blank
    return _halves(text[:place]) + _halves(text[place:])


def _joined(rows: Sequence[Row]) -> Row:
    """The row of a text, of those of its pieces."""
    head, *between = rows[:-1] or rows
    if between:
        head = unit_rows([head + np.mean(between, axis=0)])[0]
    return unit_rows([head + rows[-1]])[0] if len(rows) > 1 else head


class HashingEncoder:
    """Words and character trigrams hashed into D signed buckets: fast, and the same everywhere.

    Texts that share words are near each other; meaning it does not know. For tests and benchmarks.
    The hashing trick is that of Weinberger et al., 2009 (arXiv 0902.2206).
    """

    def __init__(self, dimension: int = _DEFAULT_DIMENSION) -> None:
        self.name = f"hashing:{dimension}"
        self.dimension = dimension

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a text without words gives (1, 0, ..., 0)."""
        rows = np.zeros((len(texts), self.dimension))
        for row, text in zip(rows, texts, strict=True):
            for word in _WORD.findall(text.casefold()):
                trigrams = [f" {word} "[start : start + 3] for start in range(len(word))]
                for part in [word, *trigrams]:
                    code = zlib.crc32(part.encode("utf-8"))
                    row[code % self.dimension] += 1.0 if code >> _SIGN_BIT else -1.0
        return unit_rows(rows)


class OllamaEncoder:
    """An embedding model of a server, sent many texts at once.

    One text may spoil a request. So after an error that one may be to blame for each text is sent
    alone, unless the server now fails at the text, too, that it embedded at the start: then it is
    the server that is broken, and the error is that of all the request's texts.

    Texts of several threads are not put into one request: how many requests a run makes would
    depend on timing. Its first call is made at once, to learn the dimension.
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
