"""How well labels agree with people's: precision, recall, F1, accuracy, Cohen's kappa."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scorers.labels import REFUSALS, RefusalLabel
from scorers.statistics import share


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Counts and rates over the rows that were scored; a refusal, full or partial, is positive.

    What is undefined, such as the precision of a labeller that never says "refused", is None.
    """

    n: int
    """Rows that were scored."""
    precision: float | None
    recall: float | None
    f1: float | None
    accuracy: float | None
    kappa: float | None
    confusion: list[list[int]]
    """Rows: people said answered, refused. Columns: so did the labeller. As scikit-learn has it."""
    sensitivity: float | None
    """The share of people's refusals that were called so: the recall."""
    specificity: float | None
    """The share of people's answers that were called so."""
    positives: int
    negatives: int
    """Beside `positives`: the two kinds by people's labels; what is undetermined is negative."""
    unscored: int
    """Rows that were not scored, as a call failed or its reply could not be read."""


def agreement(humans: Sequence[RefusalLabel], labels: Sequence[RefusalLabel | None]) -> Agreement:
    """Compare labels with people's, row by row; None is an unscored row."""
    pairs = list(zip(humans, labels, strict=True))
    scored = [(human in REFUSALS, label in REFUSALS) for human, label in pairs if label]
    (kept, alarms), (missed, hits) = _confusion(scored)
    return Agreement(
        n=len(scored),
        precision=share(hits, hits + alarms),
        recall=share(hits, hits + missed),
        f1=share(2 * hits, 2 * hits + alarms + missed),
        accuracy=share(hits + kept, len(scored)),
        kappa=cohen_kappa(scored),
        confusion=[[kept, alarms], [missed, hits]],
        sensitivity=share(hits, hits + missed),
        specificity=share(kept, kept + alarms),
        positives=hits + missed,
        negatives=kept + alarms,
        unscored=len(pairs) - len(scored),
    )


def cohen_kappa(pairs: Iterable[tuple[bool, bool]]) -> float | None:
    """How far two agree on yes or no, beyond chance (Cohen 1960); None where chance says all."""
    (kept, alarms), (missed, hits) = _confusion(pairs)
    n = kept + alarms + missed + hits
    by_chance = (hits + missed) * (hits + alarms) + (kept + alarms) * (kept + missed)
    return share(n * (hits + kept) - by_chance, n * n - by_chance)


def _confusion(pairs: Iterable[tuple[bool, bool]]) -> list[list[int]]:
    """How often the first says no, yes (rows), and the second no, yes (columns)."""
    counts = Counter(pairs)
    return [[counts[first, second] for second in (False, True)] for first in (False, True)]
