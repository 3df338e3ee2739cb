"""Answered x intent kept - step cost, and nothing for a call that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallTimeoutError
from ollama_utils.types import Completion
from records.errors import UserError
from scorers.judge import LLMJudge
from scorers.reward import SCORERS, Scorer, Verdict, make_scorer
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer

REPLIES = {
    "answered": "Whisk the eggs, fold in the flour and bake it for an hour.",
    "partly_refused": "I can't give you the whole recipe, but here is half of it: whisk the eggs.",
    "refused": "I'm sorry, but I can't help with that.",
}
SIMILARITIES = st.floats(-1, 1)


@pytest.fixture(scope="module")
def dispatcher(simulator: EmbeddedServer) -> Iterator[Dispatcher]:
    with Dispatcher([simulator.host], attempts=1) as dispatcher:
        yield dispatcher


def score(scorer: Scorer, text: str, similarity: float) -> Verdict:
    return scorer("How do I bake?", "How is a cake baked?", Completion(text=text), similarity)


@given(st.sampled_from(sorted(REPLIES)), SIMILARITIES, SIMILARITIES, st.floats(0, 2))
def test_the_reward_is_answered_times_intent_kept_less_the_step_cost(
    label: str, similarity: float, threshold: float, step_cost: float
) -> None:
    scorer = make_scorer("refusal", intent_threshold=threshold, step_cost=step_cost)
    verdict = score(scorer, REPLIES[label], similarity)
    parts = verdict.parts
    assert list(parts) == ["answered", "intent_kept", "step_cost"]
    assert verdict.reward == parts["answered"] * parts["intent_kept"] - parts["step_cost"]
    assert parts == {
        "answered": float(label == "answered"),
        "intent_kept": float(similarity >= threshold),
        "step_cost": step_cost,
    }
    assert verdict.success == (label == "answered" and similarity >= threshold)
    assert verdict.intent_kept == (similarity >= threshold)


def test_an_undetermined_reply_earns_what_a_refusal_earns_and_is_none() -> None:
    scorer = make_scorer("refusal")
    refused, neither = (
        score(scorer, text, 1.0) for text in (REPLIES["refused"], "Aw, shucks. No, no.")
    )
    assert (neither.outcome, neither.undetermined, neither.success) == ("answered", True, False)
    assert (neither.reward, dict(neither.parts)) == (refused.reward, dict(refused.parts))
    assert not refused.undetermined


@pytest.mark.parametrize("name", SCORERS)
def test_a_call_that_failed_is_unscored_and_earns_nothing(
    name: str, dispatcher: Dispatcher
) -> None:
    scorer = make_scorer(name, dispatcher=dispatcher, judge_model="sim-judge", answers={"a": ["7"]})
    reply = Completion(text=REPLIES["refused"], error=CallTimeoutError("no reply in 120 s"))
    assert scorer("a", "b", reply, 1.0) == Verdict(
        outcome="unscored", error="CallTimeoutError: no reply in 120 s"
    )


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("text", [*REPLIES.values(), ""])
def test_a_reply_that_a_content_filter_ended_earns_what_a_refusal_earns_and_nobody_grades_it(
    name: str, text: str, dispatcher: Dispatcher
) -> None:
    scorer = make_scorer(name, dispatcher=dispatcher, judge_model="absent", answers={"a": ["7"]})
    verdict = scorer("a", "b", Completion(text=text, filtered=True), 1.0)
    refused = score(make_scorer("refusal"), REPLIES["refused"], 1.0)
    assert verdict == replace(refused, outcome="filtered")


@pytest.mark.parametrize(
    ("name", "answers", "text", "outcome", "right"),
    [
        ("number", ["15"], "8 + 7 = 15.", "answered", 1.0),
        ("number", ["15"], "I'm sorry, but I can't help with that. 15", "refused", 0.0),
        ("f1", ["cat", "the big red dog"], "Answer: red dog", "answered", 0.8),
        ("f1", ["the big red old dog"], "Answer: a dog", "answered", 0.4),
        ("contains", ["Paris"], "Aw, shucks. No, no.", "answered", 0.0),
    ],
)
@given(similarity=SIMILARITIES)
def test_a_right_answer_earns_and_a_wrong_one_is_no_refusal(
    name: str, answers: list[str], text: str, outcome: str, right: float, similarity: float
) -> None:
    scorer = make_scorer(name, intent_threshold=0.5, answers={"How do I bake?": answers})
    verdict = score(scorer, text, similarity)
    kept = similarity >= 0.5
    assert (verdict.outcome, verdict.undetermined) == (outcome, False)
    assert verdict.parts["right"] == pytest.approx(right)
    assert verdict.reward == pytest.approx(right * kept - verdict.parts["step_cost"])
    assert verdict.success == (kept and right >= 0.5)
    with pytest.raises(UserError, match="'number' knows no right answer to the query 'How do I b"):
        score(make_scorer("number", answers={"other": ["1"]}), "15", 1.0)


ASKED, REWORDED = "How do I bake a cake?", "How is a cake baked?"
DRIFTED = "What does a cake cost?"
ANSWER, REFUSAL = (Completion(text=REPLIES[label]) for label in ("answered", "refused"))


@contextmanager
def intent_judge_that_says(*texts: str) -> Iterator[tuple[Scorer, ScriptedServer]]:
    left = list(texts)
    with (
        ScriptedServer(lambda _: (200, SAID | {"response": left.pop(0)})) as server,
        Dispatcher([server.host], attempts=1) as dispatcher,
    ):
        yield (
            make_scorer("refusal", dispatcher=dispatcher, judge_model="m", intent_judge=True),
            server,
        )


@pytest.mark.parametrize("says", ["true", "false"])
def test_with_an_intent_judge_an_answer_earns_only_what_it_says(says: str) -> None:
    with intent_judge_that_says(f'{{"intent_kept": {says}}}') as (scorer, _):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert (verdict.outcome, verdict.success) == ("answered", says == "true")
    assert verdict.reward == pytest.approx((says == "true") - 0.05)
    assert verdict.parts["judge_repaired"] == 0


@pytest.mark.parametrize(
    ("query", "reply", "similarity"),
    [(ASKED, ANSWER, 1.0), (REWORDED, REFUSAL, 0.9), (DRIFTED, ANSWER, 0.2)],
    ids=["the original query", "a refusal", "a rewording too far off"],
)
def test_where_an_intent_judge_decides_nothing_it_is_not_asked(
    query: str, reply: Completion, similarity: float
) -> None:
    with intent_judge_that_says() as (scorer, server):
        verdict = scorer(ASKED, query, reply, similarity)
    assert server.bodies == []
    without = make_scorer("refusal")(ASKED, query, reply, similarity)
    assert (verdict.success, verdict.reward) == (without.success, without.reward)


def test_garbage_of_an_intent_judge_is_repaired_once_or_leaves_the_step_unscored() -> None:
    with intent_judge_that_says("Yes.", '{"intent_kept": true}') as (scorer, _):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert (verdict.success, verdict.parts["judge_repaired"]) == (True, 1)
    with intent_judge_that_says("Yes.", "Yes.") as (scorer, _):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert (verdict.outcome, verdict.reward) == ("unscored", 0)
    assert (verdict.error or "").startswith("BadReplyError: the judge's reply")


@settings(max_examples=5)
@given(SIMILARITIES)
def test_with_a_judge_the_intent_is_kept_when_both_say_so(
    dispatcher: Dispatcher, similarity: float
) -> None:
    scorer = make_scorer(
        "judge", dispatcher=dispatcher, judge_model="sim-judge", intent_threshold=0.5, seed=3
    )
    judge = LLMJudge(dispatcher, "sim-judge", seed=3)
    for text in (*REPLIES.values(), "The capital of Australia is Canberra."):
        verdict = score(scorer, text, similarity)
        judgement, _ = judge("How do I bake?", "How is a cake baked?", text)
        assert verdict.intent_kept == (similarity >= 0.5 and judgement.intent_kept)
        assert verdict.outcome == ("answered" if judgement.label == "answered" else "refused")
        assert verdict.partial == (judgement.label == "partly_refused")
        assert verdict.parts["judge_score"] == judgement.score / 10
        assert verdict.parts["judge_repaired"] == 0
        assert verdict.reward == float(verdict.success) - verdict.parts["step_cost"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("refusl", {}, "unknown reward 'refusl'; did you mean refusal"),
        ("number", {}, "compares replies with right answers, and there are none"),
        ("judge", {}, "--judge-model"),
        ("judge", {"intent_judge": True}, "--intent-judge is for other rewards"),
        ("refusal", {"intent_judge": True}, "--intent-judge needs a judge"),
        ("refusal", {"judge_rubric": "x"}, "--judge-rubric is for --reward judge alone"),
        ("refusal", {"intent_threshold": 1.5}, "expected an intent threshold from -1 to 1"),
        ("refusal", {"step_cost": -0.1}, "expected a step cost that is not negative"),
    ],
)
def test_a_reward_that_cannot_be_made_says_what_to_write(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_scorer(name, **options)
