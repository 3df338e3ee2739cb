"""`mutagym evolve` on the simulator: what it finds, what it writes, what it says."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from cli.evolve import EvolveConfig
from cli.main import execute
from mutators.registry import load_mutators
from records.settings import resolved
from search.evolution_config import AsyncEvolutionConfig
from search.task import SEED_INSTRUCTIONS
from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, search
from tests.runs import WORLD, metrics, read, train


@pytest.fixture
def found(whole: WholeSearches) -> Path:
    """The folder of a small evolution."""
    return whole["evolve"]


def test_every_field_of_the_configuration_is_a_flag() -> None:
    names = {field.name.replace("_", "-") for field in fields(AsyncEvolutionConfig)}
    assert names <= set(resolved(EvolveConfig()))


def test_the_folder_has_results_prompt_report_and_metrics(found: Path) -> None:
    results, history = read(found), read(found)["history"]
    assert results["simulated"] is True
    assert results["seed_prompt"] == SEED_INSTRUCTIONS
    assert results["best_fitness"] >= results["seed_fitness"]
    assert [record["generation"] for record in history] == [0, 1, 2, 3]
    assert (found / "best_prompt.txt").read_text() == results["best_prompt"] + "\n"
    held_out = results["held_out"]
    assert held_out["low"] <= held_out["difference"] <= held_out["high"]
    assert {**read(found, "report.json"), "births": results["births"]} == results
    assert read(found, "summary.json")["wall_s"] > 0
    means = [record["mean_fitness"] for record in history]
    assert [line["evolve/mean_fitness"] for line in metrics(found)] == means
    board = EventAccumulator(str(found / "tb")).Reload().Scalars("evolve/mean_fitness")
    assert [event.value for event in board] == pytest.approx(means)


def test_the_config_says_all_that_the_preset_and_defaults_said(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("--preset", "conservative", "--max-generations", "0", "--async-timeout", "70")
    run = search("evolve", simulator.host, tmp_path / "run", *flags)
    table = tomllib.loads((run / "config.toml").read_text())
    assert table["async-batch-size"] == 10
    assert table["max-concurrent-requests"] == 5
    assert table["elite-size"] == 2
    assert table["call-timeout-s"] == 70
    again = ("--config", str(run / "config.toml"), "--run-dir", str(tmp_path / "again"))
    assert execute(("evolve", *again)) == 0
    assert read(tmp_path / "again") == read(run)


def test_the_tables_say_why_it_ended_and_what_it_cost_at_most(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--max-generations", "60", "--patience", "14")
    run = search("evolve", simulator.host, tmp_path / "run", *flags)
    said = capsys.readouterr()
    first = said.err.splitlines()[0]
    assert first == (f"run folder {run}: 6 prompts, 60 generations, 15 problems of 200, at most 6,669 calls")
    assert 14 < read(run)["generations"] < 61
    assert "Ended: no better prompt in 14 generations." in " ".join(said.out.split())
    assert "held-out problems" in said.out
    assert "best prompt:" in said.out


def test_results_do_not_depend_on_how_many_calls_are_in_flight(
    simulator: EmbeddedServer, found: Path, tmp_path: Path
) -> None:
    alone = search("evolve", simulator.host, tmp_path / "run", "--no-enable-async-evaluation")
    assert (alone / "results.json").read_bytes() == (found / "results.json").read_bytes()


def test_a_search_begins_with_the_users_prompts_as_text_or_file(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("Think step by step. Answer: last.\n")
    flags = ("--seed-prompt", str(tmp_path / "mine.txt"), "--seed-prompt", "Answer at once.")
    run = search("evolve", simulator.host, tmp_path / "run", *flags, "--max-generations", "0")
    seeds = [birth["prompt"] for birth in read(run)["births"] if not birth["parents"]]
    assert seeds == ["Think step by step. Answer: last.", "Answer at once."]


def test_without_a_host_the_simulator_solves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    small = ("--population-size", "2", "--max-generations", "1", "--panel-size", "10")
    flags = (*small, "--time-scale", "0", "--run-dir", str(tmp_path / "run"))
    assert execute(("evolve", *flags)) == 0
    said = capsys.readouterr()
    assert said.err.startswith("SIMULATED: no --ollama-host")
    assert "generations: 2 of 2, best" in said.err
    assert said.out.startswith("SIMULATED: these figures are of the simulator")
    assert "sim-solver" in (tmp_path / "run" / "config.toml").read_text()


def test_a_users_task_and_scorer_count_and_what_they_print_is_no_part_of_the_report(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = "".join(f'{{"question": "Say {k}."}}\n' for k in range(30))
    (tmp_path / "mine.jsonl").write_text(problems)
    code = 'print("loaded")\ndef grade(problem, reply):\n    print("graded")\n    return 0.25\n'
    (tmp_path / "mine.py").write_text(code)
    own = ("--task", str(tmp_path / "mine.jsonl"), "--scorer", f"{tmp_path / 'mine.py'}:grade")
    flags = ("--panel-size", "5", "--max-generations", "0", "--format", "json")
    run = search("evolve", simulator.host, tmp_path / "run", *own, *flags)
    said = capsys.readouterr()
    assert read(run)["best_fitness"] == 0.25
    assert json.loads(said.out) == read(run, "report.json")
    assert said.err.startswith("loaded\n")


def test_performance_is_logged_if_that_is_asked_for(simulator: EmbeddedServer, tmp_path: Path) -> None:
    for flag, is_logged in (("", True), ("no-", False)):
        flags = ("--max-generations", "0", f"--{flag}detailed-performance-logging")
        run = search("evolve", simulator.host, tmp_path / f"run{flag}", *flags)
        assert (run / "log.txt").exists() is is_logged


def test_the_instruction_of_a_mutator_evolves_on_a_training_run_and_the_winner_is_a_mutator(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, run = tmp_path / "trained", tmp_path / "run"
    short = ("--num-processes", "4", "--num-steps", "4", "--num-env-steps", "16", "--ppo-epoch", "1")
    assert train(simulator.host, trained, *WORLD, *short, "--encoder", "hashing") == 0
    of_mutator = ("evolve", "--mutator", "paraphrase", "--run", str(trained))
    flags = ("--population-size", "4", "--max-generations", "1", "--panel-size", "10", "--held-out", "0.1")
    server = ("--ollama-host", simulator.host)
    assert execute((*of_mutator, *server, *flags, "--run-dir", str(run))) == 0
    said = " ".join(capsys.readouterr().out.split())
    results, table = read(run), tomllib.loads((run / "config.toml").read_text())
    assert (table["encoder"], table["intent-threshold"], table["target-model"]) == (
        "hashing",
        0.1,
        "sim-target",
    )
    for name in ("held_out", "adopted"):
        assert results[name]["low"] <= results[name]["difference"] <= results[name]["high"]
    assert results["held_out"]["seed"] <= results["adopted"]["seed"]
    spec = f"{run}/paraphrase_evolved.py:paraphrase_evolved"
    assert f"mutagym train --mutators {spec}" in said
    assert load_mutators((spec,))[0].prompt("Why?", (), 0).system == results["best_prompt"]
    calls = simulator.stats()["calls"]
    assert execute(("evolve", "--resume", str(run), *server, "--run", str(trained))) == 0
    assert simulator.stats()["calls"] == calls
    assert read(run) == results
    for told, line in (
        (("evolve", "--run", str(trained), *server), "--run is for a mutator that evolves"),
        ((*of_mutator, *server, "--task", "mine.jsonl"), "--task and --mutator: "),
        (of_mutator, "names hosts (--ollama-host"),
        (("evolve", "--mutator", "noop", *of_mutator[3:], *server), "'noop' has no instruction"),
    ):
        capsys.readouterr()
        assert execute(told) == 2
        assert line in capsys.readouterr().err
