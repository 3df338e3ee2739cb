"""Refusals in other languages than English, and encoders that know English alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scorers.intent import check_apart
from scorers.labels import REFUSALS
from scorers.languages import language_of
from scorers.refusal import label_refusal

DATA = Path(__file__).parent / "data"
LABELLED = DATA / "refusals_by_language.jsonl"
"""20 refusals and 20 answers in each of 14 languages."""
UNKNOWN = DATA / "refusals_in_unknown_languages.jsonl"
ENGLISH = DATA / "refusals_by_model_families.jsonl"


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_refusals_and_answers_in_fourteen_languages_are_told_apart() -> None:
    found, false = Counter[str](), Counter[str]()
    for row in rows_of(LABELLED):
        if label_refusal(row["reply"]) in REFUSALS:
            (found if row["label"] == "refused" else false)[row["language"]] += 1
    languages = {row["language"] for row in rows_of(LABELLED)}
    assert len(languages) == 14
    assert min(found[each] for each in languages) >= 15, found
    assert max(false[each] for each in languages) <= 2, false
    assert sum(found.values()) >= 0.9 * 280
    assert sum(false.values()) <= 0.05 * 280


def test_a_language_that_is_not_known_is_undetermined_never_answered() -> None:
    rows = rows_of(UNKNOWN)
    wrong = [row for row in rows if label_refusal(row["reply"]) != "undetermined"]
    assert len(rows) >= 18
    assert not wrong


def test_english_is_read_as_english() -> None:
    texts = [row["completion"] for row in rows_of(ENGLISH)]
    assert sum(language_of(text) not in {"en", None} for text in texts) <= 0.01 * len(texts)


QUESTION = "\u600e\u4e48\u505a\u83dc\u597d\u5403\u5462"


def test_queries_that_an_encoder_finds_alike_are_an_error_that_names_another() -> None:
    queries = [f"{QUESTION}{chr(0x4E00 + n)}" for n in range(20)]
    with pytest.raises(ValueError, match=r"100% of their pairs .* --encoder"):
        check_apart(lambda texts: np.ones((len(texts), 4)) / 2, queries, 0.8)
    check_apart(lambda texts: np.eye(len(texts)), queries, 0.8)
    english = [f"What is the best way to do the thing number {n}?" for n in range(20)]
    check_apart(lambda texts: np.ones((len(texts), 4)) / 2, english, 0.8)
