"""Candidates: one reply a system prompt, in order, the same one after another and at once."""

from __future__ import annotations

import pytest

from ollama_utils.dispatcher import Dispatcher
from search.candidates import generate_candidates, generate_candidates_parallel
from search.task import bundled_task
from tests.search.small_world import PROMPTS, SmallModel

QUESTION = bundled_task().problems[0].question
MODEL = "sim-solver"


def test_replies_come_in_the_order_of_the_prompts_and_parallel_ones_are_the_same(
    dispatcher: Dispatcher,
) -> None:
    prompts = [f"{prompt} Number {number}." for number in range(3) for prompt in PROMPTS]
    one_by_one = generate_candidates(dispatcher, QUESTION, prompts, model=MODEL)
    with Dispatcher(dispatcher.hosts) as other:
        at_once = generate_candidates_parallel(other, QUESTION, prompts, model=MODEL)
        assert other.max_in_flight_seen > 1
    assert at_once == one_by_one
    assert dispatcher.max_in_flight_seen == 1
    backwards = generate_candidates(dispatcher, QUESTION, prompts[::-1], model=MODEL)
    assert backwards == one_by_one[::-1]
    assert len(set(one_by_one)) > 1


def test_the_cap_on_workers_holds(dispatcher: Dispatcher) -> None:
    prompts = [f"Number {number}." for number in range(20)]
    generate_candidates_parallel(dispatcher, QUESTION, prompts, max_workers=3, model=MODEL)
    assert dispatcher.max_in_flight_seen <= 3


def test_a_failed_reply_is_none_in_its_place_and_spoils_no_other() -> None:
    model = SmallModel(broken="letter by letter")
    replies = generate_candidates_parallel(model, "What is 2 plus 2?", PROMPTS, model="any")
    assert [reply is None for reply in replies] == ["letter by letter" in prompt for prompt in PROMPTS]


def test_equal_prompts_draw_replies_of_their_own_unless_nothing_is_drawn() -> None:
    model = SmallModel()
    generate_candidates(model, "q: 1 plus 1", ["Same."] * 3, model="any", seed=5)
    assert len({call.options["seed"] for call in model.calls}) == 3
    cold = SmallModel()
    generate_candidates(cold, "q: 1 plus 1", ["Same."] * 3, temperature=0, model="any", seed=5)
    assert len({call.options["seed"] for call in cold.calls}) == 1


def test_a_call_says_all_that_was_asked_for() -> None:
    model = SmallModel()
    generate_candidates(
        model, "1 plus 1", ["P"], 64, 0.2, model="m", options={"num_ctx": 512}, think=False, seed=3
    )
    (call,) = model.calls
    assert (call.model, call.prompt, call.system, call.think) == ("m", "1 plus 1", "P", False)
    assert (call.options["num_predict"], call.options["temperature"], call.options["num_ctx"]) == (
        64,
        0.2,
        512,
    )
    assert call.repeatable


def test_no_prompts_no_candidates(dispatcher: Dispatcher) -> None:
    assert generate_candidates_parallel(dispatcher, QUESTION, [], model=MODEL) == []


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"model": ""}, "need a model"),
        ({"model": "m", "max_tokens": 0}, "max_tokens must be at least 1"),
        ({"model": "m", "temperature": float("nan")}, "temperature must be finite"),
        ({"model": "m", "max_workers": 0}, "max_workers must be at least 1"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(keywords: dict[str, float | str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        generate_candidates_parallel(SmallModel(), "1 plus 1", ["P"], **keywords)  # type: ignore[arg-type] # mixed
