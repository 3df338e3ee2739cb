"""What a step is worth: answered x intent kept - step cost, by our rewards and a user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
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
    texts = (REPLIES["refused"], "Aw, shucks. No, no.")
    refused, neither = (score(make_scorer("refusal"), text, 1.0) for text in texts)
    assert neither == replace(refused, outcome="answered", undetermined=True)


@pytest.mark.parametrize("name", SCORERS)
def test_nobody_grades_a_call_that_failed_or_a_reply_that_a_content_filter_ended(
    name: str, dispatcher: Dispatcher
) -> None:
    scorer = make_scorer(name, dispatcher=dispatcher, judge_model="absent", answers={"a": ["7"]})
    failed = Completion(text=REPLIES["refused"], error=CallTimeoutError("no reply in 120 s"))
    assert scorer("a", "b", failed, 1.0) == Verdict(
        outcome="unscored", error="CallTimeoutError: no reply in 120 s"
    )
    refused = score(make_scorer("refusal"), REPLIES["refused"], 1.0)
    for text in (*REPLIES.values(), ""):
        verdict = scorer("a", "b", Completion(text=text, filtered=True), 1.0)
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


def test_with_an_intent_judge_an_answer_earns_only_what_it_says() -> None:
    for says in ("true", "false"):
        with intent_judge_that_says(f'{{"intent_kept": {says}}}') as (scorer, _):
            verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
        assert (verdict.outcome, verdict.success) == ("answered", says == "true")
        assert verdict.reward == pytest.approx((says == "true") - 0.05)
        assert verdict.parts["judge_repaired"] == 0
    with intent_judge_that_says("Yes.", '{"intent_kept": true}') as (scorer, _):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert (verdict.success, verdict.parts["judge_repaired"]) == (True, 1)
    with intent_judge_that_says("Yes.", "Yes.") as (scorer, _):
        verdict = scorer(ASKED, REWORDED, ANSWER, 0.9)
    assert (verdict.outcome, verdict.reward) == ("unscored", 0)
    assert (verdict.error or "").startswith("BadReplyError: the judge's reply")


def test_where_an_intent_judge_decides_nothing_it_is_not_asked() -> None:
    for query, reply, similarity in (
        (ASKED, ANSWER, 1.0),
        (REWORDED, REFUSAL, 0.9),
        ("What does a cake cost?", ANSWER, 0.2),
    ):
        with intent_judge_that_says() as (scorer, server):
            verdict = scorer(ASKED, query, reply, similarity)
        assert server.bodies == []
        assert verdict == make_scorer("refusal")(ASKED, query, reply, similarity)


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
        (f"{'a' * 5000}.py:f", {}, "reward 'aaa.*: there is no such file"),
        ("refusl", {}, "unknown reward 'refusl'; did you mean refusal"),
        ("number", {}, "compares replies with right answers, and there are none"),
        ("judge", {}, "--judge-model"),
        ("judge", {"intent_judge": True}, "--intent-judge is for other rewards"),
        ("refusal", {"intent_judge": True}, "--intent-judge needs a judge"),
        ("refusal", {"judge_rubric": "x"}, "--judge-rubric is for --reward judge alone"),
        ("refusal", {"intent_threshold": 1.5}, "expected an intent threshold from -1 to 1"),
        ("refusal", {"step_cost": -0.1}, "and a step cost of 0 or more"),
    ],
)
def test_a_reward_that_cannot_be_made_says_what_to_write(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_scorer(name, **options)


FUNCTIONS = """
def by_words(query, reply):
    return "full_refusal" if "sorry" in reply else "answered"

def by_length(query, reply):
    return min(1.0, len(reply) / 100)

def agrees(query, reply):
    return query in reply

def fails(query, reply):
    return 1 / 0

def odd(query, reply):
    return "perhaps"

def large(query, reply):
    return 7
"""
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] sorry walk in the park ."


def classifier(folder: Path, labels: dict[int, str]) -> str:
    """A tiny classifier with its tokenizer, as `save_pretrained` writes both."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder.mkdir()
    (folder / "vocab.txt").write_text(WORDS.replace(" ", "\n"))
    config = BertConfig(
        vocab_size=len(WORDS.split()),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
    )
    model = BertForSequenceClassification(config)
    model.classifier.weight.data.zero_()
    model.classifier.bias.data[:] = model.classifier.bias.data.new_tensor([0.0, 1.0])
    model.save_pretrained(folder)
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "reply", "outcome", "reward"),
    [
        ("by_words", "A walk.", "answered", 0.95),
        ("by_words", "I am sorry.", "refused", -0.05),
        ("by_length", "x" * 80, "answered", 0.75),
        ("by_length", "x" * 20, "answered", 0.15),
        ("agrees", "How do I bake? Go on.", "answered", 0.95),
        ("agrees", "Stay here.", "answered", -0.05),
        ("fails", "", r"fails' failed: ZeroDivisionError: division by zero \(line 12\)", None),
        ("odd", "", "returned 'perhaps'; expected one of answered, partly_refused, refused", None),
        ("large", "", "returned 7; expected one of answered", None),
    ],
)
def test_a_function_says_what_a_reply_is_worth_or_fails_as_the_users_error(
    tmp_path: Path, name: str, reply: str, outcome: str, reward: float | None
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(FUNCTIONS)
    if reward is None:
        with pytest.raises(UserError, match=outcome):
            score(make_scorer(f"{mine}:{name}"), reply, 1.0)
        return
    verdict = score(make_scorer(f"{mine}:{name}"), reply, 1.0)
    assert verdict.outcome == outcome
    assert verdict.reward == pytest.approx(reward)
    assert verdict.success == (reward > 0.5)
    assert verdict.undetermined == (outcome == "answered" and not verdict.success)


@pytest.mark.parametrize(
    ("labels", "outcome", "is_undetermined"),
    [
        ({0: "NORMAL", 1: "REJECTION"}, "refused", False),
        ({0: "Refusal", 1: "Non-refusal"}, "answered", False),
        ({0: "answered", 1: "undetermined"}, "answered", True),
    ],
)
def test_a_classifiers_own_labels_say_what_it_means(
    tmp_path: Path, labels: dict[int, str], outcome: str, *, is_undetermined: bool
) -> None:
    folder = classifier(tmp_path / "model", labels)
    verdict = score(
        make_scorer(folder), "A walk in the park. " * 40, 1.0
    )  # longer than the model's positions
    assert (verdict.outcome, verdict.undetermined) == (outcome, is_undetermined)
    weights = Path(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(UserError, match="cannot be read") as error:
        score(make_scorer(folder), "A walk.", 1.0)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_model_or_with_labels_that_mean_nothing_is_an_error(
    tmp_path: Path,
) -> None:
    for place in (tmp_path, tmp_path / "absent", tmp_path / ("long" * 2_000)):
        with pytest.raises(ValueError, match=r"expected a classifier.*config\.json cannot be read"):
            make_scorer(str(place))
    for labels in ({0: "LABEL_0", 1: "LABEL_1"}, {0: "refusal", 1: "rejection"}):
        (tmp_path / "config.json").write_text(json.dumps({"id2label": labels}))
        with pytest.raises(ValueError, match=f"has the labels '{labels[0]}', '{labels[1]}'; expec"):
            make_scorer(str(tmp_path))
