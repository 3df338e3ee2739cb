"""What a training run is told of its judges: a rubric, a say in the intent, an accuracy."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from simulator.process import EmbeddedServer
from tests.runs import PASSES, WORLD, lines, resume, summary, train

STEPS = ("--num-processes", "4", "--num-steps", "8", "--num-env-steps", "32")
SMALL = (*WORLD, *STEPS, *PASSES, "--encoder", "hashing:64", "--kept", "0")


def asked(folder: Path, model: str) -> list[str]:
    """The prompts that a model of a run was given."""
    database = sqlite3.connect(folder / "replies.sqlite")
    rows = database.execute("SELECT request FROM replies WHERE model = ?", (model,)).fetchall()
    database.close()
    return [request for (request,) in rows]


def test_a_rubric_is_what_the_judge_goes_by_and_a_part_of_the_run(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, rubric = tmp_path / "run", tmp_path / "rubric.txt"
    rubric.write_text("label: answered if it rhymes.\n")
    judge = ("--reward", "judge", "--judge-model", "sim-judge", "--judge-rubric", str(rubric))
    assert train(simulator.host, run, *SMALL, *judge) == 0
    prompts = asked(run, "sim-judge")
    assert prompts
    assert all("label: answered if it rhymes." in prompt for prompt in prompts)
    rubric.write_text("label: answered if it does not.\n")
    assert resume(run, "--num-env-steps", "64") == 2
    assert f"'rubric {rubric}' is not what the run" in capsys.readouterr().err


def test_an_intent_judge_is_asked_about_answers_to_rewordings_alone(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(simulator.host, run, *SMALL, "--intent-judge", "--judge-model", "sim-judge") == 0
    steps = [line for line in lines(run) if line["outcome"] != "stopped"]
    answered = [step for step in steps if step["outcome"] == "answered"]
    asked_of = [s["mutated_query" if s["adopted"] else "query_before"] for s in answered]
    originals = [step["original_query"] for step in answered]
    reworded = [pair for pair in zip(asked_of, originals, strict=True) if pair[0] != pair[1]]
    assert 1 < len(asked(run, "sim-judge")) <= 1 + len(reworded) < len(steps)  # 1 before the run
    found = summary(run)
    assert found["drifted_steps"] == sum(not step["reward_parts"]["intent_kept"] for step in steps)
    assert found["judge_repairs"] == 0


def test_refusal_rates_are_corrected_where_the_accuracy_of_the_labels_was_measured(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "acc.json"
    path.write_text(
        json.dumps({"sensitivity": 0.95, "specificity": 0.9, "positives": 200, "negatives": 300})
    )
    assert train(simulator.host, tmp_path / "run", *SMALL, "--judge-accuracy", str(path)) == 0
    found = summary(tmp_path / "run")
    expected = min(1.0, max(0.0, (found["refusal_rate_end"] + 0.9 - 1) / 0.85))
    assert found["refusal_corrected_rate_end"] == pytest.approx(expected, abs=1e-3)
    assert "  corrected" in capsys.readouterr().out
