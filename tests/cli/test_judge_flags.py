"""What a run is told of its judges: a rubric, a say in the intent, an accuracy."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from simulator.process import EmbeddedServer
from tests.runs import PASSES, WORLD, lines, resume, summary, train

STEPS = ("--num-processes", "4", "--num-steps", "8", "--num-env-steps", "32")
SMALL = (*STEPS, *PASSES, "--encoder", "hashing:64")


def run(server: EmbeddedServer, folder: Path, *flags: str) -> int:
    return train(server.host, folder, *WORLD, *SMALL, *flags)


def asked(folder: Path, model: str) -> list[str]:
    """The prompts that a model of a run was given."""
    database = sqlite3.connect(folder / "replies.sqlite")
    rows = database.execute("SELECT request FROM replies WHERE model = ?", (model,)).fetchall()
    database.close()
    return [request for (request,) in rows]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_rubric_is_what_the_judge_goes_by_and_a_part_of_the_run(
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rubric.txt").write_text("label: answered if it rhymes.\n")
    flags = ("--reward", "judge", "--judge-model", "sim-judge", "--judge-rubric", "rubric.txt")
    assert run(simulator, tmp_path / "run", *flags) == 0
    prompts = asked(tmp_path / "run", "sim-judge")
    assert prompts
    assert all("label: answered if it rhymes." in prompt for prompt in prompts)
    Path("rubric.txt").write_text("label: answered if it does not.\n")
    assert resume(tmp_path / "run", "--num-env-steps", "64") == 2
    assert f"'rubric {tmp_path / 'rubric.txt'}' is not what the run" in last_line(capsys)


@pytest.mark.parametrize(
    ("content", "flags", "fault"),
    [
        (" \n", ("--reward", "judge", "--judge-model", "sim-judge"), "it is empty"),
        (None, ("--reward", "judge", "--judge-model", "sim-judge"), "No such file"),
        ("label: x", ("--reward", "refusal"), "only --reward judge goes by a rubric"),
    ],
)
def test_a_rubric_that_is_of_no_use_is_one_line(
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    flags: tuple[str, ...],
    fault: str,
) -> None:
    path = tmp_path / "rubric.txt"
    if content is not None:
        path.write_text(content)
    assert run(simulator, tmp_path / "run", *flags, "--judge-rubric", str(path)) == 2
    assert fault in last_line(capsys)
    assert not (tmp_path / "run").exists()


def test_an_intent_judge_is_asked_about_answers_to_rewordings_alone(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    assert run(simulator, tmp_path / "run", "--intent-judge", "--judge-model", "sim-judge") == 0
    steps = lines(tmp_path / "run")
    reworded = [
        step
        for step in steps
        if step["outcome"] == "answered"
        and (step["mutated_query"] if step["adopted"] else step["query_before"]) != step["original_query"]
    ]
    assert 0 < len(asked(tmp_path / "run", "sim-judge")) <= len(reworded) < len(steps)
    told = summary(tmp_path / "run")
    assert told["drifted_steps"] == sum(not step["reward_parts"]["intent_kept"] for step in steps)
    assert told["judge_repairs"] == 0


def test_an_intent_judge_needs_a_model(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(simulator, tmp_path / "run", "--intent-judge") == 2
    assert "--intent-judge needs a judge: name its model with --judge-model" in last_line(capsys)


def test_refusal_rates_are_told_corrected_where_the_labels_were_measured(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "acc.json"
    path.write_text(json.dumps({"sensitivity": 0.95, "specificity": 0.9, "positives": 200, "negatives": 300}))
    assert run(simulator, tmp_path / "run", "--judge-accuracy", str(path)) == 0
    told = summary(tmp_path / "run")
    expected = min(1.0, max(0.0, (told["refusal_rate_end"] + 0.9 - 1) / 0.85))
    assert told["refusal_corrected_rate_end"] == pytest.approx(expected, abs=1e-3)
    assert "  corrected" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", '{"sensitivity": 0.5}'])
def test_an_accuracy_that_cannot_be_read_is_one_line(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = tmp_path / "acc.json"
    if content is not None:
        path.write_text(content)
    assert run(simulator, tmp_path / "run", "--judge-accuracy", str(path)) == 2
    assert last_line(capsys).startswith("mutagym: --judge-accuracy: ")
    assert not (tmp_path / "run").exists()
