"""The stored steps of a run are scored again, by its own reward and by others."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from envs.transitions import check_transition
from scorers.labels import REFUSAL_LABELS
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import evaluate
from tests.runs import PASSES, WORLD, faults, lines, read, summary, train

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scorer that asked for a server would ask there, where none is."""
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")


@pytest.fixture
def copy(trained_run: Path, tmp_path: Path) -> Path:
    """A run to be spoilt."""
    return Path(shutil.copytree(trained_run, tmp_path / "copy"))


@pytest.fixture
def judge(simulator: EmbeddedServer) -> tuple[str, ...]:
    return ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", simulator.host)


def rescored(run: Path, place: Path, *flags: str) -> dict[str, Any]:
    """What is found of a run."""
    assert execute(("rescore", str(run), "--json", str(place / "found.json"), *flags)) == 0
    return read(place, "found.json")


def refused(capsys: Capture, *arguments: object) -> str:
    """The last line of a user's error."""
    assert execute(["rescore", *map(str, arguments)]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_under_its_own_reward_a_run_comes_out_as_it_was(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    small = "--num-processes 4 --num-steps 8 --num-env-steps 32 --encoder hashing:16 --seeds 2"
    assert train(simulator.host, run, *WORLD, *small.split(), *PASSES) == 0
    asked = simulator.stats()["calls"]
    found = rescored(run, tmp_path, "--out", str(tmp_path / "out.jsonl"))
    assert simulator.stats()["calls"] == asked
    assert found["in_the_run"] == found["rescored"]
    assert [found["agreement"][name]["rate"] for name in ("success", "refusal")] == [1, 1]
    folders = [run / "seed-0", run / "seed-1"]
    before = [line for folder in folders for line in lines(folder)]
    assert before == lines(tmp_path, "out.jsonl")
    counted = sum(count for counts in found["labels"].values() for count in counts.values())
    assert len(before) == 32 * len(folders)
    replies = [line for line in before if line["outcome"] != "stopped"]
    assert counted == found["steps"]["both"] == len(replies)


def test_under_another_reward_both_rates_and_their_agreement_are_shown(
    trained_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def never(query, reply):\n    return 'refused'\n")
    flags = ("--reward", f"{code}:never", "--out", str(tmp_path / "out.jsonl"))
    found = rescored(trained_run, tmp_path, *flags)
    share, agreement = found["in_the_run"]["refusal"], found["agreement"]["refusal"]
    assert found["rescored"]["refusal"]["rate"] == 1
    assert agreement["low"] < agreement["rate"] == share["rate"] < agreement["high"]
    assert {name for counts in found["labels"].values() for name in counts if counts[name]} == {
        "refused"
    }
    for line in lines(tmp_path, "out.jsonl"):
        check_transition(line)
        if line["outcome"] == "stopped":
            continue
        assert (line["outcome"], line["success"]) == ("refused", False)
    out = capsys.readouterr().out
    assert out.startswith("SIMULATED")
    assert f"100.0 [{100 * found['rescored']['refusal']['low']:.1f}" in out
    assert all(label in out for label in REFUSAL_LABELS)


def test_a_judge_is_asked_once_at_its_server(
    simulator: EmbeddedServer,
    judge: tuple[str, ...],
    trained_run: Path,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    """What it could not score is counted apart."""
    with faults(simulator, {"kind": "status", "rate": 1}):
        assert execute(("rescore", str(trained_run), *judge, "--call-attempts", "1")) == 1
    assert "replies could be scored" in capsys.readouterr().err.splitlines()[-1]
    out = ("--out", str(tmp_path / "out.jsonl"))
    with faults(simulator, {"kind": "status", "rate": 0.5}):
        found = rescored(trained_run, tmp_path, *judge, "--call-attempts", "1", *out)
    for line in lines(tmp_path, "out.jsonl"):
        assert line["not_hashed"]["error_message"].partition(":")[0] == line["error"]
    steps = found["steps"]
    assert steps["unscored_now"] > 0
    assert steps["both"] + steps["unscored_now"] + steps["unscored_in_the_run"] == steps["all"]
    assert any("ServerFaultError" in error for error in found["errors"])

    capsys.readouterr()
    before, cache = simulator.stats()["calls"], ("--cache", str(tmp_path))
    found = rescored(trained_run, tmp_path, *judge, *cache)
    between = simulator.stats()["calls"]
    err = capsys.readouterr().err
    (most,) = re.findall(r"\d+ different replies to judge, at most ([\d,]+) calls", err)
    assert 0 < between - before <= int(most) <= 2 * found["steps"]["all"]
    assert rescored(trained_run, tmp_path, *judge, *cache) == found
    assert simulator.stats()["calls"] == between
    assert found["steps"]["both"] == found["steps"]["all"]
    assert found["agreement"]["refusal"]["kappa"] is not None


def test_what_cannot_be_scored_again_is_the_users_error(
    trained_run: Path, copy: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert "RUN names" in refused(capsys, tmp_path)
    twice = ("--json", tmp_path / "one.json", "--out", tmp_path / "one.json")
    assert "one.json' is named twice" in refused(capsys, trained_run, *twice)
    assert "unknown reward 'refusel'" in refused(capsys, trained_run, "--reward", "refusel")
    assert "has no right answers" in refused(capsys, trained_run, "--reward", "number")
    for flag, name in (("--out", "transitions.jsonl"), ("--json", "summary.json")):
        assert "in the folder of the run" in refused(capsys, trained_run, flag, trained_run / name)
    for text, says in (('{"row": 0}\n', "line 1 of"), ("", "has no scored step")):
        (copy / "transitions.jsonl").write_text(text)
        assert says in refused(capsys, copy)
    (copy / "transitions.jsonl").unlink()
    assert "--save-transitions" in refused(capsys, copy)


def test_of_a_run_that_was_killed_what_is_there_is_scored_and_what_is_missing_said(
    copy: Path, tmp_path: Path, capsys: Capture
) -> None:
    written = (copy / "transitions.jsonl").read_text().splitlines(keepends=True)
    (copy / "transitions.jsonl").write_text("".join(written[:8]) + written[8][:20])
    assert rescored(copy, tmp_path)["steps"]["all"] == 8
    assert f"has 8 whole lines, and summary.json counts {len(written)}" in capsys.readouterr().err
    (copy / "summary.json").unlink()
    assert rescored(copy, tmp_path)["simulated"] is True


def test_an_evaluation_is_scored_as_its_missions_say(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    """Their own settings come before those of the command, which config.toml has."""
    folder, missions = tmp_path / "run", []
    for name, cost in (("dear", 0.25), ("cheap", 0.125)):
        file = tmp_path / f"{name}.toml"
        file.write_text(f"step-cost = {cost}\n")
        missions += ["-m", str(file)]
    flags = ("-p", "noop", "--episodes", "4", "--save-transitions", "--step-cost", "0.5")
    assert evaluate(simulator, folder, *flags, *missions[:2]) == 0
    rescored(folder, tmp_path, "--out", str(tmp_path / "out.jsonl"))
    rewards = [
        [line["reward"] for line in lines(*at)] for at in ((folder,), (tmp_path, "out.jsonl"))
    ]
    assert rewards[0] == rewards[1]

    assert evaluate(simulator, tmp_path / "both", *flags, *missions) == 0
    differ = "differ in --step-cost: 0.25 in 'dear', 0.125 in 'cheap'"
    assert differ in refused(capsys, tmp_path / "both")
    rescored(tmp_path / "both", tmp_path, "--step-cost", "0.5")


def test_a_run_for_right_answers_is_evaluated_and_scored_again_by_the_answers_it_keeps(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """The simulator's solver knows sums, never refuses and is wrong now and then."""
    file, run, evaluation = tmp_path / "sums.jsonl", tmp_path / "run", tmp_path / "eval"
    rows = (
        {"question": f"How much is {a} + {b}?", "answer": f"So.\n#### {a + b}"}
        for a in range(10, 16)
        for b in range(20, 26)
    )
    file.write_text("\n".join(map(json.dumps, rows)))
    flags = (
        *("--target-model=sim-solver", "--mutator-model=sim-mutator", "--encoder=hashing:64"),
        *("--reward=number", "--queries", str(file), "--intent-threshold=0.1"),
        *("--num-env-steps=64", "--num-steps=16", "--num-processes=4", "--kept=0.2"),
    )
    assert train(simulator.host, run, *flags) == 0
    steps, answers = lines(run), read(run, "queries.json")["answers"]
    for step in steps:
        answer = answers[step["original_query"]][0].rpartition(" ")[2]
        right = step["reply"].rstrip(".").endswith(answer)
        assert step["reward_parts"]["right"] == right
        assert step["success"] == (right and bool(step["reward_parts"]["intent_kept"]))
    assert {step["success"] for step in steps} == {True, False}
    assert summary(run)["refusal_rate_end"] == 0
    assert rescored(run, tmp_path, "--reward", "contains")["agreement"]["success"]["rate"] == 1

    kept = ("-p", str(run), "--save-transitions", "--baselines", "")
    evaluated = ("eval", *kept, "--ollama-host", simulator.host, "--run-dir", str(evaluation))
    assert execute(evaluated) == 0
    outcomes = {outcome for each in read(evaluation)["episodes"] for outcome in each["outcomes"]}
    assert outcomes <= {"answered", "wrong"}
    assert rescored(evaluation, tmp_path, "--reward", "number")["agreement"]["success"]["rate"] == 1
