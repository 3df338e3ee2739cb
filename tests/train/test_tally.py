"""Counts: an unscored step is in no rate but its own."""

from __future__ import annotations

import pytest

from train.recorder import Tally


def info(
    outcome: str, *, partial: bool = False, unscored: bool = False, rejected: str = "", kept: bool = True
) -> dict[str, object]:
    parts = {"answered": float(outcome == "answered"), "intent_kept": float(kept), "step_cost": 0.05}
    return {
        "outcome": outcome,
        "partial": partial,
        "unscored": unscored,
        "adopted": not rejected,
        "rejected": rejected,
        "mutator": "noop",
        "reward_parts": parts,
    }


def test_unscored_steps_are_in_no_rate_but_their_own() -> None:
    tally = Tally()
    for step in (info("answered"), info("refused"), info("refused", partial=True)):
        tally.count_step(step)
    without = tally.metrics()
    for _ in range(5):
        tally.count_step(info("unscored", unscored=True))
    with_failures = tally.metrics()
    changed = {key for key in without if without[key] != with_failures[key]}
    assert changed == {"outcome/unscored_rate", "outcome/unscored_steps"}
    assert with_failures["outcome/refusal_rate"] == pytest.approx(2 / 3)
    assert with_failures["outcome/unscored_rate"] == pytest.approx(5 / 8)


def test_as_many_episodes_as_steps_is_no_clash() -> None:
    tally = Tally()
    tally.count_step(info("answered"))
    tally.count_episode(success=True, total_reward=0.95, length=1)
    metrics = tally.metrics()
    assert metrics["rollout/success_rate"] == 1.0
    assert metrics["outcome/answered_rate"] == 1.0


def test_an_undetermined_reply_neither_answers_nor_refuses() -> None:
    tally = Tally()
    for step in (info("answered"), info("refused"), info("answered") | {"undetermined": True}):
        tally.count_step(step)
    shares = {
        name: tally.metrics()[f"outcome/{name}_rate"] for name in ("answered", "refusal", "undetermined")
    }
    assert shares == pytest.approx(dict.fromkeys(shares, 1 / 3))


def test_a_rate_without_a_denominator_is_left_out() -> None:
    assert "rollout/success_rate" not in Tally().metrics()


def test_rewrites_that_drifted_and_steps_that_did_are_counted_apart() -> None:
    tally = Tally()
    tally.count_step(info("answered"))
    tally.count_step(info("answered", rejected="drifted"))
    tally.count_step(info("answered", rejected="cut"))
    tally.count_step(info("answered", kept=False))
    tally.count_step(info("unscored", unscored=True, rejected="drifted"))
    metrics = tally.metrics()
    assert metrics["mutators/drifted_rate"] == 1 / 4
    assert metrics["outcome/drifted_rate"] == 1 / 4
    assert metrics["mutators/adopted_rate"] == 2 / 4
    assert (metrics["rejected/drifted"], metrics["rejected/cut"]) == (1 / 4, 1 / 4)
