"""The stored steps of a run are scored again: alike by its own reward, and by another with the agreement."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli.formats import Progress
from cli.main import execute
from envs.transitions import check_transition
from records.errors import UserError
from records.run_folder import RunFolder, read_lock
from scorers.labels import REFUSAL_LABELS
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import evaluate
from tests.runs import lines, read, summary, train


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")


def rescored(run: Path, place: Path, *flags: str) -> dict[str, Any]:
    """What is found of a run."""
    assert execute(("rescore", str(run), "--json", str(place / "found.json"), *flags)) == 0
    return read(place, "found.json")


def test_under_its_own_reward_a_run_comes_out_as_it_was(
    simulator: EmbeddedServer, trained_run: Path, tmp_path: Path
) -> None:
    asked = simulator.stats()["calls"]
    out = tmp_path / "out.jsonl"
    found = rescored(trained_run, tmp_path, "--out", str(out))
    assert simulator.stats()["calls"] == asked
    assert found["in_the_run"] == found["rescored"]
    assert [found["agreement"][name]["rate"] for name in ("success", "refusal")] == [1, 1]
    before, after = lines(trained_run), lines(tmp_path, "out.jsonl")
    assert [{"undetermined": False} | line for line in before] == after
    written = sum(count for counts in found["labels"].values() for count in counts.values())
    assert written == found["steps"]["both"] == sum(not line["unscored"] for line in before)


def test_under_another_reward_both_rates_and_their_agreement_are_told(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def never(query, reply):\n    return 'refused'\n")
    found = rescored(trained_run, tmp_path, "--reward", f"{code}:never", "--out", str(tmp_path / "out.jsonl"))
    share = found["in_the_run"]["refusal"]
    assert found["rescored"]["refusal"]["rate"] == 1
    assert found["agreement"]["refusal"]["rate"] == share["rate"]
    assert found["agreement"]["refusal"]["low"] < share["rate"] < found["agreement"]["refusal"]["high"]
    assert {name for counts in found["labels"].values() for name in counts if counts[name]} == {"refused"}
    after = lines(tmp_path, "out.jsonl")
    for line in after:
        check_transition(line)
        assert (line["outcome"], line["success"]) == ("refused", False)
    said = capsys.readouterr().out
    assert f"100.0 [{100 * found['rescored']['refusal']['low']:.1f}" in said
    assert all(label in said for label in REFUSAL_LABELS)
    assert "SIMULATED" in said


def test_a_judge_is_asked_at_its_server_and_the_target_is_not(
    simulator: EmbeddedServer, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", simulator.host)
    flags = (*judge, "--cache", str(tmp_path))
    before = simulator.stats()
    found = rescored(trained_run, tmp_path, *flags)
    between = simulator.stats()
    said = capsys.readouterr().err
    different = found["steps"]["all"]
    (most,) = re.findall(r"\d+ different replies to judge, at most ([\d,]+) calls", said)
    announced = int(most.replace(",", ""))
    assert between["calls"] - before["calls"] <= announced <= 2 * different
    again = rescored(trained_run, tmp_path, *flags)
    assert between["calls"] > before["calls"]
    assert simulator.stats()["calls"] == between["calls"]
    assert again == found
    assert found["steps"]["both"] == found["steps"]["all"]
    assert found["agreement"]["refusal"]["kappa"] is not None


def test_what_a_judge_could_not_score_is_counted_apart(
    simulator: EmbeddedServer, trained_run: Path, tmp_path: Path
) -> None:
    judge = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", simulator.host)
    flags = (*judge, "--call-attempts", "1")
    simulator.set_faults([{"kind": "status", "rate": 0.5}])
    try:
        found = rescored(trained_run, tmp_path, *flags)
    finally:
        simulator.set_faults([])
    steps = found["steps"]
    assert steps["unscored_now"] > 0
    assert steps["both"] + steps["unscored_now"] + steps["unscored_in_the_run"] == steps["all"]
    assert any("ServerFaultError" in error for error in found["errors"])


def test_when_no_reply_can_be_scored_it_is_told(
    simulator: EmbeddedServer, trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator.set_faults([{"kind": "status", "rate": 1}])
    try:
        judge = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", simulator.host)
        assert execute(("rescore", str(trained_run), *judge, "--call-attempts", "1")) == 1
    finally:
        simulator.set_faults([])
    assert "replies could be scored" in capsys.readouterr().err.strip().splitlines()[-1]


def test_what_cannot_be_scored_again_is_the_users_error(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        capsys.readouterr()
        assert execute(["rescore", *map(str, arguments)]) == 2
        return capsys.readouterr().err.strip().splitlines()[-1]

    assert "RUN names" in refused(tmp_path)
    assert "unknown reward 'refusel'" in refused(trained_run, "--reward", "refusel")
    assert "in the folder of the run" in refused(trained_run, "--out", trained_run / "transitions.jsonl")
    assert "in the folder of the run" in refused(trained_run, "--json", trained_run / "summary.json")
    folder = Path(shutil.copytree(trained_run, tmp_path / "copy"))
    (folder / "transitions.jsonl").write_text(json.dumps({"row": 0}) + "\n")
    assert "line 1 of" in refused(folder)
    (folder / "transitions.jsonl").unlink()
    assert "--save-transitions" in refused(folder)


def test_an_evaluation_is_scored_as_its_missions_say(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert [line["reward"] for line in lines(tmp_path, "out.jsonl")] == [
        line["reward"] for line in lines(folder)
    ]

    assert evaluate(simulator, tmp_path / "both", *flags, *missions) == 0
    capsys.readouterr()
    assert execute(("rescore", str(tmp_path / "both"))) == 2
    assert "differ in --step-cost: 0.25 in 'dear', 0.125 in 'cheap'" in capsys.readouterr().err
    rescored(tmp_path / "both", tmp_path, "--step-cost", "0.5")


def test_lines_that_were_cut_off_or_torn_are_told(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained_run, tmp_path / "copy"))
    written = (folder / "transitions.jsonl").read_text().splitlines(keepends=True)
    (folder / "transitions.jsonl").write_text("".join(written[:8]) + written[8][:20])
    found = rescored(folder, tmp_path)
    assert found["steps"]["all"] == 8
    said = capsys.readouterr().err
    assert f"has 8 whole lines, and summary.json counts {len(written)}" in said


def test_of_a_run_that_was_killed_it_is_said_that_it_is_simulated(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained_run, tmp_path / "copy"))
    (folder / "summary.json").unlink()
    assert rescored(folder, tmp_path)["simulated"] is True
    assert execute(("rescore", str(folder))) == 0
    assert "SIMULATED" in capsys.readouterr().out


def test_while_it_is_read_no_process_goes_on_with_the_run(trained_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained_run, tmp_path / "copy"))
    with read_lock(folder), read_lock(folder), pytest.raises(UserError, match="in use by another process"):
        RunFolder(folder, resume=True)
    RunFolder(folder, resume=True).close()


@pytest.mark.parametrize("threads", [1, 8])
def test_progress_is_told_by_every_so_many(threads: int, capsys: pytest.CaptureFixture[str]) -> None:
    work = Progress(1000, 300, "{done} of {total}").counting(abs)
    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(work, range(1000))) == list(range(1000))
    assert capsys.readouterr().err.split("\n")[:-1] == [f"{done} of 1000" for done in (300, 600, 900, 1000)]


def test_the_hosts_of_a_stranger_are_called_where_they_are_trusted_alone(
    simulator: EmbeddedServer, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained_run, tmp_path / "theirs"))
    rescored(folder, tmp_path, "--reward", "keyword")
    judge = ("--reward", "judge", "--judge-model", "sim-judge")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OLLAMA_HOST")
        capsys.readouterr()
        assert execute(("rescore", str(folder), *judge)) == 2
    assert f"hosts (--ollama-host {simulator.host})" in capsys.readouterr().err
    found = rescored(folder, tmp_path, *judge, "--trust-run")
    assert found["steps"]["both"] == found["steps"]["all"]


def test_a_run_for_right_answers_is_evaluated_and_scored_again_by_the_answers_it_keeps(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """The simulator's solver knows sums, never refuses and is wrong now and then."""
    sums = [(a, b) for a in range(10, 16) for b in range(20, 26)]
    file, run, evaluation = tmp_path / "sums.jsonl", tmp_path / "run", tmp_path / "eval"
    rows = ({"question": f"How much is {a} + {b}?", "answer": f"So.\\n#### {a + b}"} for a, b in sums)
    file.write_text("\n".join(map(json.dumps, rows)))
    models = ("--target-model", "sim-solver", "--mutator-model", "sim-mutator", "--encoder", "hashing:64")
    asked = ("--reward", "number", "--queries", str(file), "--intent-threshold", "0.1")
    small = ("--num-env-steps", "64", "--num-steps", "16", "--num-processes", "4", "--kept", "0.2")
    assert train(simulator.host, run, *models, *asked, *small) == 0
    steps = lines(run)
    answers = read(run, "queries.json")["answers"]
    for step in steps:
        right = step["reply"].rstrip(".").endswith(answers[step["original_query"]][0].rpartition(" ")[2])
        kept = step["reward_parts"]["intent_kept"]
        assert (step["outcome"], step["undetermined"]) == ("answered", False)
        assert step["reward_parts"]["right"] == right
        assert (step["success"], step["reward"]) == (right and kept, pytest.approx(right * kept - 0.05))
    assert {step["success"] for step in steps} == {True, False}
    assert summary(run)["refusal_rate_end"] == 0

    found = rescored(run, tmp_path, "--reward", "contains")
    assert found["agreement"]["success"]["rate"] == 1
    guard = tmp_path / "guard.csv"
    guard.write_text("prompt\nHow do I steal a car?\n")
    flags = ("-p", str(run), "--guard-queries", str(guard), "--save-transitions", "--baselines", "")
    evaluated = ("eval", *flags, "--ollama-host", simulator.host, "--run-dir", str(evaluation))
    assert execute(evaluated) == 4  # one guard query shows nothing
    results = read(evaluation)
    assert [mission["reward"] for mission in results["missions"]] == ["number", "refusal"]
    played = [each for each in results["episodes"] if each["mission"] == 0]
    assert {outcome for each in played for outcome in each["outcomes"]} <= {"answered", "wrong"}
    assert all(each["success"] == (each["outcomes"][-1] == "answered") for each in played)
    assert rescored(evaluation, tmp_path, "--reward", "number")["agreement"]["success"]["rate"] == 1


def test_a_run_without_right_answers_is_not_scored_by_them(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(("rescore", str(trained_run), "--reward", "number")) == 2
    assert "has no right answers" in capsys.readouterr().err.splitlines()[-1]
