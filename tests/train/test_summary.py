"""What a run comes to: its summary and its progress, counted from its transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.process import EmbeddedServer
from tests.runs import PASSES, WORLD, lines, metrics, summary, train
from train.summary import rates


def test_summary_json_is_counted_from_transitions_jsonl(whole: Path) -> None:
    """16 rows in rollouts of 8, episodes of at most 5 steps: one begun in row 11 has its time."""
    found, steps = summary(whole), lines(whole)
    scored = [line for line in steps if not line["unscored"]]
    for end, rows in {"start": range(8), "end": range(8, 16)}.items():
        mine = [line for line in scored if line["row"] in rows and line["outcome"] != "stopped"]
        refused = [line for line in mine if line["outcome"] == "refused"]
        assert found[f"replies_{end}"] == len(mine)
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


def test_the_last_progress_line_says_what_summary_json_does(
    failing: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the last two of 16 rollouts."""
    shape = ("--num-processes", "8", "--num-steps", "2", "--num-env-steps", "256")
    flags = (*WORLD, *PASSES, *shape, "--encoder", "hashing:64", "--call-attempts", "1")
    assert train(failing.host, tmp_path / "run", *flags) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if ": 256 of 256, " in line]
    found = summary(tmp_path / "run")
    assert f"refused {100 * found['refusal_rate_end']:.0f} %" in said[-1]
    success = f"{100 * found['success_rate_end']:.0f} %"
    assert f"success {success} of {found['episodes_end']} episodes" in said[-1]


def test_failures_are_counted_apart_and_are_never_refusals(whole: Path) -> None:
    unscored = [line for line in lines(whole) if line["unscored"]]
    assert 0 < len(unscored) == summary(whole)["unscored_steps"]
    for line in unscored:
        assert (line["outcome"], line["error"]) == ("unscored", "ServerFaultError")
        assert (line["reward"], line["success"]) == (0, False)
        assert not line["terminated"]
        assert line["not_hashed"]["error_message"].startswith("ServerFaultError: model 'sim-")


def step(row: int, outcome: str, *, over: bool = False) -> dict[str, Any]:
    """A line of transitions.jsonl."""
    return {
        "row": row,
        "lane": 0,
        "original_query": "q",
        "guard": False,
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
    }


def test_rates_are_of_replies_and_of_episodes_by_the_row_they_began_in() -> None:
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
    assert (found["replies_start"], found["refusal_rate_start"]) == (1, 1.0)
    assert (found["replies_end"], found["refusal_rate_end"]) == (2, 0.5)
    assert (found["unscored_steps"], found["unscored_rate"]) == (2, pytest.approx(2 / 16))
