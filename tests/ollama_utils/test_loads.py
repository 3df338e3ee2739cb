"""What replies tell of loads: who waited for one, and which models displace each other."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.swaps import Loads
from ollama_utils.types import Usage


def reply(load_s: float, service_s: float = 2.0) -> Usage:
    return Usage(load_s=load_s, decode_s=service_s, total_s=load_s + service_s)


def displaced(loads: list[tuple[str, float, float]]) -> list[set[str]]:
    """What is found at each load, given as model, moment and wait."""
    known = Loads()
    return [
        set(known.displaced(model, ready_s - wait_s, wait_s)) for model, ready_s, wait_s in loads
    ]


def test_models_that_are_loaded_in_turn_displace_each_other_as_soon_as_each_was_loaded_twice() -> (
    None
):
    found = displaced(
        [(model, 4.0 * k, 3.0) for k, model in zip(range(6), cycle("ab"), strict=False)]
    )
    assert found == [set(), set(), {"a"}, {"a", "b"}, {"a", "b"}, {"a", "b"}]


def test_calls_that_waited_for_one_load_count_once() -> None:
    waits = [
        (model, 4.0 * k + late_s, 3.0)
        for k, model in enumerate("abab")
        for late_s in (0, 0.01, 0.02)
    ]
    found = displaced(waits)
    assert [set() if k % 3 else each for k, each in enumerate(found)] == found
    assert found[9] == {"a", "b"}


def test_models_that_the_server_forgot_over_a_pause_do_not_displace_each_other() -> None:
    assert not any(displaced([("a", 3, 3), ("b", 7, 3), ("a", 310, 3), ("b", 314, 3)]))


def test_a_model_that_is_loaded_again_without_another_between_displaces_nobody() -> None:
    assert not any(displaced([("a", 4.0 * k, 3.0) for k in range(9)]))


def test_a_model_that_stays_while_others_are_loaded_in_turn_is_not_among_them() -> None:
    found = displaced(
        [("c", 2.0, 1.0), *((model, 4.0 * k, 3.0) for k, model in enumerate("abababab", 1))]
    )
    assert set().union(*found) == {"a", "b"}


@given(waits_s=st.lists(st.floats(0.01, 0.08), min_size=1), service_s=st.floats(0.001, 60))
def test_what_models_in_memory_report_is_no_load(waits_s: list[float], service_s: float) -> None:
    known = Loads()
    assert not any(known.waited("a", reply(wait_s, service_s)) for wait_s in waits_s)


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_a_wait_for_a_load_stands_out_at_any_pace_once_a_call_found_the_model_in_memory(
    scale: float,
) -> None:
    known = Loads()
    assert not known.waited("a", reply(0.02 * scale, 30 * scale))
    assert known.waited("a", reply(1.5 * scale, 30 * scale))
    assert not known.waited("a", reply(0.05 * scale, 30 * scale))


def test_waits_of_which_each_was_for_a_load_are_told_by_the_time_that_the_calls_took() -> None:
    known = Loads()
    assert all(known.waited("a", reply(wait_s, 2.0)) for wait_s in (1.8, 2.5, 4.0))


def test_one_model_s_overhead_is_no_measure_for_another() -> None:
    known = Loads()
    assert not known.waited("quick", reply(0.001))
    assert not known.waited("slow", reply(0.09))
