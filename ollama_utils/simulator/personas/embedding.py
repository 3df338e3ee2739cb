"""The embedding model: hashed words and letter triples, so that texts with common words lie close."""

from __future__ import annotations

import zlib

import numpy as np

from ollama_utils.simulator.personas.lexicon import tokenise

_WORD_WEIGHT = 2.0


def embed(text: str, dimension: int) -> list[float]:
    """A vector of length 1 with `dimension` numbers."""
    row = np.zeros(dimension)
    for word in tokenise(text) or ("",):
        _count(row, f"w:{word}", _WORD_WEIGHT)
        padded = f" {word} "
        for start in range(len(padded) - 2):
            _count(row, f"c:{padded[start : start + 3]}", 1.0)
    norm = float(np.linalg.norm(row))
    if not norm:
        row[0] = norm = 1.0
    values: list[float] = (row / norm).tolist()
    return values


def _count(row: np.ndarray[tuple[int], np.dtype[np.float64]], key: str, weight: float) -> None:
    """Add a feature's weight at its place, with its sign."""
    drawn = zlib.crc32(key.encode("utf-8", "replace"))
    row[drawn % len(row)] += weight if drawn & 0x80000000 else -weight
