"""The schemes that failing calls are counted by, on episodes worked by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.failures import counted_as_refusal, did_not_happen, without_failures


def episode(steps: str, query: str = "q") -> list[dict[str, Any]]:
    """An agent's attempts: f failed, r refused, s succeeded; five scored steps are the limit."""
    scored = 0
    attempts = []
    for step in steps:
        scored += step != "f"
        attempts.append(
            {
                "original_query": query,
                "unscored": step == "f",
                "success": step == "s",
                "terminated": step == "s",
                "truncated": step == "r" and scored == 5,
            }
        )
    return attempts


EPISODES = [episode("s"), episode("rfs"), episode("rrfrrs"), episode("rrrrr"), episode("rffffffff")]


def test_a_failed_step_that_did_not_happen_changes_nothing_and_an_episode_without_end_is_left_out() -> (
    None
):
    assert did_not_happen(EPISODES) == {"q": [True, True, True, False]}


def test_as_a_refusal_it_takes_a_step_from_those_that_might_have_succeeded() -> None:
    assert counted_as_refusal(EPISODES) == {"q": [True, True, False, False, False]}


def test_dropping_episodes_leaves_those_that_were_quick_to_succeed() -> None:
    assert without_failures(EPISODES) == {"q": [True, False]}
