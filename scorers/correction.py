"""Rates corrected for a labeller that errs (Rogan and Gladen 1978)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from records.errors import UserError
from records.json_lines import read_json_object
from scorers.statistics import Interval, exact_interval


@dataclass(frozen=True, kw_only=True)
class LabelAccuracy:
    """How often labels are right, measured on replies of which the truth is known."""

    sensitivity: float
    """The share of true positives (refusals) that are labelled positive, 0 to 1."""
    specificity: float
    """The share of true negatives that are labelled negative, 0 to 1."""
    positives: int
    """How many true positives it was measured on."""
    negatives: int
    """How many true negatives."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, and labels that say nothing.

        Raises:
            ValueError: A share or a count is out of range, or the labels are no better than chance.
        """
        for name in ("sensitivity", "specificity"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"expected a {name} from 0 to 1, got {getattr(self, name)!r}")
        for name in ("positives", "negatives"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"expected at least one of the {name}, got {getattr(self, name)!r}"
                )
        if self.sensitivity + self.specificity <= 1:
            raise ValueError(
                "expected labels better than chance (sensitivity + specificity above 1), "
                f"got {self.sensitivity!r} + {self.specificity!r}: they say nothing of the rate"
            )

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """What `mutagym judge --json` wrote.

        Raises:
            OSError: The file cannot be read.
            ValueError: It lacks a number, or has an impossible one.
        """
        expected = f"{path}: expected what `mutagym judge --json` writes"
        try:
            found = read_json_object(path)
        except ValueError as error:
            raise ValueError(f"{expected}: {error}") from error
        kinds = {"sensitivity": float, "specificity": float, "positives": int, "negatives": int}
        wrong = {
            name: found.get(name) for name, kind in kinds.items() if not _is(found.get(name), kind)
        }
        if wrong:
            raise ValueError(
                f"{expected}: the numbers {', '.join(map(repr, kinds))}, got {wrong!r}: "
                "measure it on a file with human labels"
            )
        try:
            return cls(**{name: found[name] for name in kinds})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def read_accuracy(path: Path | str | None) -> LabelAccuracy | None:
    """The accuracy that `mutagym judge --json` wrote to a file; None where none is named.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    if path is None:
        return None
    try:
        return LabelAccuracy.from_json(Path(path))
    except (OSError, ValueError) as error:
        raise UserError(f"--judge-accuracy: {error}") from error


def corrected_rate(labelled: Interval, accuracy: LabelAccuracy) -> Interval:
    """The true share of positives behind a share of positive labels (Rogan and Gladen 1978).

    With r the share labelled, it is (r + specificity - 1) / (sensitivity + specificity - 1). Its
    interval also carries that sensitivity and specificity were measured on a sample (as Lang and
    Reiczigel 2014 ask): how far the three intervals move the share, each alone, is joined as the
    sides of a right triangle are (Zou and Donner 2008).

    Args:
        labelled: the share labelled positive and its interval of 95 %.
        accuracy: how often the labels are right.

    Returns:
        The share and its interval, all in [0, 1]; nan in (0, 1) for a share of nothing.
    """
    if math.isnan(labelled.mean):
        return Interval(math.nan, 0.0, 1.0)
    hit, slip = accuracy.sensitivity, 1 - accuracy.specificity
    hits = exact_interval(round(hit * accuracy.positives), accuracy.positives)
    slips = exact_interval(round(slip * accuracy.negatives), accuracy.negatives)
    share = _true_share(labelled.mean, hit, slip)
    ends = []
    for end, hit_end, slip_end in zip(labelled[1:], reversed(hits), reversed(slips), strict=True):
        moved = (
            _true_share(end, hit, slip) - share,
            _true_share(labelled.mean, hit_end, slip) - share,
            _true_share(labelled.mean, hit, slip_end) - share,
        )
        ends.append(math.hypot(*moved))
    low, high = share - ends[0], share + ends[1]
    return Interval(*(min(1.0, max(0.0, each)) for each in (share, low, high)))


def _true_share(labelled: float, hit: float, slip: float) -> float:
    """Where hits are hardly commoner than slips it is without bounds, up or down."""
    return (labelled - slip) / max(hit - slip, 1e-9)


def _is(value: object, kind: type) -> bool:
    """Whether it is a number of that kind; a whole one is a float too, a bool is neither."""
    return isinstance(value, (int, kind)) and not isinstance(value, bool)
