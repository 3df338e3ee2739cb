"""Models in memory: loads, swaps, keep-alive and the queue for loading, as Ollama's scheduler has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import BUSY, RunnerOptions
from simulator.keep_alive import FOR_EVER_S
from tests.simulator.virtual import Scene

LOAD_S = 4.0 / 3.0  # 4 GB at the profile's 3 GB/s
SWAP_S = 1.0 + LOAD_S
ONE_FITS = {"memory_gb": 6.0}


def rtx(**limits: Any) -> Scene:  # noqa: ANN401 - the fields of Limits
    return Scene("rtx3090", **limits)


def models(scene: Scene) -> set[str]:
    return {each.model for each in scene.server.loaded_models()}


def counts(scene: Scene) -> tuple[int, int]:
    return scene.counters.loads, scene.counters.swaps


def test_a_cold_call_waits_for_its_model_and_the_next_does_not() -> None:
    scene = rtx()
    scene.call(reply_tokens=10)
    scene.call(at_s=60, reply_tokens=10)
    cold, warm = scene.run(100)
    assert [cold.load_s, warm.load_s] == pytest.approx([LOAD_S, 0])
    assert counts(scene) == (1, 0)


def test_models_that_fit_stay_beside_each_other() -> None:
    scene = rtx(memory_gb=8.0)
    for k in range(20):
        scene.call("ab"[k % 2], at_s=10.0 * k, reply_tokens=5)
    scene.run(250)
    assert models(scene) == {"a", "b"}
    assert counts(scene) == (2, 0)


def test_alternating_calls_of_two_models_of_which_one_fits_swap_every_time() -> None:
    scene = rtx(**ONE_FITS)
    for k in range(20):
        scene.call("ab"[k % 2], at_s=10.0 * k, reply_tokens=5)
    turns = scene.run(250)
    assert [turn.load_s for turn in turns] == pytest.approx([LOAD_S, *[SWAP_S] * 19])
    assert counts(scene) == (20, 19)


def test_a_backlog_of_two_models_is_served_in_order_one_swap_after_another() -> None:
    scene = rtx(**ONE_FITS)
    for k in range(6):
        scene.call("ab"[k % 2], reply_tokens=100)
    turns = scene.run(250)
    for before, after in pairwise(turns):
        assert after.started_s == pytest.approx(before.due_s + SWAP_S)
    assert scene.counters.snapshot()["load_wait_s"] == pytest.approx(sum(turn.load_s for turn in turns))


def test_a_busy_victim_starves_the_other_model_until_it_pauses() -> None:
    scene = rtx(slots=1, **ONE_FITS)
    for k in range(50):  # each takes 200 steps, and the next is there before it ends
        scene.call("busy", at_s=k * 1.0, reply_tokens=200)
    scene.call("starved", at_s=5.5, reply_tokens=5)
    busy = [turn for turn in scene.run(400) if turn.call.model == "busy"]
    (starved,) = [turn for turn in scene.turns if turn.call.model == "starved"]
    assert starved.loaded_s == pytest.approx(max(turn.due_s for turn in busy) + SWAP_S)
    assert starved.load_s > 45
    assert counts(scene) == (2, 1)


def test_everybody_behind_the_first_in_the_queue_waits_with_it_and_loaded_models_go_on() -> None:
    scene = rtx(max_loaded_models=2)
    scene.call("a", reply_tokens=1000, keep_alive_s=10)
    scene.call("b", at_s=5, reply_tokens=1000, keep_alive_s=20)
    scene.call("c", at_s=7, reply_tokens=1)  # must wait for a, the victim
    scene.call("b", at_s=7.1, reply_tokens=1)  # b is loaded: goes on
    scene.call("b", at_s=7.2, reply_tokens=1, options=RunnerOptions(num_ctx=8192))  # other options: waits
    a, b, c, joined, reloading = scene.run(300)
    assert c.loaded_s == pytest.approx(a.due_s + SWAP_S)
    assert joined.load_s == 0
    assert reloading.loaded_s == pytest.approx(max(c.loaded_s, b.due_s, joined.due_s) + SWAP_S)


@pytest.mark.parametrize(("keep_alive_s", "served"), [(30.0, True), (FOR_EVER_S, False)])
def test_a_victim_whose_callers_say_keep_alive_is_not_unloaded_when_it_falls_idle(
    keep_alive_s: float, *, served: bool
) -> None:
    scene = rtx(slots=2, **ONE_FITS)
    scene.call("victim", reply_tokens=1000)
    scene.call("starved", at_s=2, reply_tokens=1)
    scene.call("victim", at_s=3, reply_tokens=1, keep_alive_s=keep_alive_s)
    _, starved, _ = scene.run(1e6)
    if served:
        assert starved.loaded_s == pytest.approx(scene.turns[0].due_s + keep_alive_s + SWAP_S)
    else:
        assert scene.server.waiting()["waiting_for_load"] == 1


def test_the_victim_is_idle_if_one_is_and_the_soonest_to_go() -> None:
    scene = rtx()
    for place, (model, keep_alive_s) in enumerate([("busy", 1.0), ("long", 900.0), ("short", 500.0)]):
        tokens = 100_000 if model == "busy" else 1
        scene.call(model, at_s=5.0 * place, reply_tokens=tokens, keep_alive_s=keep_alive_s)
    scene.call("new", at_s=30, reply_tokens=1)
    scene.run(60)
    assert models(scene) == {"busy", "long", "new"}


@pytest.mark.parametrize(
    "options",
    [
        {"num_ctx": 8192},
        {"num_batch": 64},
        {"num_gpu": 20},
        {"main_gpu": 1},
        {"use_mmap": False},
        {"num_thread": 8},
    ],
)
def test_another_runner_option_loads_the_model_anew(options: dict[str, int]) -> None:
    scene = rtx()
    scene.call(reply_tokens=1)
    scene.call(at_s=10, reply_tokens=1, options=RunnerOptions.of(options))
    scene.call(at_s=20, reply_tokens=1, options=RunnerOptions.of(options))
    assert [turn.load_s for turn in scene.run(30)] == pytest.approx([LOAD_S, SWAP_S, 0])


@pytest.mark.parametrize(
    "options",
    [{}, {"num_ctx": 4096, "num_batch": 512.0}, {"temperature": 0.5, "seed": 3}, {"num_gpu": None}],
)
def test_the_defaults_spelt_out_and_other_options_load_nothing_anew(options: dict[str, object]) -> None:
    assert RunnerOptions.of(options) == RunnerOptions()


def test_who_leaves_the_gpus_open_takes_the_model_as_it_is() -> None:
    loaded = RunnerOptions(num_gpu=20)
    assert RunnerOptions().served_by(loaded)
    assert not RunnerOptions(num_gpu=10).served_by(loaded)
    assert not RunnerOptions(num_ctx=10).served_by(loaded)


@pytest.mark.parametrize(("keep_alive_s", "stays_s"), [(None, 300), (7.0, 7), (0.0, 0), (FOR_EVER_S, 1e5)])
def test_a_model_is_unloaded_its_keep_alive_after_its_last_use(
    keep_alive_s: float | None, stays_s: float
) -> None:
    scene = rtx()
    scene.call(reply_tokens=1, keep_alive_s=keep_alive_s)
    scene.call(at_s=3, reply_tokens=1, keep_alive_s=keep_alive_s)
    scene.run(5)
    idle_s = scene.turns[-1].due_s
    assert models(scene) == ({"m"} if stays_s else set())
    scene.run(idle_s + stays_s - 1e-3)
    assert models(scene) == ({"m"} if stays_s else set())
    scene.run(idle_s + stays_s + 1e-3)
    assert models(scene) == ({"m"} if keep_alive_s == FOR_EVER_S else set())


def test_a_use_in_time_keeps_a_model() -> None:
    scene = rtx(keep_alive_s=10)
    for k in range(20):
        scene.call(at_s=8.0 * k, reply_tokens=1)
    scene.run(160)
    assert counts(scene) == (1, 0)


def test_a_model_asked_to_go_goes_when_its_last_call_ends() -> None:
    scene = rtx()
    scene.call(reply_tokens=1000)
    scene.agenda.at(2, lambda: scene.server.expire("m"))
    scene.run(5)
    assert models(scene) == {"m"}
    (turn,) = scene.run(8)
    assert turn.due_s < 8
    assert models(scene) == set()


def test_of_six_hundred_cold_calls_at_once_the_513th_and_all_after_it_are_refused() -> None:
    scene = Scene("rtx4090", slots=16)
    for _ in range(600):
        scene.call(reply_tokens=3)
    turns = scene.run(200)
    assert len(turns) == 512
    assert all(turn.due_s > 0 for turn in turns)
    assert [(error.status, error.text) for error in scene.refused] == [(503, BUSY)] * 88
    assert BUSY == "server busy, please try again.  maximum pending requests exceeded"


def test_a_loaded_model_takes_any_number_of_calls() -> None:
    scene = Scene("rtx4090", max_queue=1)
    scene.call(reply_tokens=1)
    for _ in range(2000):
        scene.call(at_s=10, reply_tokens=1)
    assert len(scene.run(200)) == 2001
    assert scene.refused == []


@pytest.mark.parametrize(("max_queue", "let_in"), [(0, 1), (1, 1), (2, 2), (7, 7)])
def test_the_queue_for_loading_is_as_long_as_is_set_and_takes_at_least_one(
    max_queue: int, let_in: int
) -> None:
    scene = rtx(max_queue=max_queue)
    for _ in range(9):
        scene.call(reply_tokens=1)
    assert len(scene.run(10)) == let_in


def test_whoever_leaves_while_its_model_loads_or_it_waits_to_frees_its_place_at_once() -> None:
    scene = rtx(max_queue=3, **ONE_FITS)
    for model in ("a", "b", "a"):
        scene.call(model, reply_tokens=1)
    scene.call("b", at_s=0.1)  # the queue is full
    scene.leave(1, at_s=0.2)
    scene.call("a", at_s=0.3, reply_tokens=1)  # it has room again
    scene.leave(0, at_s=0.5)  # the load was for this one: it begins anew for the next
    first, _, second, third = scene.run(20)
    assert len(scene.refused) == 1
    assert first.loaded_s != first.loaded_s
    assert second.loaded_s == third.loaded_s == pytest.approx(0.5 + LOAD_S)
    assert counts(scene) == (1, 0)


def test_whoever_leaves_while_it_waits_for_a_victim_lets_the_next_go_on() -> None:
    scene = rtx(slots=1, **ONE_FITS)
    scene.call("a", reply_tokens=10_000)
    scene.call("b", at_s=2, reply_tokens=1)
    scene.call("a", at_s=3, reply_tokens=1, options=RunnerOptions(num_gpu=-2))  # any GPUs: served by a
    scene.leave(1, at_s=5)
    scene.leave(0, at_s=6)
    _, _, last = scene.run(20)
    assert last.started_s == 6
    assert models(scene) == set()  # a was marked to go as soon as it is idle
    assert counts(scene) == (1, 0)


TRAFFIC = st.lists(
    st.tuples(
        st.floats(0, 30),  # comes
        st.sampled_from("abcd"),
        st.integers(0, 400),  # tokens
        st.sampled_from([4096, 8192]),
        st.none() | st.floats(0, 10),  # leaves so much later
    ),
    max_size=25,
)


@given(
    calls=TRAFFIC,
    slots=st.integers(1, 3),
    max_loaded_models=st.integers(1, 4),
    memory_gb=st.sampled_from([4.0, 9.0, 1e9]),
    keep_alive_s=st.sampled_from([0.0, 2.0, 300.0]),
)
def test_whoever_comes_and_goes_all_that_stay_are_served_and_there_is_never_more_than_room_for(
    calls: list[tuple[float, str, int, int, float | None]],
    slots: int,
    max_loaded_models: int,
    memory_gb: float,
    keep_alive_s: float,
) -> None:
    scene = rtx(
        slots=slots, max_loaded_models=max_loaded_models, memory_gb=memory_gb, keep_alive_s=keep_alive_s
    )
    calls = sorted(calls, key=lambda call: call[0])
    for place, (at_s, model, tokens, context, leaves_s) in enumerate(calls):
        scene.call(model, at_s=at_s, reply_tokens=tokens, options=RunnerOptions(num_ctx=context))
        if leaves_s is not None:
            scene.leave(place, at_s=at_s + leaves_s)
    while (next_s := scene.agenda.next_s()) < 1e6:
        scene.run(next_s)
        loaded = models(scene)
        assert len(loaded) <= min(max_loaded_models, memory_gb // 4)
    for turn, (_, _, _, _, leaves_s) in zip(scene.turns, calls, strict=True):
        assert turn.due_s >= turn.arrived_s or leaves_s is not None
    assert scene.server.waiting() == {"waiting_for_load": 0, "waiting_for_slot": 0}
    assert scene.server.loaded_models() == []


def test_a_model_larger_than_the_memory_is_an_error() -> None:
    scene = rtx(memory_gb=3.0)
    scene.call()
    scene.run(1)
    (error,) = scene.refused
    assert error.status == 500
    assert error.text == "model requires more system memory (3.7 GiB) than is available (2.8 GiB)"
