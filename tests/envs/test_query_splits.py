"""A split depends on nothing but the query's group and the seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.queries import Query, QuerySplitError, load_queries, queries_sha256, split_queries

GROUPS = st.lists(st.text(max_size=5), min_size=1, max_size=40)
SHARES = st.floats(0, 1)
SEEDS = st.integers()


def queries_of(groups: Sequence[str]) -> list[Query]:
    return [Query(text=f"{group} {row}", group=group, row=row) for row, group in enumerate(groups)]


def is_held_out(query: Query, held_out: float, split_seed: int) -> bool:
    """The side of a query that is alone in its file."""
    try:
        split_queries([query], held_out=held_out, split_seed=split_seed)
    except QuerySplitError as error:
        return "left for training" in str(error)
    return False


@given(groups=GROUPS, held_out=SHARES, split_seed=SEEDS)
def test_the_side_of_a_query_never_depends_on_the_others(
    groups: list[str], held_out: float, split_seed: int
) -> None:
    queries = queries_of(groups)
    alone = [is_held_out(query, held_out, split_seed) for query in queries]
    expected = tuple(
        tuple(q for q, held in zip(queries, alone, strict=True) if held is side) for side in (False, True)
    )
    try:
        assert split_queries(queries, held_out=held_out, split_seed=split_seed) == expected
    except QuerySplitError:
        assert () in expected


@given(groups=GROUPS, held_out=SHARES, split_seed=SEEDS)
def test_a_group_is_never_parted(groups: list[str], held_out: float, split_seed: int) -> None:
    sides: dict[str, set[bool]] = {}
    for query in queries_of(groups):
        sides.setdefault(query.group, set()).add(is_held_out(query, held_out, split_seed))
    assert all(len(side) == 1 for side in sides.values())


@given(group=st.text(), shares=st.tuples(SHARES, SHARES), split_seed=SEEDS)
def test_a_larger_share_only_adds_to_the_queries_held_out(
    group: str, shares: tuple[float, float], split_seed: int
) -> None:
    query = Query(text="q", group=group, row=1)
    small, large = (is_held_out(query, share, split_seed) for share in sorted(shares))
    assert small <= large


def test_the_split_is_the_same_on_every_machine() -> None:
    train, held_out = split_queries(queries_of([str(i) for i in range(12)]), split_seed=3)
    assert [query.group for query in held_out] == ["0", "1", "7", "9", "11"]
    assert len(train) + len(held_out) == 12


def test_the_share_is_met_on_average_and_the_seed_moves_the_split() -> None:
    queries = load_queries(None)
    held_out = {seed: split_queries(queries, split_seed=seed)[1] for seed in range(5)}
    assert all(0.25 < len(held) / len(queries) < 0.35 for held in held_out.values())
    assert len(set(held_out.values())) == 5


def test_a_share_of_nought_gives_everything_to_training() -> None:
    queries = queries_of(["a", "b"])
    assert split_queries(queries, held_out=0) == (tuple(queries), ())


@pytest.mark.parametrize("held_out", [-0.1, 1.5, float("nan")])
def test_a_share_outside_nought_to_one_is_refused(held_out: float) -> None:
    with pytest.raises(QuerySplitError, match="expected a share between 0 and 1"):
        split_queries(queries_of(["a", "b"]), held_out=held_out)


def test_an_empty_side_says_what_to_do() -> None:
    with pytest.raises(QuerySplitError, match=r"no query is left for training .* bring more queries"):
        split_queries(queries_of(["a", "a"]), held_out=1)
    with pytest.raises(QuerySplitError, match=r"no query is held out .* 1 groups.* bring more queries"):
        split_queries(queries_of(["a", "a"]), held_out=1e-9)
    with pytest.raises(QuerySplitError, match="no query is left for training"):
        split_queries([], held_out=0)


@given(groups=st.lists(st.text(), min_size=2, max_size=6, unique=True))
def test_the_hash_follows_content_and_order_but_not_rows(groups: list[str]) -> None:
    queries = queries_of(groups)
    moved = [Query(text=query.text, group=query.group, row=query.row + 9) for query in queries]
    assert queries_sha256(moved) == queries_sha256(queries)
    assert queries_sha256(queries[::-1]) != queries_sha256(queries)
    assert queries_sha256(queries[1:]) != queries_sha256(queries)
