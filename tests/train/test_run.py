"""`mutagym train` from start to end: what it leaves, and what changes nothing of it."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.content_filter import ANSWER, QUERIES, said, server_that
from tests.ollama_utils.scripted import ScriptedServer
from tests.runs import (
    PASSES,
    WORLD,
    at_line,
    faults,
    interrupted_at,
    lines,
    metrics,
    outcome,
    resume,
    send_signal,
    summary,
    train,
)
from tests.train.conftest import BANDIT, FAILING, SMALL, STEPS, answers

Capture = pytest.CaptureFixture[str]


def test_a_run_leaves_what_the_docs_promise(well: Path) -> None:
    assert {path.name for path in well.iterdir()} == {
        *(".lock", "config.toml", "queries.json", "parts.json", "servers.json", "replies.sqlite"),
        *("screen.jsonl", "transitions.jsonl", "metrics.jsonl", "tb", "checkpoints"),
        *("policy.safetensors", "summary.json"),
    }
    kept = {path.name for path in (well / "checkpoints").iterdir()}
    assert kept == {"last.pt", "policy-32.safetensors", "policy-64.safetensors"}
    places = [(row, lane) for row in range(16) for lane in range(4)]
    assert [(line["row"], line["lane"]) for line in lines(well)] == places


def test_the_numbers_of_each_rollout_are_in_metrics_jsonl_and_tensorboard(whole: Path) -> None:
    """An undetermined reply is neither an answer nor a refusal; an unscored step is in no rate."""
    board = EventAccumulator(str(whole / "tb")).Reload()
    written = lines(whole, "metrics.jsonl")
    assert [line["step"] for line in written] == [32, 64]
    tags = {*written[0], *written[1]} - {"step"}
    assert {"rollout/ep_rew_mean", "train/loss", "time/fps", "calls/per_s"} <= tags
    assert set(board.Tags()["scalars"]) <= tags
    for tag in tags:
        events = {event.step: event.value for event in board.Scalars(tag)}
        numbers = {line["step"]: line[tag] for line in written if line.get(tag) is not None}
        assert events == pytest.approx(numbers, rel=1e-5)
    rollouts = [lines(whole)[:32], lines(whole)[32:]]
    for line, steps in zip(written, rollouts, strict=True):
        scored = [step for step in steps if not step["unscored"]]
        replies = [step for step in scored if step["outcome"] != "stopped"]
        answered = [
            step for step in replies if step["outcome"] == "answered" and not step["undetermined"]
        ]
        refused = sum(step["outcome"] == "refused" for step in replies)
        assert line["outcome/answered_rate"] == len(answered) / len(replies)
        assert line["outcome/refusal_rate"] == refused / len(replies)
        assert line["outcome/unscored_rate"] == (32 - len(scored)) / 32 > 0
        shorten = sum(step["mutator"] == "shorten" for step in scored)
        assert line.get("mutators/shorten", 0) == shorten / len(scored)


WAYS = {
    "lanes, three workers": ("--max-workers", "3"),
    "phased, three workers": ("--schedule", "phased", "--max-workers", "3"),
}


@pytest.mark.parametrize("way", WAYS)
def test_neither_schedule_nor_workers_change_a_run_with_failures(
    failing: EmbeddedServer, whole: Path, tmp_path: Path, way: str
) -> None:
    """That it is the same one call at a time, tests of interruptions say."""
    assert train(failing.host, tmp_path / "run", *FAILING, "--seed", "5", *WAYS[way]) == 0
    assert outcome(tmp_path / "run", "llm_calls") == outcome(whole, "llm_calls")
    assert metrics(tmp_path / "run") == metrics(whole)
    assert summary(tmp_path / "run")["schedule"] == way.partition(",")[0]


def test_neither_a_cache_nor_failures_that_pass_nor_its_own_config_change_a_run(
    simulator: EmbeddedServer, well: Path, tmp_path: Path
) -> None:
    config = ("--config", str(well / "config.toml"), "--cache", str(tmp_path / "cache"))
    dropped = {"kind": "drop", "rate": 0.04, "first": 1, "at": "body"}
    crashed = {"kind": "status", "rate": 0.03, "first": 1}
    for name, played in (("cold", (dropped, crashed)), ("warm", ())):
        with faults(simulator, *played):
            assert train(simulator.host, tmp_path / name, *config, "--call-attempts", "8") == 0
        assert outcome(tmp_path / name) == outcome(well)
    warm, cold = (summary(tmp_path / name) for name in ("warm", "cold"))
    assert cold["retries"] > 0 == summary(well)["retries"]
    assert warm["llm_calls"] == 0 < cold["llm_calls"]
    assert warm["cache_hits"] == cold["llm_calls"] - cold["retries"] + cold["cache_hits"]
    assert execute(("replay", str(tmp_path / "warm"))) == 0  # its own log has what the cache had


def test_the_weights_do_not_depend_on_the_threads_that_torch_was_given(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    given = torch.get_num_threads()
    shape = ("--num-processes", "8", "--num-steps", "16", "--encoder", "hashing", *STEPS)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            flags = (*WORLD, *PASSES, *shape, "--mutators", "noop,shorten")
            assert train(simulator.host, tmp_path / str(threads), *flags) == 0
    finally:
        torch.set_num_threads(given)
    assert outcome(tmp_path / "1") == outcome(tmp_path / "2")


@pytest.mark.parametrize(
    ("algorithm", "schedule", "written"), [("linucb", "sequential", 22), ("thompson", "phased", 50)]
)
def test_a_bandit_comes_out_the_same_by_any_schedule_and_resumed(
    failing: EmbeddedServer, tmp_path: Path, algorithm: str, schedule: str, written: int
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    flags = (*FAILING, *BANDIT, "--algorithm", algorithm)
    assert train(failing.host, whole, *flags) == 0
    interrupted_at(failing.host, run, written, *flags, "--schedule", schedule)
    assert resume(run) == 0
    assert outcome(run) == outcome(whole)
    assert metrics(run) == metrics(whole)
    assert summary(run)["algorithm"] == algorithm


@pytest.mark.usefixtures("fits_briefly")
def test_auto_is_linucb_until_ppo_takes_over(
    failing: EmbeddedServer, auto: Path, tmp_path: Path
) -> None:
    """Also where a run is made longer, and stopped, while either of them learns."""
    run, linucb = tmp_path / "run", tmp_path / "linucb"
    flags = (*SMALL, "--call-attempts", "1", *BANDIT, "--seed", "6")
    few = ("--num-env-steps", "32")
    assert train(failing.host, linucb, *flags, "--algorithm", "linucb", *few) == 0
    short = ("--algorithm", "auto", "--num-env-steps", "16", "--schedule", "sequential")
    assert train(failing.host, run, *flags, *short) == 0
    with at_line(24, send_signal):  # line 40, the 8th of PPO
        assert resume(run, *STEPS) == 130
    assert resume(run) == 0
    assert outcome(run) == outcome(auto)
    assert metrics(run) == metrics(auto)
    by_auto, by_linucb = ([x | {"not_hashed": 0} for x in lines(each)] for each in (auto, linucb))
    assert by_auto[:32] == by_linucb


def test_replies_that_a_content_filter_ended_are_an_outcome_of_their_own(
    tmp_path: Path, capsys: Capture
) -> None:
    def answer(text: str) -> tuple[int, Any]:
        return 200, said(ANSWER, "content_filter" if "garlic" in text or "whip" in text else "stop")

    run, queries = tmp_path / "run", tmp_path / "queries.txt"
    queries.write_text("\n".join(QUERIES))
    shape = ("--num-processes", "2", "--num-steps", "16", "--encoder", "hashing:64", *STEPS)
    flags = ("--target-model", "m", *shape, *PASSES, "--queries", str(queries), "--held-out", "0")
    with server_that(answer) as server:
        assert train(server.host, run, *flags, "--always-reword") == 0
    outcomes = [line["outcome"] for line in lines(run)]
    filtered = outcomes.count("filtered")
    assert 0 < filtered == summary(run)["filtered_steps"] < len(outcomes)
    printed = capsys.readouterr().out
    assert "first rollouts           last rollouts" in printed
    assert f"{filtered} replies were ended by a content filter" in printed
    last = metrics(run)[-1]
    assert last["outcome/filtered_rate"] == outcomes[32:].count("filtered") / 32
    assert last["outcome/filtered_rate"] + last["outcome/answered_rate"] == 1


def test_a_run_whose_every_call_fails_stops_saved_and_goes_on_when_the_server_is_back(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    with faults(simulator, {"kind": "status", "rate": 1}):
        flags = (*SMALL, "--num-env-steps", "32", "--call-attempts", "1", "--always-reword")
        assert train(simulator.host, run, *flags) == 1
    found = summary(run)
    *_, how, last = capsys.readouterr().err.strip().splitlines()
    assert how == f"to go on: mutagym train --resume {run} --ollama-host {simulator.host}"
    assert last == f"mutagym: {found['stopped']}"
    assert "100% of the last 32 steps could not be scored" in last
    assert "ServerFaultError" in last
    assert (found["unscored_rate"], found["success_rate_end"]) == (1, None)
    assert (run / "policy.safetensors").exists()
    failed = lines(run)
    assert resume(run, *STEPS) == 0
    assert lines(run)[:32] == failed
    assert summary(run)["unscored_steps"] == 32


@pytest.mark.parametrize(("algorithm", "enough"), [("ppo", 40), ("linucb", 2)])
def test_a_query_that_cannot_be_embedded_stops_a_run_which_goes_on_later(
    tmp_path: Path, capsys: Capture, algorithm: str, enough: int
) -> None:
    """Without an embedding there is no first observation, and a bandit has no features."""
    embedded, left = count(), [enough]

    def breaks_down(body: dict[str, Any]) -> tuple[int, object]:
        if "input" in body and next(embedded) >= left[0]:
            return 500, {"error": "out of memory"}
        return answers(body)

    run, few = tmp_path / "run", ("--encoder", "ollama:m", "--mutators", "noop", "--max-steps", "1")
    flags = ("--target-model", "m", "--num-processes", "4", "--num-steps", "4", *few)
    with ScriptedServer(breaks_down) as server:
        begin = (*flags, "--algorithm", algorithm, *STEPS, "--call-attempts", "1")
        assert train(server.host, run, *begin) == 1
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("mutagym: ")
        assert "out of memory" in last
        left[0] = 10**9
        assert resume(run) == 0
    assert summary(run)["env_steps"] == 64
