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
from records.settings import resolved
from search.evolution import AsyncEvolutionConfig
from search.task import SEED_INSTRUCTIONS
from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, search
from tests.runs import metrics, read


@pytest.fixture
def found(whole: WholeSearches) -> Path:
    """A small evolution."""
    return whole["evolve"]


def test_every_field_of_the_configuration_is_a_flag() -> None:
    flags = resolved(EvolveConfig())
    missing = [each.name for each in fields(AsyncEvolutionConfig) if each.name.replace("_", "-") not in flags]
    assert not missing


def test_what_is_found_is_in_the_folder(found: Path) -> None:
    results = read(found)
    assert results["simulated"] is True
    assert results["seed_prompt"] == SEED_INSTRUCTIONS
    assert results["best_fitness"] >= results["seed_fitness"]
    assert [record["generation"] for record in results["history"]] == [0, 1, 2, 3]
    assert (found / "best_prompt.txt").read_text() == results["best_prompt"] + "\n"
    assert results["held_out"]["low"] <= results["held_out"]["difference"] <= results["held_out"]["high"]
    assert read(found, "summary.json")["wall_s"] > 0


def test_where_each_prompt_came_from_is_kept(found: Path) -> None:
    results = read(found)
    births = results["births"]
    assert len(births) >= results["genomes"]
    assert {results["best_prompt"], results["seed_prompt"]} <= {birth["prompt"] for birth in births}
    for place, birth in enumerate(births):
        assert bool(birth["parents"]) == bool(birth["steps"])
        assert all(parent < place for parent in birth["parents"])
    assert "births" not in read(found, "report.json")


def test_the_report_is_a_file_of_its_own_where_that_is_wanted(whole: WholeSearches, tmp_path: Path) -> None:
    run = whole.copy_of("evolve", tmp_path / "run")
    assert (
        execute(("evolve", "--resume", str(run), "--trust-run", "--json", str(tmp_path / "report.json"))) == 0
    )
    assert read(tmp_path, "report.json") == read(run, "report.json")


def test_metrics_are_written_by_generation_and_to_tensorboard(found: Path) -> None:
    history, lines = read(found)["history"], metrics(found)
    assert [line["evolve/best_fitness"] for line in lines] == [each["best_fitness"] for each in history]
    board = EventAccumulator(str(found / "tb")).Reload()
    told = [(event.step, event.value) for event in board.Scalars("evolve/mean_fitness")]
    assert told == [(each["generation"], pytest.approx(each["mean_fitness"])) for each in history]


def test_a_resumed_search_hides_from_tensorboard_what_the_first_part_wrote(found: Path) -> None:
    assert execute(("evolve", "--resume", str(found), "--trust-run")) == 0
    board = EventAccumulator(str(found / "tb")).Reload()
    assert [event.step for event in board.Scalars("evolve/mean_fitness")] == [0, 1, 2, 3]


def test_the_config_says_all_that_the_preset_said(simulator: EmbeddedServer, tmp_path: Path) -> None:
    flags = ("--preset", "conservative", "--max-generations", "0")
    table = tomllib.loads(
        (search("evolve", simulator.host, tmp_path / "run", *flags) / "config.toml").read_text()
    )
    assert table["async-batch-size"] == 10
    assert table["max-concurrent-requests"] == 5
    assert table["max-generations"] == 0
    again = ("--config", str(tmp_path / "run" / "config.toml"), "--run-dir", str(tmp_path / "again"))
    assert execute(("evolve", *again)) == 0
    assert read(tmp_path / "again") == read(tmp_path / "run")


def test_the_config_says_which_elite_a_small_population_has(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    told = ("evolve", "--ollama-host", simulator.host, "--target-model", "sim-solver")
    small = ("--population-size", "4", "--panel-size", "2", "--max-generations", "0")
    assert execute((*told, *small, "--run-dir", str(tmp_path / "run"))) == 0
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["elite-size"] == 2


def test_the_table_says_why_the_search_ended_and_how_much_of_it_is_shown(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--panel-size", "3", "--max-generations", "60", "--patience", "14")
    run = search("evolve", simulator.host, tmp_path / "run", *flags)
    told, total = " ".join(capsys.readouterr().out.split()), read(run)["generations"]
    assert 14 < total < 61
    assert f"Ended: no better prompt in 14 generations. 12 of {total} generations shown" in told
    assert "best, solved %" in told
    assert execute(("evolve", "--resume", str(run), "--trust-run", "--max-generations", "0")) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "prompts in 1 generation, 0 of them unscored, each on 3 problems" in told
    assert "Ended: all generations are done. Solved" in told


def test_results_do_not_depend_on_how_many_calls_are_under_way(
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
    assert read(run)["seed_prompt"] in {"Think step by step. Answer: last.", "Answer at once."}
    assert read(run)["genomes"] == 6


def test_without_a_host_the_simulator_solves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    small = ("--population-size", "2", "--max-generations", "1", "--panel-size", "10", "--time-scale", "0")
    assert execute(("evolve", *small, "--run-dir", str(tmp_path / "run"))) == 0
    told = capsys.readouterr()
    assert told.err.startswith("SIMULATED: no --ollama-host")
    assert "generations: 2 of 2, best" in told.err
    assert told.out.startswith("SIMULATED: these figures are of the simulator")
    assert "held-out problems" in told.out
    assert "best prompt:" in told.out
    assert "sim-solver" in (tmp_path / "run" / "config.toml").read_text()


def test_a_users_task_and_scorer_are_what_counts(simulator: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("".join(f'{{"question": "Say {k}."}}\n' for k in range(30)))
    (tmp_path / "mine.py").write_text('def grade(problem, reply):\n    print("graded")\n    return 0.25\n')
    told = ("--task", str(tmp_path / "mine.jsonl"), "--scorer", f"{tmp_path / 'mine.py'}:grade")
    run = search("evolve", simulator.host, tmp_path / "run", *told, "--panel-size", "5", "--held-out", "0.2")
    assert read(run)["best_fitness"] == 0.25


def test_what_a_users_file_prints_is_no_part_of_the_report(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.jsonl").write_text("".join(f'{{"question": "Say {k}."}}\n' for k in range(30)))
    (tmp_path / "mine.py").write_text('print("loaded")\ndef grade(problem, reply):\n    return 0.25\n')
    told = ("--task", str(tmp_path / "mine.jsonl"), "--scorer", f"{tmp_path / 'mine.py'}:grade")
    small = ("--panel-size", "5", "--max-generations", "0", "--format", "json")
    run = search("evolve", simulator.host, tmp_path / "run", *told, *small)
    captured = capsys.readouterr()
    assert json.loads(captured.out) == read(run, "report.json")
    assert captured.err.startswith("loaded\n")


def test_the_timeout_is_one_setting_whichever_flag_gave_it(simulator: EmbeddedServer, tmp_path: Path) -> None:
    few = ("--max-generations", "0", "--panel-size", "2")
    run = search("evolve", simulator.host, tmp_path / "run", *few, "--async-timeout", "70")
    assert tomllib.loads((run / "config.toml").read_text())["call-timeout-s"] == 70
    assert execute(("evolve", "--resume", str(run), "--trust-run", "--call-timeout-s", "90")) == 0
    assert tomllib.loads((run / "config.toml").read_text())["call-timeout-s"] == 90


def test_performance_is_logged_where_that_is_asked_for(simulator: EmbeddedServer, tmp_path: Path) -> None:
    few = ("--max-generations", "1")
    loud = search("evolve", simulator.host, tmp_path / "a", *few, "--detailed-performance-logging")
    quiet = search("evolve", simulator.host, tmp_path / "b", *few, "--no-detailed-performance-logging")
    assert "generation 1: best" in (loud / "log.txt").read_text()
    assert not (quiet / "log.txt").exists()


def test_the_first_line_tells_how_many_calls_it_takes_at_most(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = search("evolve", simulator.host, tmp_path / "run", "--max-generations", "0")
    told = capsys.readouterr().err.splitlines()[0]
    assert told == f"run folder {run}: 6 prompts, 0 generations, 15 problems of 200, at most 183 calls"
    assert read(run, "summary.json")["calls"] <= 102 + 2 * 40
