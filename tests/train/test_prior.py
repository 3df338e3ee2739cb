"""Which file a query is from is told by its words, and never by what is known of itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.queries import Query
from records.errors import UserError
from train.prior import SUSPECT, check_sides, fit_prior

Floats = NDArray[np.float64]
N, D = 120, 8


def queries_of(group_size: int = 1) -> list[Query]:
    return [
        Query(
            text=f"q{row:03}" + "x" * (row % 7),
            group=f"g{row // group_size}",
            is_guard=row % 2 == 1,
            row=row + 1,
        )
        for row in range(N)
    ]


def embeddings_of(queries: list[Query], pull: float) -> Floats:
    """Unit rows; those of guard queries lie to one side, the further the harder the pull."""
    rows = np.random.default_rng(0).normal(size=(len(queries), D))
    rows[:, 0] += pull * np.array([1.0 if query.is_guard else -1.0 for query in queries])
    found: Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def test_what_is_said_of_a_query_does_not_depend_on_the_file_that_it_or_its_group_is_from() -> None:
    queries = queries_of(group_size=2)
    rows = embeddings_of(queries, pull=1.0)
    before = fit_prior(queries, rows).known
    for group in ("g0", "g7"):
        turned = [replace(q, is_guard=not q.is_guard) if q.group == group else q for q in queries]
        after = fit_prior(turned, rows).known
        mine = [query.text for query in queries if query.group == group]
        assert [after[text] for text in mine] == pytest.approx([before[text] for text in mine])
        assert after != before


def test_a_likelihood_is_what_it_says() -> None:
    """Of the queries that are said to be guard queries with .8, some eight in ten are."""
    for pull, auc in ((0.0, 0.5), (0.7, 0.8), (3.0, 1.0)):
        queries = queries_of()
        found = fit_prior(queries, embeddings_of(queries, pull))
        assert found.auc == pytest.approx(auc, abs=0.13)
        likely = np.array([found.known[query.text] for query in queries])
        guards = np.array([query.is_guard for query in queries])
        for low in (0.0, 0.25, 0.5, 0.75):
            these = (low <= likely) & (likely < low + 0.25)
            if these.sum() >= 15:
                assert guards[these].mean() == pytest.approx(likely[these].mean(), abs=0.2)


def test_what_was_not_learned_from_is_told_as_well_as_what_was() -> None:
    queries = queries_of()
    rows = embeddings_of(queries, pull=2.0)
    found = fit_prior(queries[:80], rows[:80])
    is_guard = np.array([query.is_guard for query in queries[80:]])
    likely = found.likelihood(rows[80:])
    assert ((likely > 0.5) == is_guard).mean() > 0.85


def test_files_that_differ_in_length_are_warned_of() -> None:
    queries = queries_of()
    rows = embeddings_of(queries, pull=0.0)
    assert "warning" not in fit_prior(queries, rows).says
    long = [replace(q, text=q.text + "y" * 40 * q.is_guard) for q in queries]
    found = fit_prior(long, rows)
    assert found.auc_of_length >= SUSPECT
    assert "may be the source of a query" in found.says


@pytest.mark.parametrize("shared", [3, 2, 1, 0])
def test_three_groups_of_each_side_are_enough(shared: int) -> None:
    """Whether or not the sides share groups, as the families of one benchmark do."""
    queries = [
        replace(q, group=f"{place % 3}" if place % 3 < shared else f"{place % 3} {q.is_guard}")
        for place, q in enumerate(queries_of())
    ]
    check_sides(queries)
    assert fit_prior(queries, embeddings_of(queries, pull=3.0)).auc == pytest.approx(1.0, abs=0.05)
    few = [query for query in queries if query.group[0] != "2"]
    with pytest.raises(UserError, match=r"2 groups of guard queries .* expected 3 or more"):
        check_sides(few)
