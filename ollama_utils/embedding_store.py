"""Embeddings on disk, for runs to share: a text that one run has encoded no other encodes again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ollama_utils.encoding import PassEncoder
from ollama_utils.sqlite_file import SqliteFile

_SAMPLE = "The same text has the same embedding."
_SCHEMA = "CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID"
_KNOWN = "known"
"""The shape of all texts that need no pass of the model."""


class StoredEncoder:
    """An encoder whose rows are kept in a file, as the bits they are.

    Rows are kept apart by the encoder's name and by how it embeds a sample: other weights find nothing.

    Args:
        encoder: encodes what is not in the file.
        path: the file; it is made, but not its folder.

    Raises:
        ReplyLogError: the file cannot be made, or is no database.
    """

    def __init__(self, encoder: PassEncoder, path: Path) -> None:
        self.name = encoder.name
        self.pass_size = encoder.pass_size
        self._encoder = encoder
        sample = encoder.encode([_SAMPLE])
        self.dimension = sample.shape[1]
        self._scope = self.name.encode() + sample.tobytes()
        self._file = SqliteFile(
            path, _SCHEMA, what="the file of embeddings", lost="encoded", synchronous="OFF"
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1: those in the file, the others by the encoder, which are then kept.

        Raises:
            ReplyLogError: the file cannot be read or written.
        """
        rows = self._find(texts)
        new = [text for text in dict.fromkeys(texts) if text not in rows]
        if new:
            made = dict(zip(new, self._encoder.encode(new), strict=True))
            self._write(made)
            rows |= made
        return np.stack([rows[text] for text in texts])

    def shapes(self, texts: Sequence[str]) -> list[Hashable]:
        """What must be equal for texts to share a pass: texts in the file pass together.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        known = self._find(texts)
        new = [text for text in texts if text not in known]
        shapes = iter(self._encoder.shapes(new) if new else ())
        return [_KNOWN if text in known else next(shapes) for text in texts]

    def _find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        found = {}
        for text in dict.fromkeys(texts):
            for (row,) in self._file.execute("SELECT row FROM embeddings WHERE key = ?", (self._key(text),)):
                found[text] = np.frombuffer(row, np.float32)
        return found

    def _write(self, rows: dict[str, NDArray[np.float32]]) -> None:
        for text, row in rows.items():
            self._file.execute(
                "INSERT OR IGNORE INTO embeddings VALUES (?, ?)", (self._key(text), row.tobytes())
            )

    def _key(self, text: str) -> bytes:
        return blake2b(text.encode(), key=blake2b(self._scope).digest(), digest_size=16).digest()
