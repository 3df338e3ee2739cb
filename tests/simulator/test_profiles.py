"""The profiles reproduce what was published of them, in virtual time and so to the last digit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import RunnerOptions, Turn
from simulator.profiles import PROFILES, Pace
from tests.simulator.virtual import Scene

# Tokens a second at n slots, as the benchmarks print them (rounded), and tokens of context in each slot.
PUBLISHED: dict[str, tuple[dict[int, float], int]] = {
    "gb10": ({1: 29, 2: 54, 4: 104, 8: 196, 16: 335, 32: 593}, 512),
    "m2-ultra": ({1: 79, 2: 136, 4: 225}, 512),
    "rtx3090": ({1: 157, 2: 280, 4: 470, 8: 584}, 1),
    "rtx4090": ({1: 146, 2: 279, 4: 552, 16: 1930}, 1),
    "cpu16": ({1: 10.6, 2: 12.1, 3: 12.5, 4: 12.7}, 1),
}
CELLS = [(name, slots) for name, (table, _) in PUBLISHED.items() for slots in table]
# Rows of the same benchmarks with a longer context, which the context's share must give.
LONGER = [("gb10", 1, 8192, 27.50), ("gb10", 8, 4096, 163.10), ("gb10", 32, 8192, 268.20)]
LONGER += [("m2-ultra", 2, 4096, 124.48), ("m2-ultra", 4, 4096, 195.49)]
REPLY = 32


def tokens_per_s(name: str, slots: int, prompt_tokens: int) -> float:
    """As llama.cpp's batched-bench measures: all prompts read in one go, then all replies written."""
    scene = Scene(name, slots=slots)
    options = RunnerOptions(num_batch=slots * prompt_tokens)
    for _ in range(slots):
        scene.call(prompt_tokens=prompt_tokens, reply_tokens=REPLY, options=options)
    turns = scene.run()
    (began_s,), (ended_s,) = {turn.decoding_s for turn in turns}, {turn.due_s for turn in turns}
    return slots * REPLY / (ended_s - began_s)


@pytest.mark.parametrize(("name", "slots"), CELLS)
def test_every_published_cell_is_met_within_five_percent(name: str, slots: int) -> None:
    table, prompt_tokens = PUBLISHED[name]
    assert tokens_per_s(name, slots, prompt_tokens) == pytest.approx(table[slots], rel=0.05)


@pytest.mark.parametrize(("name", "slots", "prompt_tokens", "published"), LONGER)
def test_a_longer_context_slows_as_was_published(
    name: str, slots: int, prompt_tokens: int, published: float
) -> None:
    assert tokens_per_s(name, slots, prompt_tokens) == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize("name", PROFILES)
def test_more_slots_never_write_fewer_tokens_nor_faster_each(name: str) -> None:
    speeds = [tokens_per_s(name, slots, 1) for slots in range(1, 65)]
    assert speeds == sorted(speeds)
    for slots, (fewer, more) in enumerate(pairwise(speeds), start=1):
        assert more / (slots + 1) <= fewer / slots * (1 + 1e-9)


def test_a_cpu_gains_hardly_more_than_a_fifth_from_four_slots() -> None:
    assert tokens_per_s("cpu16", 4, 1) / tokens_per_s("cpu16", 1, 1) < 1.21


@pytest.mark.parametrize("name", PROFILES)
def test_a_call_alone_takes_its_load_its_prompt_and_its_steps(name: str) -> None:
    scene = Scene(name)
    scene.call(prompt_tokens=700, reply_tokens=40)
    (turn,) = scene.run()
    assert turn.load_s == pytest.approx(scene.pace.load_s(4.0))
    assert turn.prefill_s == pytest.approx(700 / PROFILES[name].prefill_tokens_per_s)
    assert turn.decode_s == pytest.approx(scene.pace.steps_s(40, 1, 700))


def test_on_the_ideal_profile_nobody_shares_a_load_a_step_or_a_chunk() -> None:
    scene = Scene("ideal", slots=64)
    for k in range(64):
        scene.call(f"m{k % 9}", at_s=k * 0.01, prompt_tokens=1000, reply_tokens=10 + k)
    for k, turn in enumerate(scene.run()):
        assert turn.started_s == turn.loaded_s == turn.arrived_s
        assert turn.prefill_s == pytest.approx(1e-3)
        assert turn.decode_s == pytest.approx((10 + k) * 4e-3)


@given(
    name=st.sampled_from(list(PROFILES)),
    steps=st.floats(0.01, 1e4),
    slots=st.integers(1, 64),
    context=st.floats(0, 1e6),
    scale=st.floats(1e-3, 100),
)
def test_steps_in_a_time_are_the_inverse_of_the_time_of_steps(
    name: str, steps: float, slots: int, context: float, scale: float
) -> None:
    pace = Pace(profile=PROFILES[name], time_scale=scale)
    assert pace.steps_in(pace.steps_s(steps, slots, context), slots, context) == pytest.approx(steps)


def stepwise(pace: Pace, lengths: list[int]) -> list[float]:
    """When replies of these lengths end that are begun together, one step after another."""
    now_s, ends = 0.0, [0.0] * len(lengths)
    for step in range(max(lengths)):
        writing = [place for place, length in enumerate(lengths) if length > step]
        now_s += pace.steps_s(1, len(writing), 0)
        ends = [now_s if place in writing else end for place, end in enumerate(ends)]
    return ends


@given(
    name=st.sampled_from(["rtx3090", "rtx4090", "cpu16"]),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
)
def test_calls_begun_together_end_as_if_every_step_were_played(name: str, lengths: list[int]) -> None:
    scene = Scene(name, slots=12)
    for length in lengths:
        scene.call(prompt_tokens=1, reply_tokens=length)
    ends = [turn.decode_s for turn in scene.run()]
    assert ends == pytest.approx(stepwise(scene.pace, lengths))


def test_a_chunk_stalls_its_models_decoders_and_one_step_comes_between_two_chunks() -> None:
    scene = Scene("rtx4090", slots=2)
    scene.call(prompt_tokens=1, reply_tokens=100)
    scene.call(at_s=1.2, prompt_tokens=1024, reply_tokens=1)
    long, late = scene.run()
    chunk_s, step_s = scene.pace.read_s(512), scene.pace.steps_s(1, 1, 0)
    assert late.prefill_s == pytest.approx(2 * chunk_s + step_s)
    both_s = scene.pace.steps_s(1, 2, 0)
    assert long.decode_s == pytest.approx(99 * step_s + both_s + 2 * chunk_s)


def test_prompts_that_come_together_are_read_in_common_chunks() -> None:
    scene = Scene("gb10", slots=4)
    for _ in range(4):
        scene.call(prompt_tokens=100, reply_tokens=5)
    assert [turn.prefill_s for turn in scene.run()] == pytest.approx([scene.pace.read_s(400)] * 4)


def test_two_models_get_half_of_the_machine_each_and_all_of_it_once_alone() -> None:
    scene = Scene("rtx3090")
    scene.call("a", keep_alive_s=1e9)
    scene.call("b", keep_alive_s=1e9)
    scene.run(100)
    scene.call("a", at_s=100, prompt_tokens=0, reply_tokens=100)
    scene.call("b", at_s=100, prompt_tokens=0, reply_tokens=50)
    long, short = scene.run()[2:]
    step_s = scene.pace.steps_s(1, 1, 0)
    assert short.decode_s == pytest.approx(100 * step_s)
    assert long.decode_s == pytest.approx(150 * step_s)


ARRIVALS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(0, 900), st.integers(0, 60), st.sampled_from("ab")),
    min_size=1,
    max_size=25,
)


def served_s(turns: list[Turn]) -> float:
    """Seconds in which at least one call was served."""
    marks = sorted([(turn.started_s, 1) for turn in turns] + [(turn.due_s, -1) for turn in turns])
    total_s = active = 0.0
    for (now_s, change), (next_s, _) in zip(marks, [*marks[1:], marks[-1]], strict=True):
        active += change
        total_s += (next_s - now_s) * (active > 0)
    return total_s


@given(name=st.sampled_from(list(PROFILES)), slots=st.integers(1, 6), calls=ARRIVALS)
def test_every_call_ends_and_none_is_faster_than_it_would_be_alone(
    name: str, slots: int, calls: list[tuple[float, int, int, str]]
) -> None:
    scene = Scene(name, slots=slots)
    for at_s, prompt_tokens, reply_tokens, model in calls:
        scene.call(model, at_s=at_s, prompt_tokens=prompt_tokens, reply_tokens=reply_tokens)
    turns = scene.run()
    for turn in turns:
        alone_s = scene.pace.read_s(turn.call.prompt_tokens)
        assert turn.prefill_s >= alone_s * (1 - 1e-9)
        written_s = scene.pace.steps_s(turn.call.reply_tokens, 1, turn.call.prompt_tokens)
        assert turn.decode_s >= written_s * (1 - 1e-9)
    read_s = scene.pace.read_s(sum(turn.call.prompt_tokens for turn in turns))
    if PROFILES[name].shared:
        assert served_s(turns) >= read_s * (1 - 1e-9)
    assert scene.counters.snapshot()["decode_tokens"] == sum(reply for _, _, reply, _ in calls)


def test_sixty_four_slots_are_served_without_looking_at_every_token() -> None:
    scene = Scene("rtx4090", slots=64, keep_alive_s=1.0)
    for k in range(640):
        scene.call(at_s=k * 0.01, prompt_tokens=50, reply_tokens=200 + k % 7)
    assert scene.events() < 640 * 5


@pytest.mark.parametrize("name", PROFILES)
def test_a_time_scale_multiplies_every_duration_and_zero_leaves_none(name: str) -> None:
    def totals(scale: float) -> list[float]:
        scene = Scene(name, time_scale=scale, slots=2, max_loaded_models=1)
        for k in range(12):
            scene.call("ab"[k % 2], prompt_tokens=100 * k, reply_tokens=10 + k)
        return [turn.total_s for turn in scene.run()]

    assert totals(3.0) == pytest.approx([3 * total_s for total_s in totals(1.0)])
    assert set(totals(0.0)) == {0.0}
