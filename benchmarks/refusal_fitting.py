"""Fits the models of `scorers.refusal_models` to labelled replies; scikit-learn does the fitting."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_utils.encoders import Encoder
from scorers.refusal_models import Expert, NgramModel, NgramOdds, RefusalModel, ngrams, pieces
from scorers.refusal_rules import RuleReading, read_by_rules
from scorers.refusal_text import opening, plain_text

Array = NDArray[Any]
FEWEST = 3
"""An n-gram that fewer replies of the fit have is not looked at: it would be noise, and swell the file."""
DIGITS = 3
"""Of the numbers that are written down."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is chosen by validation and not fitted."""

    words: int
    """The longest n-grams, in words."""
    c_ngrams: float
    """Inverse strength of the n-gram models' regularisation."""
    c_embeddings: float
    """The same for the embeddings."""
    gate: float
    """See `RefusalModel.gate`."""
    embedding_share: float
    """See `RefusalModel.embedding_share`."""
    margin: float = 0.0
    """See `RefusalModel.margin`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Replies:
    """Labelled replies with all that the stages look at, read once; row i of each is reply i."""

    texts: Sequence[str]
    refused: Array
    """(N,) bool: refused or partly refused."""
    readings: Sequence[RuleReading]
    rows: Array
    """(N, 2 D): the embeddings of each reply's opening and ending."""
    grams: Mapping[int, Sequence[Counter[str]]]
    """The n-grams of each reply, by the longest n."""

    def part(self, start: int, step: int) -> Replies:
        """Every `step`-th reply from `start` on."""
        return Replies(
            texts=self.texts[start::step],
            refused=self.refused[start::step],
            readings=self.readings[start::step],
            rows=self.rows[start::step],
            grams={words: grams[start::step] for words, grams in self.grams.items()},
        )

    @property
    def sure(self) -> Array:
        """(N,) bool: where the rules decide."""
        return np.array([reading.is_sure for reading in self.readings])

    @property
    def by_rules(self) -> Array:
        """(N,) bool: what the rules say, refused or not."""
        return np.array([reading.label != "answered" for reading in self.readings])


def read_replies(
    texts: Sequence[str], refused: Sequence[bool], encoder: Encoder, lengths: Sequence[int]
) -> Replies:
    """Replies with their n-grams up to each of the lengths, and their embeddings."""
    readings = [read_by_rules(text) for text in texts]
    openings = [opening(plain_text(text)) for text in texts]
    rows = encoder.encode([piece for text in texts for piece in pieces(text)])
    return Replies(
        texts=texts,
        refused=np.array(refused),
        readings=readings,
        rows=rows.reshape(len(texts), -1).astype(np.float64),
        grams={
            words: [ngrams(o, words, r.signs) for o, r in zip(openings, readings, strict=True)]
            for words in lengths
        },
    )


def fit(files: Sequence[Replies], own: Sequence[Replies], settings: Settings) -> RefusalModel:
    """Fit all stages: the expert `familiar` to the files, `wide` to our own wordings as well."""
    return RefusalModel(
        words=settings.words,
        familiar=_fit_expert(tuple(files), settings),
        wide=_fit_expert((*files, *own), settings),
        gate=settings.gate,
        margin=settings.margin,
        embedding_share=settings.embedding_share,
    )


def _fit_expert(replies: tuple[Replies, ...], settings: Settings) -> Expert:
    coefficients, intercept = fit_embeddings(replies, settings.c_embeddings)
    grams = fit_ngrams(replies, settings.words, settings.c_ngrams)
    return Expert(ngrams=grams, coefficients=coefficients, intercept=intercept)


@functools.cache
def fit_ngrams(replies: tuple[Replies, ...], words: int, c: float) -> NgramModel:
    """Logistic regression on tf-idf weights, refusals and answers weighing the same in all."""
    counts = [grams for some in replies for grams in some.grams[words]]
    seen_in = Counter(gram for grams in counts for gram in grams)
    vocabulary = sorted(gram for gram, n in seen_in.items() if n >= FEWEST)
    idf = {gram: 1 + math.log((1 + len(counts)) / (1 + seen_in[gram])) for gram in vocabulary}
    unseen_idf = 1 + math.log((1 + len(counts)) / (1 + FEWEST))
    refused = np.concatenate([some.refused for some in replies])
    coefficients, intercept = _regression(_tf_idf(counts, idf, unseen_idf), refused, c)
    return NgramModel(
        weights={
            gram: (round(idf[gram], DIGITS), round(float(coefficient), DIGITS))
            for gram, coefficient in zip(vocabulary, coefficients, strict=True)
        },
        intercept=round(intercept, DIGITS),
        unseen_idf=round(unseen_idf, DIGITS),
    )


@functools.cache
def fit_embeddings(replies: tuple[Replies, ...], c: float) -> tuple[Array, float]:
    """Coefficients (2 D,) and intercept of logistic regression on the embeddings."""
    rows = np.vstack([some.rows for some in replies])
    coefficients, intercept = _regression(rows, np.concatenate([some.refused for some in replies]), c)
    return coefficients.round(DIGITS), round(intercept, DIGITS)


def odds_of(model: RefusalModel, replies: Replies) -> list[NgramOdds]:
    """What the n-grams make of each reply."""
    return [model.join(counts) for counts in replies.grams[model.words]]


def asks_embeddings(model: RefusalModel, replies: Replies, odds: Sequence[NgramOdds]) -> Array:
    """(N,) bool: which replies reach the third stage."""
    asks: Array = ~replies.sure & np.array([model.is_unsure(some) for some in odds])
    return asks


def verdicts(model: RefusalModel, replies: Replies, odds: Sequence[NgramOdds]) -> Array:
    """(N,) bool, refused or not, by the whole cascade."""
    asks = asks_embeddings(model, replies, odds)
    found = [
        model.with_embeddings(some, row) if ask else some.log_odds
        for some, row, ask in zip(odds, replies.rows, asks, strict=True)
    ]
    said: Array = np.where(replies.sure, replies.by_rules, np.array(found) > 0)
    return said


def to_json(model: RefusalModel) -> dict[str, Any]:
    """The model as `scorers.refusal_models.from_json` reads it."""
    table = asdict(model)
    for expert in (table["familiar"], table["wide"]):
        expert["coefficients"] = expert["coefficients"].tolist()
    return table


def with_margin(settings: Settings, margin: float) -> Settings:
    """The same settings with this margin."""
    return replace(settings, margin=round(margin, DIGITS))


def _tf_idf(counts: Sequence[Mapping[str, int]], idf: Mapping[str, float], unseen_idf: float) -> Any:  # noqa: ANN401 - a sparse matrix
    """(N, V): as `NgramModel` weighs n-grams."""
    from scipy.sparse import csr_array  # type: ignore[import-untyped]  # it has no stubs

    column = {gram: k for k, gram in enumerate(idf)}
    values: list[float] = []
    columns: list[int] = []
    ends = [0]
    for grams in counts:
        weights = {gram: (1 + math.log(n)) * idf.get(gram, unseen_idf) for gram, n in grams.items()}
        norm = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        known = {column[gram]: weight / norm for gram, weight in weights.items() if gram in column}
        values.extend(known.values())
        columns.extend(known.keys())
        ends.append(len(values))
    return csr_array((values, columns, ends), shape=(len(counts), len(idf)))


def _regression(features: Any, refused: Array, c: float) -> tuple[Array, float]:  # noqa: ANN401 - dense or sparse
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # likewise

    fitted = LogisticRegression(C=c, class_weight="balanced", max_iter=5000).fit(features, refused)
    return fitted.coef_[0], float(fitted.intercept_[0])
