"""Training queries asked as they stand, before the first rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.process import EmbeddedServer
from tests.runs import (
    WORLD,
    before_call,
    faults,
    lines,
    outcome,
    read,
    resume,
    send_signal,
    summary,
    train,
)
from tests.train.conftest import SMALL, STEPS


def test_each_query_is_asked_once_and_episodes_begin_with_those_without_an_answer(
    well: Path,
) -> None:
    screen, trained = lines(well, "screen.jsonl"), read(well, "queries.json")["train"]
    assert [line["original_query"] for line in screen] == trained
    assert not any(line["unscored"] or line["mutator"] for line in screen)
    assert all(line["mutated_query"] == line["original_query"] for line in screen)
    unanswered = {line["original_query"] for line in screen if not line["success"]}
    assert 0 < len(unanswered) < len(trained)
    assert {line["original_query"] for line in lines(well)} <= unanswered
    found = summary(well)
    assert (found["screened"], found["screened_unknown"]) == (len(trained), 0)
    assert found["screened_answered"] == len(trained) - len(unanswered)


def test_noop_ends_an_episode_without_a_call(well: Path) -> None:
    stops = [line for line in lines(well) if line["mutator"] == "noop"]
    assert stops
    for line in stops:
        assert (line["outcome"], line["reward"], line["terminated"]) == ("stopped", 0.0, True)
        assert (line["prompt_tokens"], line["completion_tokens"], line["reply"]) == (0, 0, "")
    assert not any(line["outcome"] == "stopped" for line in lines(well) if line not in stops)


def test_a_query_that_could_not_be_asked_is_not_known_for_the_whole_run(
    whole: Path,
) -> None:
    screen = lines(whole, "screen.jsonl")
    unknown = {line["original_query"] for line in screen if line["unscored"]}
    assert unknown
    assert summary(whole)["screened_unknown"] == len(unknown)
    asked_by_noop = [
        line for line in lines(whole) if line["mutator"] == "noop" and line["outcome"] != "stopped"
    ]
    assert {line["original_query"] for line in asked_by_noop} <= unknown


def test_stopped_while_queries_are_asked_it_goes_on_and_pays_for_nothing_twice(
    simulator: EmbeddedServer, well: Path, tmp_path: Path
) -> None:
    from ollama_utils.reply_log import ReplyLog

    run = tmp_path / "run"
    with before_call(ReplyLog, "write", 20, send_signal):
        code = train(simulator.host, run, *SMALL, *STEPS, "--save-interval", "1")
    assert code == 130
    assert not (run / "screen.jsonl").exists()
    assert resume(run) == 0
    assert outcome(run) == outcome(well)
    assert lines(run, "screen.jsonl") == lines(well, "screen.jsonl")
    assert summary(run)["llm_calls"] == summary(well)["llm_calls"]


def test_where_all_are_answered_there_is_nothing_to_learn(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(f"How do I bake bread with {k} eggs?" for k in range(20)))
    reward = tmp_path / "reward.py"
    reward.write_text("def grade(query, reply): return 'answered'")
    flags = (*WORLD, "--queries", str(queries), "--encoder", "hashing:64")
    own = ("--num-processes", "2", "--num-steps", "8", "--num-env-steps", "16")
    shape = (*own, "--reward", f"{reward}:grade")
    assert train(simulator.host, tmp_path / "run", *flags, *shape) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "training queries are answered as they stand" in said
    assert "--always-reword trains all the same" in said
    other = tmp_path / "other"
    assert train(simulator.host, other, *flags, *shape, "--always-reword") == 0
    assert not (other / "screen.jsonl").exists()


def test_too_many_that_cannot_be_asked_stop_the_run_saved(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with faults(simulator, {"kind": "status", "status": 500, "rate": 0.7, "first": 1_000_000}):
        assert train(simulator.host, run, *SMALL, *STEPS, "--call-attempts", "1") == 1
    assert "queries could not be asked" in capsys.readouterr().err
    assert resume(run) == 0
    assert summary(run)["screened_unknown"] == 0
