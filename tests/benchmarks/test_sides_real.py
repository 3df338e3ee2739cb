"""Five folds hold each query out once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sides import write_queries
from benchmarks.sides_real import FOLDS, GROUPINGS, HELD_OUT, names_of_groups
from envs.queries import load_queries
from envs.query_sets import split_queries

TYPES = ("homonyms", "contrast_homonyms", "nons_group_real_discr", "contrast_discr")
ROWS = [
    {"prompt": f"q{row}", "type": TYPES[row % 4], "focus": ("", "elderly ", f"w{row % 7}")[row % 3]}
    for row in range(84)
]


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_each_query_is_held_out_once(grouping: str, tmp_path: Path) -> None:
    held = []
    for fold in range(2 if grouping == "family" else FOLDS):
        groups = names_of_groups(ROWS, grouping, fold)
        path = write_queries(tmp_path / f"{fold}.csv", [*groups.items()])
        queries = load_queries(str(path), group_column="group")
        held += [query.text for query in split_queries(queries, held_out=HELD_OUT)[1]]
    assert sorted(held) == sorted(row["prompt"] for row in ROWS)
