"""What replies tell of a server's capacity, and the limit that follows: laws in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.capacity import MOST, START, Capacity
from ollama_utils.types import Usage
from tests.ollama_utils.traffic import Fixed, Traffic, VirtualServer

SERVED = Usage(completion_tokens=50, decode_s=0.2, total_s=0.2)


@pytest.mark.parametrize(
    "slots", [1, 8, *(pytest.param(number, marks=pytest.mark.soak) for number in (2, 4, 32))]
)
@pytest.mark.parametrize(
    "setting",
    [{}, {"sigma": 0.0}, {"overhead_s": 0.1}, {"travel_s": 0.01, "overhead_s": 0.02}],
    ids=["lognormal", "equal lengths", "overhead that is no wait for a slot", "overhead and a way"],
)
def test_the_slots_are_measured_and_the_limit_gives_the_throughput_of_the_best_fixed_one(
    slots: int, setting: dict[str, float]
) -> None:
    def traffic(capacity: Capacity) -> Traffic:
        return Traffic(VirtualServer(slots), capacity, **setting).run(20)  # type: ignore[arg-type]

    fixed = [traffic(Fixed(limit)).rate(3, 20) for limit in (slots, 2 * slots, 4 * slots)]
    measured = traffic(capacity := Capacity())
    assert measured.rate(3, 20) >= 0.97 * max(fixed)
    assert measured.wait(3, 20) <= 1.2
    found = capacity.found
    assert (found.least_slots, found.slots, found.most_slots) == (slots, slots, slots)
    assert slots < found.limit <= 3 * slots


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_the_limit_follows_the_slots_down_and_up(seed: int) -> None:
    server = VirtualServer(8)
    traffic = Traffic(server, Capacity(), seed=seed)
    server.at(15, lambda: server.resize(2))
    server.at(35, lambda: server.resize(8))
    traffic.run(60)
    assert traffic.capacity.slots == 8
    assert max(traffic.limits_within(25, 35)) <= 6
    assert traffic.rate(40, 60) >= 0.95 * Traffic(VirtualServer(8), Fixed(8), seed=seed).run(
        30
    ).rate(10, 30)


def test_beside_another_client_the_slots_measured_are_our_share() -> None:
    server = VirtualServer(8)
    traffic, other = Traffic(server, Capacity()), Traffic(server, Fixed(4), seed=1)
    traffic.run(20)
    best = Traffic(VirtualServer(8), Fixed(16)).run(20)
    assert traffic.rate(5, 20) + other.rate(5, 20) >= 0.97 * best.rate(5, 20)
    shared = traffic.capacity.slots
    assert shared is not None
    assert 4 <= shared <= 7
    other.lanes = 0
    traffic.run(40)
    assert traffic.capacity.slots == 8


@pytest.mark.parametrize(
    "slowing", [0.1, *(pytest.param(share, marks=pytest.mark.soak) for share in (0.02, 0.5))]
)
def test_where_calls_slow_each_other_but_every_slot_adds_throughput_all_are_used(
    slowing: float,
) -> None:
    best = Traffic(VirtualServer(8, slowing=slowing), Fixed(16)).run(100).rate(10, 100)
    found = Traffic(VirtualServer(8, slowing=slowing), Capacity()).run(100)
    assert found.rate(10, 100) >= 0.95 * best


@pytest.mark.parametrize("slots", [1, 4])
def test_a_server_far_away_gets_the_calls_on_their_way_on_top(slots: int) -> None:
    best = Traffic(VirtualServer(slots), Fixed(2 * slots + 2), travel_s=0.04).run(30).rate(5, 30)
    traffic = Traffic(VirtualServer(slots), Capacity(), travel_s=0.04).run(30)
    assert traffic.rate(5, 30) >= 0.97 * best


@settings(max_examples=40)
@given(
    slots=st.integers(1, 12),
    lanes=st.integers(1, 30),
    sigma=st.floats(0, 1.5),
    seed=st.integers(0, 10**6),
)
def test_no_more_slots_are_found_than_there_are(
    slots: int, lanes: int, sigma: float, seed: int
) -> None:
    traffic = Traffic(
        VirtualServer(slots), Capacity(), lanes=lanes, sigma=sigma, seed=seed, travel_s=0.0
    )
    for second in range(1, 6):
        traffic.run(second)
        assert (traffic.capacity.slots or 1) <= slots


def test_a_lane_alone_finds_no_slots_and_keeps_the_limit_it_began_with() -> None:
    traffic = Traffic(VirtualServer(4), Capacity(), lanes=1).run(20)
    assert (traffic.capacity.slots, traffic.capacity.limit) == (None, START)


@pytest.mark.parametrize(
    "usage", [None, Usage(load_s=0.1, total_s=0.3)], ids=["failed", "embedding"]
)
def test_replies_without_timings_tell_no_slots_and_let_calls_out_freely(
    usage: Usage | None,
) -> None:
    capacity = Capacity()
    for second in range(50):
        tickets = [capacity.sent(second) for _ in range(capacity.limit)]
        for ticket in tickets:
            capacity.came_back(ticket, second + 0.5, usage)
    assert capacity.slots is None
    assert capacity.limit == START if usage is None else capacity.limit > 2 * START


def test_a_wait_for_the_model_to_load_is_no_wait_for_a_slot() -> None:
    capacity = Capacity()
    tickets = [capacity.sent(0.0) for _ in range(START)]
    for ticket in tickets:
        capacity.came_back(
            ticket, 9.2, Usage(completion_tokens=50, load_s=9.0, decode_s=0.2, total_s=9.2)
        )
    assert capacity.slots is None
    assert capacity.found.queue_s == 0
    assert capacity.limit > START


def test_slots_that_the_server_tells_are_believed() -> None:
    traffic = Traffic(VirtualServer(2), Capacity(told=8)).run(20)
    found = traffic.capacity.found
    assert (found.least_slots, found.slots, found.most_slots) == (8, 8, 8)
    assert traffic.limits_within(0, 20) == {12}


durations = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-9, 0.2])
usages = st.none() | st.builds(
    Usage,
    completion_tokens=st.integers(0, 10**6),
    load_s=durations,
    prefill_s=durations,
    decode_s=durations,
    total_s=durations,
)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.booleans(), usages), max_size=60)
)
def test_whatever_a_server_reports_there_is_a_limit(
    moves: list[tuple[int, float, bool, Usage | None]],
) -> None:
    capacity, now_s, under_way = Capacity(), 0.0, []
    for calls, wait_s, first, usage in moves:
        now_s += wait_s
        under_way += [capacity.sent(now_s) for _ in range(calls)]
        if under_way:
            capacity.came_back(under_way.pop(0 if first else -1), now_s, usage)
        assert 1 <= capacity.limit <= MOST
        assert capacity.slots is None or capacity.slots >= 1
