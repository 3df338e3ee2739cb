"""Rates corrected for labels that err."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import Interval, exact_interval

COUNTS = st.sampled_from([(positive, n) for n in range(1, 40) for positive in range(n + 1)])
LABELLED = COUNTS.map(lambda counts: labelled(*counts))
TOLD = {"sensitivity": 0.9, "specificity": 0.95, "positives": 100, "negatives": 200}


def accuracy(**other: float) -> LabelAccuracy:
    return LabelAccuracy(**{**TOLD, **other})  # type: ignore[arg-type]


def labelled(positive: int, n: int) -> Interval:
    return Interval(positive / n, *exact_interval(positive, n))


def test_a_share_is_corrected_as_rogan_and_gladen_do() -> None:
    found = corrected_rate(labelled(40, 100), accuracy())
    assert found.mean == pytest.approx((0.4 + 0.95 - 1) / (0.9 + 0.95 - 1))


@given(LABELLED)
def test_labels_that_never_err_measured_without_end_leave_the_rate_as_it_is(
    found: Interval,
) -> None:
    sure = accuracy(sensitivity=1, specificity=1, positives=10**9, negatives=10**9)
    assert corrected_rate(found, sure) == pytest.approx(found, abs=1e-6)


@given(LABELLED, st.floats(0.55, 1), st.floats(0.55, 1), st.integers(1, 500), st.integers(1, 500))
def test_the_interval_holds_the_share_and_stays_in_bounds(
    found: Interval, sensitivity: float, specificity: float, positives: int, negatives: int
) -> None:
    labels = LabelAccuracy(
        sensitivity=sensitivity, specificity=specificity, positives=positives, negatives=negatives
    )
    mean, low, high = corrected_rate(found, labels)
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1


@given(LABELLED)
def test_an_accuracy_measured_on_more_replies_never_widens_the_interval(found: Interval) -> None:
    few, many = (
        corrected_rate(found, accuracy(positives=n, negatives=2 * n)) for n in (100, 10_000)
    )
    assert few.low <= many.low + 1e-9
    assert many.high <= few.high + 1e-9


def test_labels_that_are_hardly_better_than_chance_leave_all_possible() -> None:
    labels = LabelAccuracy(sensitivity=0.55, specificity=0.5, positives=20, negatives=20)
    assert corrected_rate(labelled(10, 20), labels)[1:] == (0, 1)


def test_without_trials_nothing_is_known() -> None:
    mean, low, high = corrected_rate(Interval(math.nan, 0.0, 1.0), accuracy())
    assert math.isnan(mean)
    assert (low, high) == (0, 1)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"sensitivity": 0.5, "specificity": 0.5}, r"better than chance .* got 0.5 \+ 0.5"),
        ({"sensitivity": 1.5}, "expected a sensitivity from 0 to 1, got 1.5"),
        ({"specificity": math.nan}, "expected a specificity from 0 to 1, got nan"),
        ({"positives": 0}, "expected at least one of the positives, got 0"),
    ],
)
def test_an_impossible_or_useless_accuracy_is_an_error(other: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        accuracy(**other)


def test_the_accuracy_is_read_from_what_the_judge_wrote(tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    path.write_text(json.dumps({**TOLD, "n": 300, "kappa": 0.8}), encoding="utf-8")
    assert LabelAccuracy.from_json(path) == accuracy()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({**TOLD, "positives": 1.5}, "'positives': 1.5"),
        (
            {"n": 3},
            "got {'sensitivity': None, 'specificity': None, 'positives': None, 'negatives': None}",
        ),
        ({**TOLD, "sensitivity": True}, "'sensitivity': True"),
        ({**TOLD, "sensitivity": 0.01}, "better than chance"),
        ([TOLD], "expected a JSON object, got a list"),
    ],
)
def test_a_file_that_tells_no_accuracy_is_an_error_that_names_it(
    told: Any,
    said: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "judge.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(ValueError, match=r"judge\.json: expected") as caught:
        LabelAccuracy.from_json(path)
    assert said in str(caught.value)


def test_a_file_that_is_no_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    path.write_text("n,precision", encoding="utf-8")
    with pytest.raises(ValueError, match=r"judge\.json: expected .* it is not JSON"):
        LabelAccuracy.from_json(path)
