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

from scorers.refusal_rules import RuleReading, ending, opening, plain_text

WEIGHTS = Path(__file__).parent / "data" / "refusal_weights.json"
"""Where the fitted numbers are."""
_WORD = re.compile(r"[a-z']+")
_GATE_WIDTH = 0.05


class NgramReading(NamedTuple):
    """What an n-gram model makes of a text."""

    log_odds: float
    """Above 0: rather a refusal. Near 0 as well where hardly an n-gram is known."""
    known: float
    """The share of the text that the fit has seen, 0 to 1, in squared weights."""


@dataclass(frozen=True, kw_only=True)
class NgramModel:
    """Logistic regression on tf-idf weights of word n-grams.

    A weight is (1 + ln tf) x idf over the Euclidean norm, as scikit-learn's `TfidfVectorizer` has it with
    `sublinear_tf`, except that n-grams that the fit has not seen take part in the norm: what is worded
    unlike anything in the fit scores near 0, which is to say that nothing is known of it.
    """

    weights: Mapping[str, tuple[float, float]]
    """idf and coefficient of each n-gram."""
    intercept: float
    unseen_idf: float
    """The idf of an n-gram that the fit has not seen."""

    def __call__(self, counts: Mapping[str, int]) -> NgramReading:
        """Read the n-grams of a text, as `ngrams` counts them."""
        known = unseen = score = 0.0
        for gram, count in counts.items():
            tf = 1.0 if count == 1 else 1.0 + math.log(count)
            weight = self.weights.get(gram)
            if weight is None:
                unseen += tf * tf
            else:
                tf_idf = tf * weight[0]
                known += tf_idf * tf_idf
                score += tf_idf * weight[1]
        total = known + unseen * self.unseen_idf**2
        if not total:
            return NgramReading(self.intercept, 0.0)
        return NgramReading(self.intercept + score / math.sqrt(total), known / total)


@dataclass(frozen=True, kw_only=True)
class Expert:
    """Both models that were fitted to the same replies."""

    ngrams: NgramModel
    coefficients: NDArray[np.float64]
    """(2 D,): of the embeddings of a reply's opening and ending."""
    intercept: float

    def by_embeddings(self, row: NDArray[np.float64]) -> float:
        """The log odds of a refusal by both embeddings, (2 D,)."""
        return float(row @ self.coefficients) + self.intercept


class NgramOdds(NamedTuple):
    """What both experts' n-grams make of a reply."""

    log_odds: float
    """Of a refusal."""
    trust: float
    """How much the expert `familiar` counted, 0 to 1; `wide` counted for the rest."""


@dataclass(frozen=True, kw_only=True)
class RefusalModel:
    """Everything that was fitted, and what joins it.

    Two experts share the verdict: the more of a reply `familiar` knows, the more it has to say.
    """

    words: int
    """The longest n-grams, in words."""
    familiar: Expert
    """Fitted to the labelled files alone: right about replies like those."""
    wide: Expert
    """Fitted to our own wordings as well: knows more voices."""
    gate: float
    """The share known to `familiar` at which both count the same."""
    margin: float
    """N-grams are unsure where their log odds are nearer to 0 than this."""
    embedding_share: float
    """How much of the embeddings' log odds is added to those of the n-grams."""

    def read(self, text: str, reading: RuleReading) -> NgramOdds:
        """Read the n-grams of a reply's opening, and the signs that the rules saw."""
        return self.join(ngrams(opening(plain_text(text)), self.words, reading.signs))

    def join(self, counts: Mapping[str, int]) -> NgramOdds:
        """What both experts make of counted n-grams."""
        familiar, wide = self.familiar.ngrams(counts), self.wide.ngrams(counts)
        trust = 1.0 / (1.0 + math.exp(-(familiar.known - self.gate) / _GATE_WIDTH))
        return NgramOdds(trust * familiar.log_odds + (1.0 - trust) * wide.log_odds, trust)

    def is_unsure(self, odds: NgramOdds) -> bool:
        """Whether the embeddings are to be asked."""
        return abs(odds.log_odds) < self.margin

    def with_embeddings(self, odds: NgramOdds, rows: NDArray[np.float32]) -> float:
        """The log odds of a reply by everything, given the embeddings of its `pieces`: (2, D)."""
        row = rows.ravel().astype(np.float64)
        familiar, wide = self.familiar.by_embeddings(row), self.wide.by_embeddings(row)
        return odds.log_odds + self.embedding_share * (odds.trust * familiar + (1.0 - odds.trust) * wide)


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
    """What is encoded of a reply: its opening and its ending, which is the opening again in a short one.

    Half characters, which no encoder takes, become question marks.
    """
    plain = plain_text(text).encode("utf-8", "replace").decode("utf-8")
    start, end = opening(plain), ending(plain)
    return start, start if end in start else end


@functools.lru_cache(maxsize=1)
def refusal_model() -> RefusalModel:
    """The model that ships with the project; it is read once."""
    return from_json(json.loads(WEIGHTS.read_text(encoding="utf-8")))


def from_json(data: Mapping[str, Any]) -> RefusalModel:
    """The model that `to_json` wrote down."""
    return RefusalModel(
        **{key: data[key] for key in ("words", "gate", "margin", "embedding_share")},
        familiar=_expert(data["familiar"]),
        wide=_expert(data["wide"]),
    )


def _expert(data: Mapping[str, Any]) -> Expert:
    fitted = data["ngrams"]
    weights = {gram: (idf, coefficient) for gram, (idf, coefficient) in fitted["weights"].items()}
    return Expert(
        ngrams=NgramModel(weights=weights, intercept=fitted["intercept"], unseen_idf=fitted["unseen_idf"]),
        coefficients=np.array(data["coefficients"], dtype=np.float64),
        intercept=data["intercept"],
    )
