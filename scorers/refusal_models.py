"""The two fitted stages of `scorers.refusal`: log odds of a refusal by word n-grams, and by embeddings.

Both are logistic regressions that `python -m benchmarks.fit_refusal` fitted and wrote to
`data/refusal_weights.json`. Nothing here needs scikit-learn.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scorers.refusal_rules import RuleReading, opening, plain_text

WEIGHTS = Path(__file__).parent / "data" / "refusal_weights.json"
"""Where the fitted numbers are."""
_WORD = re.compile(r"[a-z']+")


@dataclass(frozen=True, kw_only=True)
class NgramModel:
    """Logistic regression on tf-idf weights of word n-grams.

    A weight is (1 + ln tf) x idf over the Euclidean norm, as scikit-learn's `TfidfVectorizer` has it with
    `sublinear_tf`, except that n-grams that the fit has not seen take part in the norm: what is worded
    unlike anything in the fit scores near `intercept`. In the shipped weights that is no refusal, and to
    `small` (-3.4) surer than to `large` (-.84).
    """

    weights: Mapping[str, tuple[float, float]]
    """idf and coefficient of each n-gram."""
    intercept: float
    unseen_idf: float
    """The idf of an n-gram that the fit has not seen."""

    def __call__(self, counts: Mapping[str, int]) -> float:
        """The log odds of a text, of which `ngrams` counted the n-grams; `intercept` where none is known."""
        norm = score = 0.0
        for gram, count in counts.items():
            tf = 1.0 if count == 1 else 1.0 + math.log(count)
            idf, coefficient = self.weights.get(gram, (self.unseen_idf, 0.0))
            norm += (tf * idf) ** 2
            score += tf * idf * coefficient
        return self.intercept + (score / math.sqrt(norm) if norm else 0.0)


@dataclass(frozen=True, kw_only=True)
class Expert:
    """Both models that were fitted to the same replies."""

    ngrams: NgramModel
    coefficients: NDArray[np.float64]
    """(2 D,): of the embeddings of a reply's first sentence and opening."""
    intercept: float

    def by_embeddings(self, row: NDArray[np.float64]) -> float:
        """The log odds of a refusal by both embeddings, (2 D,)."""
        return float(row @ self.coefficients) + self.intercept


class NgramOdds(NamedTuple):
    """What both experts' n-grams make of a reply."""

    log_odds: float
    """Of a refusal."""
    small: float
    """How much the expert `small` counted, 0 to 1; `large` counted for the rest."""


@dataclass(frozen=True, kw_only=True)
class RefusalModel:
    """Everything that was fitted, and what joins it.

    Two experts share the verdict: the more a reply sounds like a small model's, whose rambling declines
    nothing, the more `small` has to say.
    """

    words: int
    """The longest n-grams, in words."""
    large: Expert
    """Fitted to the replies of large models and to our own wordings."""
    small: Expert
    """Fitted to the replies of a small model and to our own wordings."""
    style: NgramModel
    """Log odds that a small model said it."""
    margin: float
    """N-grams are unsure where their log odds are nearer to 0 than this."""
    embedding_share: float
    """How much of the embeddings' log odds is added to those of the n-grams."""

    def read(self, text: str, reading: RuleReading) -> NgramOdds:
        """Read the n-grams of a reply's opening, and the signs that the rules saw."""
        return self.join(ngrams(opening(plain_text(text)), self.words, reading.signs))

    def join(self, counts: Mapping[str, int]) -> NgramOdds:
        """What both experts make of counted n-grams."""
        small = 1.0 / (1.0 + math.exp(-self.style(counts)))
        return NgramOdds(small * self.small.ngrams(counts) + (1.0 - small) * self.large.ngrams(counts), small)

    def is_unsure(self, odds: NgramOdds) -> bool:
        """Whether the embeddings are to be asked."""
        return abs(odds.log_odds) < self.margin

    def with_embeddings(self, odds: NgramOdds, rows: NDArray[np.float32]) -> float:
        """The log odds of a reply by everything, given the embeddings of its `pieces`: (2, D)."""
        row = rows.ravel().astype(np.float64)
        small, large = self.small.by_embeddings(row), self.large.by_embeddings(row)
        return odds.log_odds + self.embedding_share * (odds.small * small + (1.0 - odds.small) * large)


def ngrams(text: str, words: int, signs: Iterable[str] = ()) -> Counter[str]:
    """How often each n-gram of 1 to `words` words occurs, case aside; the signs are n-grams as well."""
    found = _WORD.findall(text.lower())
    counts = Counter(found)
    for size in range(2, words + 1):
        counts.update(
            map(" ".join, zip(*(islice(found, start, None) for start in range(size)), strict=False))
        )
    counts.update(signs)
    return counts


def pieces(text: str) -> tuple[str, str]:
    """What is encoded of a reply: its first sentence and its opening, which are one in a short reply.

    Half characters, which no encoder takes, become question marks.
    """
    plain = plain_text(text).encode("utf-8", "replace").decode("utf-8")
    return opening(plain, sentences=1), opening(plain)


@functools.lru_cache(maxsize=1)
def refusal_model() -> RefusalModel:
    """The model that ships with the project; it is read once."""
    return from_json(json.loads(WEIGHTS.read_text(encoding="utf-8")))


def from_json(data: Mapping[str, Any]) -> RefusalModel:
    """The model that `to_json` wrote down."""
    return RefusalModel(
        **{key: data[key] for key in ("words", "margin", "embedding_share")},
        large=_expert(data["large"]),
        small=_expert(data["small"]),
        style=_ngram_model(data["style"]),
    )


def _expert(data: Mapping[str, Any]) -> Expert:
    return Expert(
        ngrams=_ngram_model(data["ngrams"]),
        coefficients=np.array(data["coefficients"], dtype=np.float64),
        intercept=data["intercept"],
    )


def _ngram_model(data: Mapping[str, Any]) -> NgramModel:
    weights = {gram: (idf, coefficient) for gram, (idf, coefficient) in data["weights"].items()}
    return NgramModel(weights=weights, intercept=data["intercept"], unseen_idf=data["unseen_idf"])
