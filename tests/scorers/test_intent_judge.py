"""A judge of the intent: asked only where it decides something, and believed only in its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Completion
from scorers.intent import INTENT_SCHEMA, IntentJudge, intent_case
from scorers.reward import Scorer, make_scorer
from tests.fences import in_fences
from tests.ollama_utils.scripted import SAID, ScriptedServer

ASKED, REWORDED, DRIFTED = "How do I bake a cake?", "In what way is a cake baked?", "What does a cake cost?"
ANSWER = Completion(text="Whisk the eggs, fold in the flour and bake it for an hour.")
REFUSAL = Completion(text="I'm sorry, but I can't help with that.")


@contextmanager
def scorer_whose_judge_says(*texts: str) -> Iterator[tuple[Scorer, ScriptedServer]]:
    left = list(texts)
    with (
        ScriptedServer(lambda _: (200, SAID | {"response": left.pop(0)})) as server,
        Dispatcher([server.host], attempts=1) as dispatcher,
    ):
        scorer = make_scorer(
            "refusal",
            dispatcher=dispatcher,
            judge_model="m",
            seed=5,
            judge_options={"num_ctx": 4096},
            intent_judge=True,
        )
        yield scorer, server


def kept(*, intent_kept: object) -> str:
    return json.dumps({"intent_kept": intent_kept})


@pytest.mark.parametrize("says", [True, False])
def test_an_answer_to_a_rewording_earns_only_what_the_judge_says_it_does(*, says: bool) -> None:
    with scorer_whose_judge_says(kept(intent_kept=says)) as (scorer, server):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert (verdict.outcome, verdict.intent_kept, verdict.success) == ("answered", says, says)
    assert verdict.reward == pytest.approx(says - 0.05)
    assert verdict.parts["judge_repaired"] == 0
    (body,) = server.bodies
    assert body["prompt"] == intent_case(ASKED, REWORDED).prompt
    assert body["format"] == INTENT_SCHEMA
    assert body["options"] == {"temperature": 0, "seed": 5, "num_ctx": 4096, "num_predict": 256}


@pytest.mark.parametrize(
    ("query", "reply", "similarity"),
    [(ASKED, ANSWER, 1.0), (REWORDED, REFUSAL, 0.9), (DRIFTED, ANSWER, 0.2)],
    ids=["the original query", "a refusal", "a rewording too far off"],
)
def test_where_the_judge_decides_nothing_it_is_not_asked(
    query: str, reply: Completion, similarity: float
) -> None:
    with scorer_whose_judge_says() as (scorer, server):
        verdict = scorer(ASKED, query, reply, similarity)
    assert server.bodies == []
    without = make_scorer("refusal")(ASKED, query, reply, similarity)
    assert (verdict.success, verdict.reward) == (without.success, without.reward)


def test_a_faulty_reply_is_repaired_and_counted() -> None:
    with scorer_whose_judge_says("Yes, it does.", kept(intent_kept=True)) as (scorer, server):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert verdict.success
    assert verdict.parts["judge_repaired"] == 1
    assert "Give the JSON object alone, with the keys intent_kept:" in server.bodies[1]["prompt"]


@pytest.mark.parametrize("text", ["true", kept(intent_kept=1), kept(intent_kept="true"), "{}"])
def test_a_judge_that_cannot_be_read_leaves_the_step_unscored(text: str) -> None:
    with scorer_whose_judge_says(text, text) as (scorer, _):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert verdict.outcome == "unscored"
    assert verdict.error is not None
    assert verdict.error.startswith("BadReplyError: the judge's reply")


@given(st.text(), st.text())
def test_a_prompt_holds_one_question_and_one_rewording(original: str, query: str) -> None:
    shown = {"question": f"{original}</question>", "rewording": f"{query}<question></rewording>"}
    assert in_fences(intent_case(*shown.values()).prompt) == [shown]


def test_the_simulated_judge_tells_a_drift_from_a_rewording(dispatcher: Dispatcher) -> None:
    judge = IntentJudge(dispatcher, "sim-judge")
    verbs = ("bake", "kill", "whip", "shoot", "hang", "boil", "blow up")
    things = ("a cake", "a door", "cream", "my plant", "a picture", "a balloon")
    asked = [f"How do I {verb} {thing}?" for verb in verbs for thing in things]
    same = [judge(query, f"Please tell me: {query}").values["intent_kept"] for query in asked]
    other = [judge(query, "Which harp has the most strings?").values["intent_kept"] for query in asked]
    assert sum(same) >= 0.9 * len(asked), "the simulated judge itself errs now and then"
    assert sum(other) <= 0.1 * len(asked)
