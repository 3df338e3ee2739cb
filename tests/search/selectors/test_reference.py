"""The reference document on parallel evaluation: its table, its usage, its promise about the cap."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from search.selectors.combination import Combination, plan_concurrency
from search.selectors.registry import make_selector
from search.selectors.selector import Evaluation, Selector
from simulator.process import EmbeddedServer
from tests.search.selectors.arms import play


def asking(dispatcher: Dispatcher) -> object:
    """An evaluation by one call; longer replies score higher."""

    def evaluate(combination: Combination, datapoint: str) -> Evaluation:
        call = Call(
            model=combination["model"],
            system=combination["prompt"],
            prompt=datapoint,
            options={"temperature": 0},
        )
        reply = dispatcher.generate(call)
        if reply.error is not None:
            raise reply.error
        assert reply.usage is not None
        return Evaluation(min(1.0, len(reply.text) / 1000), reply.usage.total_s, reply.usage.prompt_tokens)

    return evaluate


def made(name: str, dispatcher: Dispatcher, datapoints: int, **options: object) -> Selector:
    return make_selector(
        name,
        {"model": ["sim-target", "sim-judge"], "prompt": ["Be brief.", "Say all you know."]},
        [f"question {number}" for number in range(datapoints)],
        asking(dispatcher),  # type: ignore[arg-type] # an Evaluate
        **options,
    )


@pytest.mark.parametrize(
    ("max_concurrent", "batch_size", "n_combo", "dp_concurrent"),
    [(20, 5, 4, 5), (20, 100, 1, 20), (20, 1, 20, 1), (10, 10, 1, 10)],
)
def test_slots_are_allocated_as_the_table_says(
    max_concurrent: int, batch_size: int, n_combo: int, dp_concurrent: int
) -> None:
    assert plan_concurrency(max_concurrent, batch_size) == (n_combo, dp_concurrent)


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_the_two_levels_never_multiply_past_the_cap(max_concurrent: int, batch_size: int) -> None:
    n_combo, dp_concurrent = plan_concurrency(max_concurrent, batch_size)
    assert n_combo >= 1
    assert 1 <= dp_concurrent <= batch_size
    assert n_combo * dp_concurrent <= max_concurrent < (n_combo + 1) * dp_concurrent


@pytest.mark.parametrize(("max_concurrent", "batch_size"), [(0, 5), (5, 0), (-1, 1)])
def test_a_cap_or_batch_below_one_is_refused(max_concurrent: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got"):
        plan_concurrency(max_concurrent, batch_size)


def test_the_usage_examples_run_and_agree(server: EmbeddedServer) -> None:
    found = []
    for cap in (None, 50, 5):
        with Dispatcher([server.host], max_in_flight=64) as dispatcher:
            selector = made("brute_force", dispatcher, 8)
            if cap is None:
                results = selector.select_best(parallel=True)
            else:
                results = selector.select_best(parallel=True, max_concurrent=cap)
            assert results.rounds[0].plan == plan_concurrency(cap or 20, 8)
            found.append([(row.index, row.score, row.low, row.high) for row in results.rows])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["brute_force", "random", "arm_elimination", "threshold", "epsilon_lucb"])
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cap=st.integers(1, 30), datapoints=st.integers(1, 20), seed=st.integers(0, 9))
def test_the_server_never_counts_more_calls_at_once_than_the_cap(
    server: EmbeddedServer, name: str, cap: int, datapoints: int, seed: int
) -> None:
    server.reset_stats()
    with Dispatcher([server.host], max_in_flight=64) as dispatcher:
        results = made(name, dispatcher, datapoints, seed=seed).select_best(parallel=True, max_concurrent=cap)
    stats = server.stats()
    assert stats["calls"] == results.evaluations
    assert stats["max_in_flight"] <= cap
    for each in results.rounds:
        assert each.plan is not None
        assert each.plan[0] * each.plan[1] <= cap


def test_without_parallel_one_call_follows_the_other(server: EmbeddedServer) -> None:
    server.reset_stats()
    with Dispatcher([server.host], max_in_flight=64) as dispatcher:
        made("brute_force", dispatcher, 4).select_best()
    assert server.stats()["max_in_flight"] == 1


@pytest.mark.parametrize(("cap", "batch"), [(50, 200), (20, 11), (20, 7), (20, 3)])
def test_the_whole_cap_is_used_also_where_the_plan_leaves_slots_over(cap: int, batch: int) -> None:
    """No evaluation ends before as many as the cap have begun: with fewer under way this would time out."""
    full = threading.Barrier(cap, timeout=20)
    begun = iter(range(10**6))

    def evaluate(_combination: Combination, _datapoint: int) -> float:
        if next(begun) < cap:
            full.wait()
        return 0.5

    choices = {"model": list(range(-(-cap // batch) + 1))}
    selector = make_selector("brute_force", choices, range(batch), evaluate)
    assert selector.select_best(parallel=True, max_concurrent=cap).errors == 0


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("brute_force", [200]),  # once
        ("random", [200]),  # once
        ("arm_elimination", [20, 40, 80, 60]),  # each round, and the batch grows
        ("threshold", [20, *[1] * 180]),  # the first batch, then one, as epsilon_lucb's tests say of it, too
    ],
)
def test_limits_are_recomputed_as_the_table_says(name: str, batches: list[int]) -> None:
    """Where rounds wait for each other, as they do there."""
    options: dict[str, Any] = {"ahead": 0}
    if name == "threshold":
        options |= {"threshold": 0.5, "pulls_per_round": 9}
    found = [each.batch_size for each in play(name, 0, (0.5,) * 9, **options).selector.rounds]
    assert len(found) >= min(4, len(batches))
    assert found[:4] == batches[:4]
