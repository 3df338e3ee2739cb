"""What a run comes to, counted by hand from a few transitions, and again from a run's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorers.correction import LabelAccuracy
from simulator.process import EmbeddedServer
from tests.runs import PASSES, WORLD, interrupted_at, lines, metrics, resume, summary
from train.summary import Rows, episode_metrics, rates, step_metrics


def step(row: int, outcome: str, *, over: bool = False, **changes: object) -> dict[str, Any]:
    """A line of transitions.jsonl."""
    return {
        "row": row,
        "lane": 0,
        "original_query": "q",
        "outcome": outcome,
        "unscored": outcome == "unscored",
        "partial": False,
        "undetermined": False,
        "mutator": "noop",
        "adopted": True,
        "rejected": "",
        "reward_parts": {"intent_kept": 1.0},
        "success": outcome == "answered",
        "reward": {"answered": 0.95, "unscored": 0}.get(outcome, -0.05),
        "terminated": over and outcome == "answered",
        "truncated": over and outcome != "answered",
    } | changes


def test_summary_json_is_counted_from_transitions_jsonl(whole: Path) -> None:
    """16 rows in rollouts of 8, episodes of at most 5 steps: one begun in row 11 has its time."""
    found, steps = summary(whole), lines(whole)
    scored = [line for line in steps if not line["unscored"]]
    for end, rows in {"start": range(8), "end": range(8, 16)}.items():
        mine = [line for line in scored if line["row"] in rows]
        refused = [line for line in mine if line["outcome"] == "refused"]
        assert found[f"scored_steps_{end}"] == len(mine)
        assert found[f"refusal_rate_{end}"] == round(len(refused) / len(mine), 4)
        assert found[f"refusal_queries_{end}"] == len({line["original_query"] for line in mine})
    begun = {(line["lane"], line["episode_number"]): line["row"] for line in reversed(steps)}
    over = [line for line in scored if line["terminated"] or line["truncated"]]
    for end, rows in {"start": range(8), "end": range(4, 12)}.items():
        mine = [line for line in over if begun[line["lane"], line["episode_number"]] in rows]
        assert found[f"episodes_{end}"] == len(mine) > 0
        successes = sum(line["success"] for line in mine)
        assert found[f"success_rate_{end}"] == round(successes / len(mine), 4)
    assert found["env_steps"] == len(steps) == 64
    assert found["unscored_steps"] == 64 - len(scored) > 0
    assert found["unscored_rate"] == round(1 - len(scored) / 64, 4)
    for line, begun_in in zip(metrics(whole), (range(4), range(4, 12)), strict=True):
        mine = [x for x in over if begun[x["lane"], x["episode_number"]] in begun_in]
        assert line["rollout/episodes"] == len(mine)
        assert line["rollout/success_rate"] == sum(x["success"] for x in mine) / len(mine)


@pytest.mark.usefixtures("fits_briefly")
@pytest.mark.parametrize("algorithm", ["ppo", "auto"])
def test_the_last_progress_line_says_what_summary_json_does(
    failing: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    """Of the last two of 20 rollouts, and as much of an `auto` run; each is resumed on the way."""
    shape = ("--num-processes", "4", "--num-steps", "2", "--num-env-steps", "160")
    lanes = (*shape, "--encoder", "hashing:64")
    failures = ("--call-attempts", "1", "--max-unscored", "1")
    by = ("--algorithm", algorithm, "--bandit-env-steps", "32")
    interrupted_at(failing.host, tmp_path, 70, *WORLD, *PASSES, *lanes, *failures, *by)
    assert resume(tmp_path) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if ": 160 of 160, " in line]
    found = summary(tmp_path)
    successes, refusals = (
        round(100 * found[f"{name}_rate_end"]) for name in ("success", "refusal")
    )
    assert found["episodes_end"] > 0
    assert f"success {successes} % of {found['episodes_end']} episodes" in said[-1]
    assert f"refused {refusals} %" in said[-1]


def test_rates_are_of_scored_steps_and_of_episodes_by_the_row_they_began_in() -> None:
    """16 rows of one lane, rollouts of 2 rows, episodes of at most 3 steps.

    The ends are rows 0-1 and 14-15; the last episodes that are sure to end begin in rows 12-13.
    """
    transitions = [
        step(0, "refused"),
        step(1, "unscored"),
        step(2, "answered", over=True),  # began in row 0
        step(3, "refused"),
        step(4, "unscored", over=True),  # ends an episode that is none
        *(step(row, "refused", over=row % 3 == 1) for row in range(5, 11)),
        step(11, "refused", over=True),
        step(12, "refused"),
        step(13, "refused"),
        step(14, "refused", over=True),  # began in row 12
        step(15, "answered", over=True),  # began in row 15, too late to count
    ]
    found = rates(transitions, rows=16, rollout=2, max_steps=3)
    assert (found["episodes_start"], found["success_rate_start"]) == (1, 1.0)
    assert (found["episodes_end"], found["success_rate_end"]) == (1, 0.0)
    assert (found["scored_steps_start"], found["refusal_rate_start"]) == (1, 1.0)
    assert (found["scored_steps_end"], found["refusal_rate_end"]) == (2, 0.5)
    assert (found["unscored_steps"], found["unscored_rate"]) == (2, pytest.approx(2 / 16))


def test_refusal_rates_are_corrected_where_the_labels_were_measured() -> None:
    """Half are labelled refusals; labels find .8 of the refusals and .9 of the answers."""
    transitions = [
        step(k, "refused" if k % 2 else "answered", original_query=f"q{k % 50}") for k in range(200)
    ]
    accuracy = LabelAccuracy(sensitivity=0.8, specificity=0.9, positives=500, negatives=500)
    plain = rates(transitions, rows=200, rollout=200, max_steps=5)
    found = rates(transitions, rows=200, rollout=200, max_steps=5, accuracy=accuracy)
    assert found["refusal_rate_end"] == 0.5
    assert found["refusal_corrected_rate_end"] == pytest.approx(0.4 / 0.7, abs=1e-4)
    low, high = found["refusal_corrected_interval_end"]
    assert low < 0.4 / 0.7 < high
    assert not [name for name in plain if "corrected" in name]


def counted(*steps: dict[str, Any]) -> Rows:
    rows = Rows()
    for each in steps:
        rows.add(each)
    return rows


def test_every_kind_of_step_is_counted_apart() -> None:
    """An undetermined reply is neither an answer nor a refusal; an unscored step is in no rate."""
    steps = (
        step(0, "answered"),
        step(1, "refused"),
        step(2, "answered", undetermined=True),
        step(3, "filtered", reward_parts={"intent_kept": 1.0, "judge_repaired": 1.0}),
        step(4, "answered", rejected="drifted", adopted=False),
        step(5, "refused", rejected="cut", adopted=False),
        step(6, "answered", reward_parts={"intent_kept": 0.0, "judge_repaired": 1.0}),
        step(7, "answered"),
    )
    unscored = [step(row, "unscored", rejected="drifted", reward_parts={}) for row in (8, 9)]
    rows = counted(*steps, *unscored)
    expected = {
        "outcome/answered_rate": 4,
        "outcome/refusal_rate": 2,
        "outcome/partial_refusal_rate": 0,
        "outcome/undetermined_rate": 1,
        "outcome/filtered_rate": 1,
        "outcome/drifted_rate": 1,
        "mutators/drifted_rate": 1,
        "mutators/adopted_rate": 6,
        "mutators/noop": 8,
        "rejected/cut": 1,
        "reward/judge_repaired": 2,
        "reward/intent_kept": 7,
    }
    found, alone = (step_metrics(rows.together(range(end))) for end in (10, 8))
    assert {name: found[name] * 8 for name in expected} == pytest.approx(expected)
    assert (found["outcome/unscored_steps"], found["outcome/unscored_rate"]) == (2, 0.2)
    changed = {name for name in alone if alone[name] != found[name]}
    assert changed == {"outcome/unscored_rate", "outcome/unscored_steps"}


def test_an_episode_has_the_return_and_the_length_of_its_scored_steps() -> None:
    ends = [step(1, "unscored"), step(2, "answered", over=True), step(3, "refused", over=True)]
    rows = counted(step(0, "refused"), *ends)
    assert "rollout/success_rate" not in episode_metrics(rows.together(range(1, 3)))
    found = episode_metrics(rows.together(range(9)))
    names = ("episodes", "success_rate", "ep_rew_mean", "ep_len_mean")
    assert [found[f"rollout/{name}"] for name in names] == pytest.approx([2, 0.5, 0.425, 1.5])
