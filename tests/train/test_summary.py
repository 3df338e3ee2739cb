"""The figures of a run, counted by hand from a few transitions."""

from __future__ import annotations

from typing import Any

import pytest

from scorers.correction import LabelAccuracy
from train.summary import notes_on_ends, rates


def step(
    row: int, outcome: str, *, over: bool = False, query: str = "q", lane: int = 0, **changes: object
) -> dict[str, Any]:
    return {
        "row": row,
        "lane": lane,
        "original_query": query,
        "outcome": outcome,
        "unscored": outcome == "unscored",
        "partial": False,
        "mutator": "noop",
        "adopted": True,
        "rejected": "",
        "reward_parts": {"intent_kept": 1.0},
        "success": outcome == "answered",
        "terminated": over and outcome == "answered",
        "truncated": over and outcome != "answered",
    } | changes


def test_rates_are_of_scored_steps_and_of_episodes_by_the_row_they_began_in() -> None:
    """16 rows of one lane, rollouts of 2 rows, episodes of at most 3 steps.

    The ends are rows 0-1 and 14-15; the last episodes that are sure to end begin in rows 12-13.
    """
    transitions = [
        step(0, "refused"),
        step(1, "unscored"),
        step(2, "answered", over=True),  # began in row 0
        *(step(row, "refused", over=row % 3 == 2) for row in range(3, 12)),
        step(12, "refused"),
        step(13, "refused"),
        step(14, "refused", over=True),  # began in row 12
        step(15, "answered", over=True),  # began in row 15, too late to tell
    ]
    summary = rates(transitions, rows=16, rollout=2, max_steps=3)
    assert (summary["episodes_start"], summary["success_rate_start"]) == (1, 1.0)
    assert (summary["episodes_end"], summary["success_rate_end"]) == (1, 0.0)
    assert (summary["scored_steps_start"], summary["refusal_rate_start"]) == (1, 1.0)
    assert (summary["scored_steps_end"], summary["refusal_rate_end"]) == (2, 0.5)
    assert (summary["unscored_steps"], summary["unscored_rate"]) == (1, pytest.approx(1 / 16))


def test_an_interval_is_as_wide_as_the_queries_are_few() -> None:
    def width(queries: int) -> float:
        transitions = [
            step(row, "answered" if row % 10 < 5 else "refused", over=True, query=f"q{row % queries}")
            for row in range(400)
        ]
        low, high = rates(transitions, rows=400, rollout=400, max_steps=1)["success_interval_start"]
        return float(high - low)

    assert width(10) > 3 * width(400)
    assert width(400) == pytest.approx(0.097, abs=0.002)


def test_drifts_and_repairs_are_counted_over_the_whole_run() -> None:
    transitions = [
        step(0, "answered", reward_parts={"intent_kept": 0.0, "judge_repaired": 1.0}),
        step(1, "refused", rejected="drifted", adopted=False),
        step(2, "refused", rejected="cut", adopted=False, reward_parts={"judge_repaired": 1.0}),
        step(3, "unscored", rejected="drifted", reward_parts={}),
    ]
    summary = rates(transitions, rows=4, rollout=4, max_steps=5)
    counted = [summary[name] for name in ("drifted_steps", "drifted_rewrites", "judge_repairs")]
    assert counted == [1, 1, 2]


def test_refusal_rates_stand_beside_those_that_are_corrected_for_the_labels() -> None:
    """Half of the replies are labelled refusals; the labels find .8 of the refusals and .9 of the answers."""
    transitions = [step(k, "refused" if k % 2 else "answered", query=f"q{k % 50}") for k in range(200)]
    accuracy = LabelAccuracy(sensitivity=0.8, specificity=0.9, positives=500, negatives=500)
    plain = rates(transitions, rows=200, rollout=200, max_steps=5)
    summary = rates(transitions, rows=200, rollout=200, max_steps=5, accuracy=accuracy)
    assert summary["refusal_rate_end"] == 0.5
    assert summary["refusal_corrected_rate_end"] == pytest.approx(0.4 / 0.7, abs=1e-4)
    low, high = summary["refusal_corrected_interval_end"]
    assert low < 0.4 / 0.7 < high
    assert not [name for name in plain if "corrected" in name]
    nothing = rates([step(0, "unscored")], rows=1, rollout=1, max_steps=1, accuracy=accuracy)
    assert nothing["refusal_corrected_rate_end"] is None


def test_a_run_that_never_got_a_score_has_no_rate() -> None:
    summary = rates([step(0, "unscored")], rows=1, rollout=32, max_steps=5)
    assert summary["success_rate_end"] is None
    assert summary["refusal_interval_end"] == [0.0, 1.0]
    assert summary["unscored_rate"] == 1.0


def test_the_table_says_why_it_tells_no_success_where_no_seed_had_an_episode_that_counts() -> None:
    def run(rows: int) -> dict[str, Any]:
        return rates(
            [step(row, "answered", over=True) for row in range(rows)], rows=rows, rollout=1, max_steps=3
        )

    assert "no episode is counted" in notes_on_ends([run(2), run(2)])
    assert "no episode is counted" not in notes_on_ends([run(2), run(3)])


def test_where_both_ends_have_the_same_steps_the_table_says_so() -> None:
    def run(rows: int) -> dict[str, Any]:
        steps = [step(row, "answered", over=True) for row in range(rows)]
        return rates(steps, rows=rows, rollout=4, max_steps=1)

    assert [run(rows)["ends_overlap"] for rows in (3, 4, 7, 8, 80)] == [True, True, True, False, False]
    assert "in common" in notes_on_ends([run(7)])
    assert not notes_on_ends([run(8)])
