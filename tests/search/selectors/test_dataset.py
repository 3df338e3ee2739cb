"""Datapoints: equal ones once, shuffled by the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.selectors.combination import distinct, shuffled

jsonlike = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=4,
)


@dataclass
class Thing:
    """Can be compared, and not hashed."""

    size: int


@given(st.lists(jsonlike, max_size=12))
def test_equal_datapoints_count_once_and_no_other_is_lost(dataset: list[object]) -> None:
    found = distinct(dataset)
    assert all(each in found for each in dataset)
    assert not any(each in found[:place] for place, each in enumerate(found))


def test_objects_that_neither_hash_nor_json_knows_are_compared() -> None:
    assert distinct([Thing(1), Thing(2), Thing(1)]) == [Thing(1), Thing(2)]


def test_an_array_equals_only_itself() -> None:
    one, other = np.arange(3), np.arange(3)
    assert len(distinct([one, other, one])) == 2


def test_the_order_is_the_seeds() -> None:
    first, again, second = (shuffled(range(50), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != second
    assert sorted(first) == sorted(second) == list(range(50))


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one datapoint, got none"):
        shuffled([], np.random.default_rng(0))
