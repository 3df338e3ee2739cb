"""Combinations: mappings that can be hashed, in the order of the choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search.selectors.combination import Combination, combinations


def think() -> None:
    """A choice may be a function."""


def test_all_combinations_come_in_order() -> None:
    made = combinations({"model": ["small", "large"], "prompt": ["p", "q"]})
    assert [dict(each) for each in made] == [
        {"model": "small", "prompt": "p"},
        {"model": "small", "prompt": "q"},
        {"model": "large", "prompt": "p"},
        {"model": "large", "prompt": "q"},
    ]


def test_equal_choices_are_equal_combinations_even_where_a_choice_cannot_be_hashed() -> None:
    one, other = Combination({"a": 1, "b": [1]}), Combination({"b": [1], "a": 1.0})
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, Combination({"a": 2, "b": [1]})}) == 2


def test_a_label_is_one_short_line() -> None:
    label = Combination({"model": "m:8b", "prompt": "Think\nhard. " * 20, "how": think}).label
    assert label.startswith("model=m:8b prompt=Think hard. ")
    assert label.endswith("… how=think")
    assert len(label) < 80


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({}, "expected choices by name"),
        ({"model": []}, r"choices\['model'\] must hold at least one choice, got none"),
        ({"model": "small"}, r"choices\['model'\] must be a list of choices, got 'small'"),
        ({"model": ["a", "b", "a"]}, r"choices\['model'\] holds 'a' twice"),
    ],
)
def test_bad_choices_are_one_clear_line(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        combinations(choices)
    assert "\n" not in str(caught.value)


def test_choices_that_are_arrays_are_compared_by_what_they_are() -> None:
    one, other = np.zeros(2), np.zeros(2)
    assert len(combinations({"a": [one, other]})) == 2
    with pytest.raises(ValueError, match="twice"):
        combinations({"a": [one, one]})
