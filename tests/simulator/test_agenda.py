"""Virtual time: what is entered happens in order, at its moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.agenda import Agenda

MOMENTS = st.lists(st.integers(0, 20), max_size=200)


@given(moments=MOMENTS, cancelled=st.sets(st.integers(0, 199)), steps=st.lists(st.integers(0, 25)))
def test_all_that_is_not_taken_back_happens_at_its_moment_in_the_order_of_entry(
    moments: list[int], cancelled: set[int], steps: list[int]
) -> None:
    agenda, happened = Agenda(), []
    entries = [
        agenda.at(moment, lambda place=place: happened.append((agenda.now_s, place)))  # type: ignore[misc]
        for place, moment in enumerate(moments)
    ]
    for place in cancelled & set(range(len(entries))):
        agenda.cancel(entries[place])
        agenda.cancel(entries[place])
    for until in [*sorted(steps), 30]:
        agenda.advance(until)
        assert agenda.now_s == until
    kept = [(moment, place) for place, moment in enumerate(moments) if place not in cancelled]
    assert happened == sorted(kept)


def test_what_an_action_enters_for_now_happens_now() -> None:
    agenda, happened = Agenda(), []

    def enter() -> None:
        agenda.at(0, lambda: happened.append(agenda.now_s))

    agenda.at(1, enter)
    agenda.advance(1)
    assert happened == [1]


def test_entries_that_are_taken_back_leave_no_trace() -> None:
    agenda = Agenda()
    for moment in range(10_000):
        agenda.cancel(agenda.at(moment, lambda: None))
    assert len(agenda._heap) < 200
    assert agenda.next_s() == float("inf")
