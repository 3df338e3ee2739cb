"""What is known of a query without a call: which of the two files it is like.

Where guard queries are learned from, a logistic regression on sentence embeddings tells them from
the others. How likely a query is to be one of them stands in the observation from the first step.

A policy must learn how far that can be trusted. So what it sees of a query that is learned from
comes from a regression that knows nothing of that query, nor of any of its group; and each
regression is scaled, by folds of its own queries, so that a likelihood is what it says (Platt
1999), where both kinds of queries are as frequent, as in training they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.episode import derive_seed
from envs.queries import Query
from records.errors import UserError

FOLDS = 5
FEWEST_GROUPS = 3
"""Of each side: a fold is left out of what is fitted, and in that another."""
INVERSE_STRENGTH = 10.0
"""Of the regularisation; embeddings have length 1."""
SUSPECT = 0.8
"""Where length alone tells the files apart as well as this, they may be of two sources."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Which of two files a query is like."""

    weights: Floats
    """(D + 1,): the logit that a query is a guard query is these times its embedding and 1."""
    known: dict[str, float]
    """By query that was learned from, how likely it is a guard query by a regression that was not
    fitted to it."""
    auc: float
    """Of these likelihoods: how often a guard query has the higher one of two queries."""
    auc_of_length: float
    """The same by the number of characters alone."""

    def likelihood(self, embeddings: Floats) -> Floats:
        """(N,): how likely queries that were not learned from are guard queries."""
        return _sigmoid(_logits(self.weights, embeddings))

    @property
    def says(self) -> str:
        """What it is worth, in a line or two."""
        line = (
            f"by its words alone a guard query is told from another with an AUC of {self.auc:.2f}, "
            f"by its length with {self.auc_of_length:.2f}"
        )
        if self.auc_of_length >= SUSPECT:
            line += (
                "\nwarning: the two files differ in length so much that what is learned may be "
                "the source of a query, not whether it is harmful: bring queries of like form"
            )
        return line


def fit_prior(queries: Sequence[Query], embeddings: Floats) -> Prior:
    """Learn to tell N guard and other queries apart; embeddings are (N, D), of length 1."""
    is_guard = np.array([query.is_guard for query in queries])
    folds = _folds(queries)
    known = np.zeros(len(queries))
    for fold in np.unique(folds):
        mine = folds == fold
        weights = _calibrated(embeddings[~mine], is_guard[~mine], folds[~mine])
        known[mine] = _sigmoid(_logits(weights, embeddings[mine]))
    lengths = np.array([len(query.text) for query in queries], np.float64)
    by_length = _auc(lengths, is_guard)
    return Prior(
        weights=_calibrated(embeddings, is_guard, folds),
        known=dict(zip([query.text for query in queries], known.tolist(), strict=True)),
        auc=_auc(known, is_guard),
        auc_of_length=max(by_length, 1 - by_length),
    )


def _calibrated(rows: Floats, is_guard: Flags, folds: NDArray[np.int64]) -> Floats:
    """The weights of a regression on rows (N, D), scaled by how it does on folds left out."""
    logits = np.zeros(len(rows))
    for fold in np.unique(folds):
        mine = folds == fold
        logits[mine] = _logits(_fit(rows[~mine], is_guard[~mine]), rows[mine])
    scale, shift = _fit(logits[:, None], is_guard)
    scale = max(scale, 0.0)  # where nothing is to be told, chance may turn it round
    weights = _fit(rows, is_guard)
    return np.append(scale * weights[:-1], scale * weights[-1] + shift)


def _fit(rows: Floats, is_guard: Flags) -> Floats:
    """The weights (D,) and the intercept of a logistic regression; both sides weigh the same."""
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    model = LogisticRegression(C=INVERSE_STRENGTH, class_weight="balanced", max_iter=3000)
    model.fit(rows, is_guard)
    return np.append(model.coef_[0], model.intercept_)


def _logits(weights: Floats, rows: Floats) -> Floats:
    return np.asarray(rows @ weights[:-1] + weights[-1])


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logits)))


def check_sides(queries: Sequence[Query]) -> None:
    """Check that there are groups enough of both sides to learn from; raises UserError."""
    for is_guard, what in ((True, "guard queries"), (False, "other queries")):
        groups = {query.group for query in queries if query.is_guard == is_guard}
        if len(groups) < FEWEST_GROUPS:
            raise UserError(
                f"{len(groups)} groups of {what} are left to learn from; expected "
                f"{FEWEST_GROUPS} or more: bring more, or change --held-out, --kept or "
                "--group-column"
            )


def _folds(queries: Sequence[Query]) -> NDArray[np.int64]:
    """(N,): the fold of each query: a group is in one, and each side's groups are spread evenly."""
    sides: dict[str, set[bool]] = {}
    for query in queries:
        sides.setdefault(query.group, set()).add(query.is_guard)
    counts, place = np.zeros((FOLDS, 2), np.int64), {}
    for group in sorted(sides, key=lambda name: (-len(sides[name]), derive_seed("prior", name))):
        mine = [int(is_guard) for is_guard in sides[group]]
        place[group] = int(counts[:, mine].sum(axis=1).argmin())
        counts[place[group], mine] += 1
    return np.array([place[query.group] for query in queries], np.int64)


def _auc(scores: Floats, is_guard: Flags) -> float:
    """How often a guard query scores higher than another; half where they are alike."""
    from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]

    return float(roc_auc_score(is_guard, scores))
