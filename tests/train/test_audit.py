"""The audit of the training reward: what is drawn, what it comes to, and when the alarm is raised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from scorers.judge import LLMJudge
from tests.fences import in_fences
from tests.ollama_utils.scripted import SAID, ScriptedServer
from train.audit import AUDIT_RUBRIC, Audit

HELP, LECTURE, GIBBERISH = "Bake it for an hour.", "Baking is a serious matter.", "???"


def verdict(body: dict[str, Any]) -> tuple[int, Any]:
    """What a judge says who is never wrong; of gibberish he says nothing that can be read."""
    prompt = body["prompt"]
    if GIBBERISH in prompt:
        return 200, SAID | {"response": "Hm."}
    said = {"label": "answered" if HELP in prompt else "refused", "score": 5, "intent_kept": True}
    return 200, SAID | {"response": json.dumps(said)}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(verdict) as made:
        yield made


@pytest.fixture(scope="module")
def judge(server: ScriptedServer) -> Iterator[LLMJudge]:
    with Dispatcher([server.host], attempts=1) as dispatcher:
        yield LLMJudge(dispatcher, "m", rubric=AUDIT_RUBRIC)


def info(reply: str, *, success: bool, query: int = 0, adopted: bool = True) -> dict[str, Any]:
    return {
        "unscored": False,
        "outcome": "answered" if success else "refused",
        "original_query": f"How do I bake cake {query}?",
        "query_before": f"before {query}",
        "mutated_query": f"after {query}",
        "adopted": adopted,
        "reply": reply,
        "success": success,
    }


def audited(audit: Audit, infos: Sequence[dict[str, Any]], done_steps: int = 100) -> dict[str, float]:
    audit.begin()
    for each in infos:
        audit.see(each)
    return audit.close(done_steps)


def rollout(number: int, false: float, rows: int = 64) -> list[dict[str, Any]]:
    """Half of the steps are successes for the training reward, and this share of these is none."""
    return [
        info(
            LECTURE if k % 2 or (k // 2 + number) % 10 < 10 * false else HELP,
            success=not k % 2,
            query=(k + 7 * number) % 40,
        )
        for k in range(rows)
    ]


def test_the_audit_is_weighted_back_to_the_rollouts_mix(judge: LLMJudge) -> None:
    """10 successes, all false, among 100 steps, of which the others are what they seem."""
    steps = [info(LECTURE, success=k < 10, query=k) for k in range(100)]
    metrics = audited(Audit(judge, sample=16, seed=1), steps)
    assert metrics["audit/training_success_rate"] == pytest.approx(0.1)
    assert metrics["audit/success_rate"] == 0
    assert metrics["audit/gap"] == pytest.approx(0.1)
    assert metrics["audit/agreement"] == pytest.approx(0.9)
    assert metrics["audit/unscored"] == 0


@given(successes=st.integers(0, 20), others=st.integers(0, 20), sample=st.integers(2, 24))
def test_a_fixed_number_is_drawn_evenly_as_far_as_there_are_steps(
    judge: LLMJudge, successes: int, others: int, sample: int
) -> None:
    audit = Audit(judge, sample=sample, seed=1)
    audit.begin()
    for k in range(successes + others):
        audit.see(info(HELP, success=k < successes, query=k))
    drawn = audit.drawn()
    assert sum(map(len, drawn)) == min(sample, successes + others)
    assert len({step.original for group in drawn for step in group}) == sum(map(len, drawn))
    assert [all(s.success for s in drawn[0]), any(s.success for s in drawn[1])] == [True, False]
    if min(successes, others) >= sample - sample // 2:
        assert abs(len(drawn[0]) - len(drawn[1])) <= 1


def test_what_is_drawn_is_keyed_by_seed_and_rollout(judge: LLMJudge) -> None:
    def drawn(seed: int, rollouts: int) -> list[str]:
        audit = Audit(judge, sample=8, seed=seed)
        for number in range(rollouts):
            audited(audit, rollout(number, 0.0))
        audit.begin()
        for each in rollout(0, 0.0):
            audit.see(each)
        return [step.original for group in audit.drawn() for step in group]

    assert drawn(1, 1) == drawn(1, 1)
    assert drawn(1, 1) != drawn(1, 2)
    assert drawn(1, 1) != drawn(2, 1)


def test_the_judge_is_shown_the_query_that_was_asked_and_a_rubric_of_its_own(
    server: ScriptedServer, judge: LLMJudge
) -> None:
    audited(Audit(judge, sample=4, seed=0), [info(HELP, success=True, query=901, adopted=False)])
    assert in_fences(server.bodies[-1]["prompt"])[0]["rewording"] == "before 901"
    assert AUDIT_RUBRIC.strip() in server.bodies[-1]["prompt"]
    audited(Audit(judge, sample=4, seed=0), [info(HELP, success=True, query=902)])
    assert in_fences(server.bodies[-1]["prompt"])[0]["rewording"] == "after 902"


def test_verdicts_that_fail_are_counted_apart_and_are_in_no_rate(judge: LLMJudge) -> None:
    steps = [info(GIBBERISH if k % 4 < 2 else HELP, success=not k % 2, query=k) for k in range(16)]
    steps += [info("", success=False) | {"unscored": True}] * 5
    audit = Audit(judge, sample=16, seed=0)
    metrics = audited(audit, steps)
    assert metrics["audit/unscored"] == len(audit.failed) == 8
    assert metrics["audit/success_rate"] == pytest.approx(1)
    assert metrics["audit/training_success_rate"] == pytest.approx(0.5)


def test_a_rollout_of_whose_successes_none_got_a_verdict_has_no_rate(judge: LLMJudge) -> None:
    steps = [info(GIBBERISH if k % 2 else LECTURE, success=bool(k % 2), query=k) for k in range(16)]
    metrics = audited(Audit(judge, sample=8, seed=0), steps)
    assert metrics == {"audit/unscored": 4, "audit/repaired": 0, "audit/alarm": 0}


def test_false_successes_are_told_as_a_share_of_the_successes(judge: LLMJudge) -> None:
    steps = [info(LECTURE if k % 5 == 0 else HELP, success=k < 10, query=k) for k in range(90)]
    metrics = audited(Audit(judge, sample=90, seed=1), steps)
    assert metrics["audit/false_success_rate"] == pytest.approx(0.2)


def test_a_rollout_without_a_scored_step_has_no_rate_either(judge: LLMJudge) -> None:
    metrics = audited(Audit(judge, sample=8, seed=0), [])
    assert metrics == {"audit/unscored": 0, "audit/repaired": 0, "audit/alarm": 0}


def test_the_alarm_rises_once_the_reward_is_gamed_and_stays(judge: LLMJudge) -> None:
    audit = Audit(judge, sample=16, seed=3)
    alarms = [
        audited(audit, rollout(number, 0.0 if number < 8 else 0.9), done_steps=64 * (number + 1))[
            "audit/alarm"
        ]
        for number in range(20)
    ]
    assert alarms == sorted(alarms)
    raised = alarms.index(1)
    assert 8 <= raised < 12
    assert audit.raised_at == 64 * (raised + 1)
    assert audit.text.startswith(f"AUDIT ALARM since step {audit.raised_at}: ")


def test_an_honest_reward_raises_none(judge: LLMJudge) -> None:
    audit = Audit(judge, sample=16, seed=3)
    assert not any(audited(audit, rollout(number, 0.0))["audit/alarm"] for number in range(20))
    assert audit.text == ""


@pytest.mark.parametrize("stopped_after", [2, 6, 11])
def test_an_audit_that_is_taken_up_again_goes_on_as_if_it_had_not_been_left(
    judge: LLMJudge, stopped_after: int
) -> None:
    def go_on(audit: Audit, numbers: Sequence[int]) -> list[dict[str, float]]:
        return [audited(audit, rollout(n, 0.0 if n < 6 else 0.7), 64 * n) for n in numbers]

    whole = Audit(judge, sample=6, seed=4)
    expected = go_on(whole, range(14))
    first, second = (Audit(judge, sample=6, seed=4) for _ in range(2))
    before = go_on(first, range(stopped_after))
    second.restore(json.loads(json.dumps(first.state())))
    assert before + go_on(second, range(stopped_after, 14)) == expected
    assert second.state() == whole.state()
    assert whole.raised_at is not None
