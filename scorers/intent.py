"""Whether a reworded query still asks for the same: similarity of two embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scorers.languages import language_of

INTENT_THRESHOLD = 0.8
"""The similarity from which on a rewording counts as asking for the same, for all-MiniLM-L6-v2.

Another encoder needs another threshold.
"""

MOST_ALIKE = 0.01
"""The share of pairs of different queries that may be as similar as a rewording has to be."""
_SAMPLE, _FEWEST = 60, 10
"""Queries that are compared with each other; with fewer nothing is said."""


def check_apart(
    encode: Callable[[Sequence[str]], NDArray[np.floating]],
    queries: Sequence[str],
    threshold: float,
) -> None:
    """Check that an encoder tells different queries in another language than English apart.

    Encoders that know English alone find any two questions in Chinese, Korean, Arabic or Hindi
    alike. English queries are not looked at: those on one subject are alike indeed.

    Args:
        encode: N texts to unit rows (N, D).
        queries: of the file, in any order.
        threshold: the similarity from which on two texts count as asking for the same.

    Raises:
        ValueError: too many pairs are that similar.
    """
    texts = list(dict.fromkeys(queries))
    texts = texts[:: max(1, len(texts) // _SAMPLE)][:_SAMPLE]
    languages = [language_of(text) or ("en" if text.isascii() else None) for text in texts]
    foreign = [text for text, name in zip(texts, languages, strict=True) if name != "en"]
    if len(foreign) < max(_FEWEST, len(texts) / 2):
        return
    rows = encode(foreign)
    pairs = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    share = float((pairs >= threshold).mean())
    if share > MOST_ALIKE:
        raise ValueError(
            f"the encoder cannot tell the queries apart: {share:.0%} of their pairs are at least "
            f"{threshold:g} similar, as a rewording has to be; name one that knows their language, "
            "as --encoder paraphrase-multilingual-MiniLM-L12-v2 or ollama:bge-m3, or set "
            f"--intent-threshold: over {float(np.quantile(pairs, 1 - MOST_ALIKE)):.2f} are "
            f"{MOST_ALIKE:.0%} of the pairs"
        )


def similarity(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Cosine similarity of two embeddings (D,) of length 1, in [-1, 1].

    Summed in float64, it is the same number wherever in memory the two are.
    """
    return min(1.0, max(-1.0, float(np.dot(a.astype(np.float64), b.astype(np.float64)))))
