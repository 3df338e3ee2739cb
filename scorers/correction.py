"""Rates corrected for a labeller that errs (Rogan and Gladen 1978)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from records.errors import UserError
from records.json_lines import read_json_object
from scorers.statistics import Interval, exact_interval

Share = Annotated[float, Field(ge=0, le=1)]


class LabelAccuracy(BaseModel):
    """How often labels are right, measured on replies of which the truth is known.

    Raises:
        ValueError: a number is out of range, or the labels are no better than chance.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    sensitivity: Share
    """The share of true positives (refusals) that are labelled positive."""
    specificity: Share
    """The share of true negatives that are labelled negative."""
    positives: PositiveInt
    """How many true positives it was measured on."""
    negatives: PositiveInt
    """How many true negatives."""

    @model_validator(mode="after")
    def _is_better_than_chance(self) -> Self:
        if self.sensitivity + self.specificity <= 1:
            raise ValueError(
                "expected labels better than chance (sensitivity + specificity above 1), "
                f"got {self.sensitivity!r} + {self.specificity!r}: they say nothing of the rate"
            )
        return self


def read_accuracy(path: str | None) -> LabelAccuracy | None:
    """The accuracy that `mutagym judge --json` wrote to a file; None where none is named.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    if path is None:
        return None
    try:
        return LabelAccuracy.model_validate(read_json_object(Path(path)))
    except (OSError, ValueError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            faults = (" ".join(map(str, (*one["loc"], one["msg"]))) for one in error.errors())
            why = "expected what `mutagym judge --json` writes of a file with human labels: "
            why += "; ".join(faults)
        raise UserError(f"--judge-accuracy: {path}: {why}") from error


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
    low, high = (
        math.hypot(
            _true_share(end, hit, slip) - share,
            _true_share(labelled.mean, hit_end, slip) - share,
            _true_share(labelled.mean, hit, slip_end) - share,
        )
        for end, hit_end, slip_end in zip(
            labelled[1:], reversed(hits), reversed(slips), strict=True
        )
    )
    ends = (share, share - low, share + high)
    return Interval(*(min(1.0, max(0.0, each)) for each in ends))


def _true_share(labelled: float, hit: float, slip: float) -> float:
    """Where hits are hardly commoner than slips it is without bounds, up or down."""
    return (labelled - slip) / max(hit - slip, 1e-9)
