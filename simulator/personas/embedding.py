"""The embedding model: hashed words and letter triples, so that texts with common words lie close."""

from __future__ import annotations

import math
import zlib
from functools import lru_cache

from simulator.personas.language import tokenise

_WORD_WEIGHT = 2.0
_REMEMBERED = 16_384


def embed(text: str, dimension: int) -> list[float]:
    """A vector of length 1 with `dimension` numbers."""
    counts = [0.0] * dimension
    for word in tokenise(text) or ("",):
        for drawn, weight in _features(word):
            counts[drawn % dimension] += weight
    norm = math.sqrt(sum(count * count for count in counts))
    if not norm:
        counts[0] = norm = 1.0
    return [count / norm for count in counts]


@lru_cache(_REMEMBERED)
def _features(word: str) -> tuple[tuple[int, float], ...]:
    """A word and its letter triples, each as a drawn number and a weight with its sign."""
    padded = f" {word} "
    triples = [(f"c:{padded[start : start + 3]}", 1.0) for start in range(len(padded) - 2)]
    return tuple(_drawn(key, weight) for key, weight in [(f"w:{word}", _WORD_WEIGHT), *triples])


def _drawn(key: str, weight: float) -> tuple[int, float]:
    drawn = zlib.crc32(key.encode("utf-8", "replace"))
    return drawn, weight if drawn & 0x80000000 else -weight
