"""What is asked for ahead is shared out as the tests that are under way need it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from search.selectors.pulls import Pending, share_out

tests_under_way = st.dictionaries(
    st.integers(0, 20), st.builds(Pending, st.integers(1, 100), st.integers(0, 100)), max_size=9
)


@given(st.integers(0, 200), tests_under_way)
def test_all_pulls_are_shared_out_but_no_test_gets_more_than_it_takes(
    pulls: int, tests: dict[int, Pending]
) -> None:
    shares = share_out(pulls, tests)
    room = {number: max(0, test.needed - test.asked) for number, test in tests.items()}
    assert shares.total() == min(pulls, sum(room.values()))
    assert all(shares[number] <= room[number] for number in tests)


def test_the_share_is_in_proportion_to_the_need_and_equals_come_in_their_order() -> None:
    assert share_out(33, {0: Pending(30, 0), 1: Pending(300, 0)}) == {0: 3, 1: 30}
    assert share_out(3, {2: Pending(10, 0), 1: Pending(10, 0)}) == {1: 2, 2: 1}
    assert share_out(10, {0: Pending(20, 10), 1: Pending(20, 0)}) == {1: 10}


def test_a_test_takes_as_much_more_as_its_capital_lacks_and_at_most_the_dataset() -> None:
    assert Pending.of(capital=2.0, enough=6.0, told=10, asked=15, size=100) == Pending(needed=20, asked=5)
    assert Pending.of(capital=1.0, enough=6.0, told=40, asked=40, size=100) == Pending(needed=60, asked=0)
    for nothing in (0.0, -3.0):
        assert Pending.of(nothing, 6.0, told=10, asked=10, size=100) == Pending(needed=90, asked=0)
    assert Pending.of(6.5, 6.0, told=10, asked=10, size=100) == Pending(needed=1, asked=0)
