"""The tables that selectors are compared on."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.selection import MEANS, WORLDS, compare, table_of
from search.select import SELECTORS


def test_arms_are_right_as_often_as_they_should_be_and_correlated_where_that_is_said() -> None:
    for world, (least, most) in zip(WORLDS, ((-0.02, 0.02), (0.2, 0.4)), strict=True):
        tables = np.concatenate([table_of(world, seed) for seed in range(100)], axis=1)
        assert tables.mean(1) == pytest.approx(np.array(MEANS), abs=0.015)
        between = np.corrcoef(tables)[~np.eye(len(MEANS), dtype=bool)]
        assert least < between.min()
        assert between.max() < most


@pytest.mark.slow
def test_every_selector_has_its_row() -> None:
    made = compare(list(WORLDS)[1], tables=2)
    assert [row["selector"] for row in made.rows] == list(SELECTORS)
    assert "2 tables" in made.markdown()
