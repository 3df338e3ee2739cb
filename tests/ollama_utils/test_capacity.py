"""What replies tell of a server's capacity, and the limit that follows: laws in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.capacity import MOST, START, Capacity, Saturation
from ollama_utils.types import Usage
from tests.ollama_utils.traffic import Fixed, Traffic
from tests.simulator.virtual import Scene

SERVED = Usage(completion_tokens=50, decode_s=0.2, total_s=0.2)


@pytest.mark.parametrize(
    ("slots", "wait"),
    [(1, 0.6), (8, 0.3), *(pytest.param(n, 0.3, marks=pytest.mark.soak) for n in (2, 4, 32))],
)
def test_the_limit_found_gives_nearly_the_throughput_of_the_best_fixed_one_at_a_short_wait(
    slots: int, wait: float
) -> None:
    best = max(Traffic(Scene(slots=slots), Fixed(limit)).run(20).rate(3, 20) for limit in (slots, 2 * slots))
    traffic = Traffic(Scene(slots=slots), Capacity()).run(20)
    assert traffic.rate(3, 20) >= 0.95 * best
    assert traffic.wait(3, 20) <= wait
    assert traffic.capacity.slots in (slots, None)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_the_limit_follows_the_slots_down_and_up(seed: int) -> None:
    scene = Scene(slots=8)
    traffic = Traffic(scene, Capacity(), seed=seed)
    scene.agenda.at(15, lambda: scene.server.resize(2))
    scene.agenda.at(35, lambda: scene.server.resize(8))
    traffic.run(60)
    assert traffic.limits_within(20, 35) <= {1, 2, 3, 4}
    assert traffic.wait(20, 35) <= 0.3
    assert traffic.rate(40, 60) >= 0.95 * Traffic(Scene(slots=8), Fixed(8), seed=seed).run(30).rate(10, 30)


def test_beside_a_client_that_takes_half_the_slots_the_limit_is_the_other_half() -> None:
    scene = Scene(slots=8)
    traffic, other = Traffic(scene, Capacity()), Traffic(scene, Fixed(4), seed=1)
    traffic.run(20)
    assert traffic.limits_within(5, 20) <= {3, 4, 5, 6}
    assert traffic.rate(5, 20) == pytest.approx(other.rate(5, 20), rel=0.2)
    assert traffic.wait(5, 20) <= 0.3
    other.lanes = 0
    traffic.run(40)
    assert traffic.limits_within(25, 40) >= {9}
    assert traffic.rate(25, 40) >= 1.7 * traffic.rate(5, 20)


@pytest.mark.parametrize("slots", [8, *(pytest.param(n, marks=pytest.mark.soak) for n in (4, 32))])
def test_what_a_reply_holds_beside_its_service_is_not_taken_for_a_wait_for_a_slot(slots: int) -> None:
    best = Traffic(Scene(slots=slots), Fixed(64), overhead_s=0.1).run(60).rate(10, 60)
    traffic = Traffic(Scene(slots=slots), Capacity(), overhead_s=0.1).run(60)
    assert traffic.rate(10, 60) >= 0.75 * best


def test_where_throughput_stops_growing_before_the_slots_do_so_does_the_limit() -> None:
    best = Traffic(Scene("cpu16", slots=32), Fixed(32)).run(3000).rate(500, 3000)
    traffic = Traffic(Scene("cpu16", slots=32), Capacity()).run(3000)
    assert max(traffic.limits_within(500, 3000)) <= 20
    assert traffic.rate(500, 3000) >= 0.95 * best


@pytest.mark.parametrize(
    "profile", ["rtx4090", *(pytest.param(name, marks=pytest.mark.soak) for name in ("gb10", "rtx3090"))]
)
def test_where_every_slot_adds_throughput_all_are_used(profile: str) -> None:
    best = Traffic(Scene(profile, slots=8), Fixed(16)).run(100).rate(10, 100)
    assert Traffic(Scene(profile, slots=8), Capacity()).run(100).rate(10, 100) >= 0.95 * best


@pytest.mark.parametrize("slots", [1, 4])
def test_a_server_far_away_gets_the_calls_on_their_way_on_top(slots: int) -> None:
    best = Traffic(Scene(slots=slots), Fixed(2 * slots + 2), travel_s=0.04).run(30).rate(5, 30)
    traffic = Traffic(Scene(slots=slots), Capacity(), travel_s=0.04).run(30)
    assert traffic.rate(5, 30) >= 0.9 * best
    assert min(traffic.limits_within(10, 30)) >= slots


@settings(max_examples=40)
@given(
    slots=st.integers(1, 12), lanes=st.integers(1, 30), sigma=st.floats(0, 1.5), seed=st.integers(0, 10**6)
)
def test_no_more_slots_are_found_than_there_are(slots: int, lanes: int, sigma: float, seed: int) -> None:
    traffic = Traffic(Scene(slots=slots), Capacity(), lanes=lanes, sigma=sigma, seed=seed, travel_s=0.0)
    for second in range(1, 6):
        traffic.run(second)
        assert (traffic.capacity.slots or 1) <= slots


def test_a_lane_alone_finds_no_slots_and_keeps_the_limit_it_began_with() -> None:
    traffic = Traffic(Scene(slots=4), Capacity(), lanes=1).run(20)
    assert (traffic.capacity.slots, traffic.capacity.limit) == (None, START)


@pytest.mark.parametrize("usage", [None, Usage(load_s=0.1, total_s=0.3)], ids=["failed", "embedding"])
def test_replies_without_timings_move_nothing(usage: Usage | None) -> None:
    capacity = Capacity()
    for second in range(50):
        tickets = [capacity.sent(second) for _ in range(START)]
        for ticket in tickets:
            capacity.came_back(ticket, second + 0.5, usage)
    assert (capacity.limit, capacity.slots) == (START, None)


def test_a_wait_for_the_model_to_load_is_no_wait_for_a_slot() -> None:
    capacity = Capacity()
    tickets = [capacity.sent(0.0) for _ in range(START)]
    for ticket in tickets:
        capacity.came_back(ticket, 9.2, Usage(completion_tokens=50, load_s=9.0, decode_s=0.2, total_s=9.2))
    assert capacity.slots is None
    assert capacity.found.queue_s == 0
    assert capacity.limit > START


def test_one_reply_that_waited_tells_the_slots() -> None:
    capacity = Capacity()
    first, second = capacity.sent(0.0), capacity.sent(0.0)
    capacity.came_back(first, 0.2, SERVED)
    capacity.came_back(second, 0.4, Usage(completion_tokens=50, decode_s=0.2, total_s=0.4))
    assert (capacity.slots, capacity.limit) == (1, 1)


durations = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-9, 0.2])
usages = st.none() | st.builds(
    Usage,
    completion_tokens=st.integers(0, 10**6),
    load_s=durations,
    prefill_s=durations,
    decode_s=durations,
    total_s=durations,
)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.booleans(), usages), max_size=60))
def test_whatever_a_server_reports_there_is_a_limit(
    moves: list[tuple[int, float, bool, Usage | None]],
) -> None:
    capacity, now_s, under_way = Capacity(), 0.0, []
    for calls, wait_s, first, usage in moves:
        now_s += wait_s
        under_way += [capacity.sent(now_s) for _ in range(calls)]
        if under_way:
            capacity.came_back(under_way.pop(0 if first else -1), now_s, usage)
        assert 1 <= capacity.limit <= MOST + 1
        assert capacity.slots is None or capacity.slots >= 1


def saturation_of(service_s: list[tuple[int, float]]) -> Saturation:
    """What is known after a few replies at each number of calls at once, of 50 tokens each."""
    saturation = Saturation()
    for _ in range(10):
        for around, seconds in service_s:
            saturation.add(around, Usage(completion_tokens=50, decode_s=seconds))
    return saturation


@given(slots=st.integers(1, 500))
def test_calls_that_do_not_slow_each_other_down_may_fill_all_slots(slots: int) -> None:
    assert saturation_of([(1, 0.2), (4, 0.2), (8, 0.2)]).least_in_flight(slots) == slots


@given(slots=st.integers(1, 64), alone_s=st.floats(0.001, 10), slowing_s=st.floats(0.001, 10))
def test_saturation_is_the_least_number_that_gives_97_percent(
    slots: int, alone_s: float, slowing_s: float
) -> None:
    def rate(calls: int) -> float:
        return calls / (alone_s + slowing_s * calls)

    least = saturation_of([(n, alone_s + slowing_s * n) for n in (1, 2, 4, 8)]).least_in_flight(slots)
    assert rate(least) >= 0.97 * rate(slots) * (1 - 1e-6)
    assert least == 1 or rate(least - 1) < 0.97 * rate(slots) * (1 + 1e-6)
