"""Similarity of two embeddings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.intent import similarity

SEEDS = st.integers(0, 2**32 - 1)


def unit_row(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    row = np.random.default_rng(seed).standard_normal(64)
    return (row / np.linalg.norm(row)).astype(np.float32)


@given(SEEDS, SEEDS)
def test_similarity_is_symmetric_and_bounded(first: int, second: int) -> None:
    a, b = unit_row(first), unit_row(second)
    assert similarity(a, b) == similarity(b, a)
    assert -1 <= similarity(a, b) <= 1


@given(SEEDS)
def test_a_row_is_like_itself_and_unlike_its_opposite(seed: int) -> None:
    row = unit_row(seed)
    assert similarity(row, row) == pytest.approx(1, abs=1e-6)
    assert similarity(row, -row) == pytest.approx(-1, abs=1e-6)
