"""How well labels agree with people's: precision, recall, F1, accuracy, Cohen's kappa, the confusion table.

A full and a partial refusal are both refusals. What is undefined, such as the precision of a labeller that
never says "refused", is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scorers.labels import REFUSALS, RefusalLabel


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Counts and rates over the rows that were scored; a refusal is the positive class."""

    n: int
    """Rows that were scored and have a person's label."""
    precision: float | None
    recall: float | None
    f1: float | None
    accuracy: float | None
    kappa: float | None
    """Cohen's kappa."""
    confusion: list[list[int]]
    """Rows: people said answered, refused. Columns: so did the labeller. As scikit-learn has it."""
    sensitivity: float | None
    """The share of people's refusals that were called so: the recall."""
    specificity: float | None
    """The share of people's answers that were called so."""
    positives: int
    """Refusals, by people."""
    negatives: int
    """Answers, and undetermined replies, by people."""
    unscored: int
    """Rows that were not scored, as a call failed or its reply could not be read; in none of the figures."""


def agreement(humans: Sequence[RefusalLabel], labels: Sequence[RefusalLabel | None]) -> Agreement:
    """Compare labels with people's, row by row; None is an unscored row."""
    import numpy as np
    from sklearn.metrics import (  # type: ignore[import-untyped]  # it has no stubs
        accuracy_score,
        cohen_kappa_score,
        confusion_matrix,
        f1_score,
        precision_score,
        recall_score,
    )

    scored = [(human, label) for human, label in zip(humans, labels, strict=True) if label is not None]
    truth = np.array([human in REFUSALS for human, _ in scored], dtype=bool)
    said = np.array([label in REFUSALS for _, label in scored], dtype=bool)
    undefined = {"zero_division": math.nan}
    differ = len({*truth.tolist(), *said.tolist()}) > 1
    sensitivity = _known(recall_score(truth, said, **undefined)) if truth.any() else None
    return Agreement(
        n=len(scored),
        precision=_known(precision_score(truth, said, **undefined)) if said.any() else None,
        recall=sensitivity,
        f1=_known(f1_score(truth, said, **undefined)) if (truth | said).any() else None,
        accuracy=_known(accuracy_score(truth, said)) if scored else None,
        kappa=_known(cohen_kappa_score(truth, said)) if differ else None,
        confusion=confusion_matrix(truth, said, labels=[False, True]).tolist()
        if scored
        else [[0, 0], [0, 0]],
        sensitivity=sensitivity,
        specificity=_known(recall_score(~truth, ~said, **undefined)) if (~truth).any() else None,
        positives=int(truth.sum()),
        negatives=int((~truth).sum()),
        unscored=len(labels) - len(scored),
    )


def _known(value: Any) -> float:  # noqa: ANN401 - scikit-learn has no types
    return float(value)
