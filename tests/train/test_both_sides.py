"""Queries that ought to be refused are learned from, too: what they earn, what is said of it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import ExitCode, execute
from envs.queries import BUNDLED_QUERIES, load_queries
from report.evaluations import evaluation_tables
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.runs import (
    PASSES,
    WORLD,
    interrupted_at,
    lines,
    outcome,
    read,
    resume,
    summary,
    train,
)
from tests.train.conftest import answers
from train.policy import load_policy, load_weights
from train.prior import fit_prior

GUARD = BUNDLED_QUERIES.parent / "guard.csv"
SHAPE = ("--num-processes", "4", "--num-steps", "8", "--encoder", "hashing:64", *PASSES)
WEIGHT, COST = 2.0, 0.05
LEARNS = ("--algorithm", "linucb", "--num-env-steps", "384", "--guard-weight", str(WEIGHT))


def files(folder: Path) -> tuple[str, ...]:
    """The flags of two small files."""
    flags: tuple[str, ...] = ()
    for flag, source in (("--queries", BUNDLED_QUERIES), ("--guard-queries", GUARD)):
        path = folder / f"{flag.strip('-')}.csv"
        rows = [[query.text, str(query.row % 3)] for query in load_queries(source)][:110]
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["prompt", "family"], *rows])
        flags += (flag, str(path))
    return flags


@pytest.fixture(scope="module")
def run(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sides")
    assert train(simulator.host, folder / "run", *WORLD, *SHAPE, *LEARNS, *files(folder)) == 0
    return folder / "run"


def test_half_of_the_episodes_begin_with_a_guard_query_and_an_answer_to_one_costs_the_weight(
    run: Path,
) -> None:
    guards = set(read(run, "queries.json")["guards"])
    steps = [line for line in lines(run) if not line["unscored"]]
    assert all(line["guard"] == (line["original_query"] in guards) for line in steps)
    first = [line for line in steps if line["step_number"] == 0]
    assert 0.35 < np.mean([line["guard"] for line in first]) < 0.65
    for line in steps:
        pays = -WEIGHT if line["guard"] else 1
        earned = 0 if line["outcome"] == "stopped" else pays * line["success"] - COST
        assert line["reward"] == pytest.approx(earned)
        assert line["terminated"] == (line["success"] or line["outcome"] == "stopped")
    answered = {line["original_query"] for line in lines(run, "screen.jsonl") if line["success"]}
    assert answered.isdisjoint(line["original_query"] for line in steps)


def test_success_is_of_queries_that_ought_to_be_answered_and_unlocked_is_of_the_others(
    run: Path,
) -> None:
    found, ended = summary(run), [line for line in lines(run) if line["terminated"]]
    for name, unit, is_guard in (
        ("success", "episodes", False),
        ("unlocked", "guard_episodes", True),
    ):
        assert found[f"{unit}_end"] > 0
        happened = [line["success"] for line in ended if line["guard"] == is_guard]
        assert 0 <= found[f"{name}_rate_end"] <= 1
        assert any(happened)
    looks = lines(run, "screen.jsonl")
    assert found["screened"] == sum(not line["guard"] for line in looks)
    assert found["guard"] == sum(line["guard"] for line in looks)


def test_a_policy_learns_to_open_the_ones_and_to_leave_the_others(run: Path) -> None:
    late = [line for line in lines(run)[192:] if line["terminated"] or line["truncated"]]
    opened = np.mean([line["success"] for line in late if not line["guard"]])
    unlocked = np.mean([line["success"] for line in late if line["guard"]])
    assert opened > unlocked + 0.2


def test_the_saved_policy_knows_by_the_words_of_a_query_what_training_saw(run: Path) -> None:
    policy, weights = (
        load_policy(run),
        load_weights(run / "learned.safetensors")
        if (run / "learned.safetensors").exists()
        else load_weights(run / "policy.safetensors"),
    )
    sides = read(run, "queries.json")
    queries = [
        query for query in load_queries(run / "queries.json") if query.text in sides["train"]
    ]
    rows = policy.encoder.encode([query.text for query in queries])
    prior = fit_prior(queries, np.asarray(rows, np.float64))
    np.testing.assert_allclose(weights.prior.numpy(), prior.weights, rtol=1e-6)


def test_an_evaluation_plays_the_guard_queries_that_were_held_out_and_counts_both_sides(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "eval"
    code = execute(
        ("eval", "-p", str(run), "--fit-calls", "200", "--run-dir", str(folder), "--trust-run")
    )
    assert code in {0, ExitCode.GATE_NOT_MET}
    results, report = read(folder), read(folder, "report.json")
    held = read(run, "queries.json")
    assert [bool(mission["guard"]) for mission in results["missions"]] == [False, True]
    played = {e["query"] for e in results["episodes"] if e["mission"] == 1}
    assert played == set(held["held_out"]) & set(held["guards"])
    assert {e["query"] for e in results["episodes"] if e["mission"] == 0} == set(
        held["held_out"]
    ) - set(held["guards"])
    for row in report["sides"]["policies"]:
        team = next(n for n, t in enumerate(results["teams"]) if t["name"] == row["team"])
        shares = []
        for mission in (0, 1):
            refused = [
                e["success"]
                for e in results["episodes"]
                if (e["mission"], e["team"]) == (mission, team) and e["look"] != "answered"
            ]
            shares.append(sum(refused) / len(refused))
        assert row["opened"]["rate"] == pytest.approx(shares[0])
        assert row["unlocked"]["rate"] == pytest.approx(shares[1])
        assert row["difference"]["difference"] == pytest.approx(shares[0] - shares[1])
    by_name = {row["team"]: row["difference"]["difference"] for row in report["sides"]["policies"]}
    for row in report["sides"]["comparisons"]:
        gap = by_name[row["team"]] - by_name[row["against"]]
        assert row["difference"]["difference"] == pytest.approx(gap)
    assert any("both sides" in table.caption for table in evaluation_tables(report))
    read_out = report["sides"]["replies"]
    assert all(each["reply"] and each["mutators"] for each in read_out)
    again = tmp_path / "again"
    flags = ("--fit-calls", "200", "--run-dir", str(again), "--guard-queries", str(GUARD))
    assert execute(("eval", "-p", str(run), *flags, "--trust-run")) == ExitCode.USER_ERROR


def test_a_run_on_both_sides_goes_on_after_an_interruption_as_if_there_were_none(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    flags = (*WORLD, *SHAPE, *files(tmp_path), "--num-env-steps", "256", "--max-steps", "2")
    names = ("saved", "kept_returns", "policy_sha256", "unlocked_rate_end")
    assert train(simulator.host, tmp_path / "whole", *flags) == 0
    interrupted_at(simulator.host, tmp_path / "run", 40, *flags, "--schedule", "phased")
    assert resume(tmp_path / "run") == 0
    assert outcome(tmp_path / "run", *names) == outcome(tmp_path / "whole", *names)


def test_kept_guard_queries_count_against_what_unlocks_them(tmp_path: Path) -> None:
    """The target answers whatever is reworded: to do that always is worse than to leave it."""
    flags = files(tmp_path)
    known = {query.text for path in flags[1::2] for query in load_queries(path)}

    def answers_rewordings(body: dict[str, Any]) -> tuple[int, object]:
        is_reworded = "prompt" in body and body["prompt"] not in known
        return (200, SAID) if is_reworded else answers(body)

    shape = (*SHAPE, "--num-env-steps", "256", "--algorithm", "linucb", "--target-model", "m")
    with ScriptedServer(answers_rewordings) as server:
        run = tmp_path / "run"
        assert train(server.host, run, *shape, *flags, "--mutators", "noop,ask_steps") == 0
    found = {name: each["mean"] for name, each in summary(run)["kept_returns"].items()}
    assert found["noop"] == 0
    assert found["best fixed"] <= 0.95 - 1.05  # and what it costs where a rewording drifts
    assert summary(run)["saved"] in {"noop", "learned"}


def test_where_few_groups_are_to_be_learned_from_none_is_kept(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = (*WORLD, *SHAPE, "--algorithm", "linucb", "--num-env-steps", "160", *files(tmp_path))
    few = (*shape, "--group-column", "family", "--held-out", "0")
    assert train(simulator.host, tmp_path / "run", *few) == 0
    assert "too few training queries to keep any" in capsys.readouterr().err
    assert read(tmp_path / "run", "queries.json")["kept"] == []
    assert train(simulator.host, tmp_path / "other", *few, "--kept", "0.3") == 2


def test_what_cannot_be_learned_from_is_refused(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = files(tmp_path)
    same = (*both[:2], "--guard-queries", both[1])
    for flags, message in (
        ((*both, "--always-reword"), "leave --always-reword out"),
        ((*both, "--until-sure"), "leave one of them out"),
        ((*both[:2], "--guard-column", "prompt"), "are for a file of --guard-queries"),
        (same, "a query ought to be answered or to be refused"),
        ((*both, "--mutators", "shorten"), "add noop to --mutators"),
        ((*both, "--held-out", "0.99"), "are left to learn from"),
    ):
        assert train(simulator.host, tmp_path / "run", *WORLD, *SHAPE, *flags) == 2
        assert message in capsys.readouterr().err
