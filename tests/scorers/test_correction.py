"""Rates corrected for labels that err."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import UserError
from scorers.correction import LabelAccuracy, corrected_rate, read_accuracy
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


def test_the_accuracy_is_read_from_what_the_judge_wrote(tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    path.write_text(json.dumps({**TOLD, "n": 300, "kappa": 0.8}), encoding="utf-8")
    assert read_accuracy(str(path)) == accuracy()
    assert read_accuracy(None) is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (json.dumps({**TOLD, "positives": 1.5}), "human labels: positives Input should be"),
        (json.dumps({"n": 3}), "sensitivity Field required; specificity Field required"),
        (json.dumps({**TOLD, "sensitivity": True}), "sensitivity Input should be"),
        (json.dumps({**TOLD, "sensitivity": 0.01}), "better than chance"),
        (json.dumps({**TOLD, "specificity": 1.5}), "specificity Input should be less"),
        (json.dumps({**TOLD, "negatives": 0}), "negatives Input should be greater"),
        ("n,precision", "it is not JSON"),
    ],
)
def test_a_file_that_has_no_accuracy_is_an_error_that_names_it(
    written: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "judge.json"
    path.write_text(written, encoding="utf-8")
    with pytest.raises(UserError, match=r"--judge-accuracy: .*judge\.json: ") as caught:
        read_accuracy(str(path))
    assert said in str(caught.value)
