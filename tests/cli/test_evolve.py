"""`mutagym evolve` on the simulator: what it writes, what may change, how a mutator evolves."""

from __future__ import annotations

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
from tests.cli.searches import WholeSearches, resume, search
from tests.runs import metrics, read


def test_every_field_of_the_configuration_is_a_flag() -> None:
    names = {field.name.replace("_", "-") for field in fields(AsyncEvolutionConfig)}
    assert names <= set(resolved(EvolveConfig()))


def test_the_folder_has_results_prompt_and_metrics(whole: WholeSearches) -> None:
    found = whole["evolve"]
    results, history = read(found), read(found)["history"]
    assert (results["simulated"], results["seed_prompt"]) == (True, SEED_INSTRUCTIONS)
    assert results["best_fitness"] >= results["seed_fitness"]
    assert [record["generation"] for record in history] == [0, 1, 2, 3]
    assert (found / "best_prompt.txt").read_text() == results["best_prompt"] + "\n"
    held_out = results["held_out"]
    assert held_out["low"] <= held_out["difference"] <= held_out["high"]
    means = [record["mean_fitness"] for record in history]
    assert [line["evolve/mean_fitness"] for line in metrics(found)] == means
    board = EventAccumulator(str(found / "tb")).Reload().Scalars("evolve/mean_fitness")
    assert [event.value for event in board] == pytest.approx(means)


def test_config_toml_says_all_that_preset_and_defaults_said_and_begins_the_same_search(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("--preset", "conservative", "--max-generations", "0", "--async-timeout", "70")
    run = search("evolve", simulator.host, tmp_path / "run", *flags)
    table = tomllib.loads((run / "config.toml").read_text())
    keys = ("async-batch-size", "max-concurrent-requests", "elite-size", "call-timeout-s")
    assert [table[key] for key in keys] == [10, 5, 2, 70]
    again = ("--config", str(run / "config.toml"), "--run-dir", str(tmp_path / "again"))
    assert execute(("evolve", *again)) == 0
    assert read(tmp_path / "again") == read(run)


def test_an_evolution_may_be_made_longer_and_shorter_and_says_why_it_ended(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = search("evolve", simulator.host, tmp_path / "run", "--max-generations", "1")
    resume("evolve", folder, "--max-generations", "3")
    assert (read(folder), metrics(folder)) == (read(whole["evolve"]), metrics(whole["evolve"]))
    resume("evolve", folder, "--max-generations", "60", "--patience", "5")
    assert 5 < read(folder)["generations"] < 61
    assert "Ended: no better prompt in 5 generations." in capsys.readouterr().out
    resume("evolve", folder, "--max-generations", "0")
    assert read(folder)["generations"] == len(metrics(folder)) == 1


def test_the_instruction_of_a_mutator_evolves_on_a_training_run_and_the_winner_is_a_mutator(
    simulator: EmbeddedServer,
    trained_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, server = tmp_path / "run", ("--ollama-host", simulator.host)
    of_mutator = ("evolve", "--mutator", "paraphrase", "--run", str(trained_run))
    small = ("--population-size=4", "--max-generations=1", "--panel-size=10", "--held-out=0.1")
    assert execute((*of_mutator, *server, *small, "--run-dir", str(run))) == 0
    said = " ".join(capsys.readouterr().out.split())
    results, table = read(run), tomllib.loads((run / "config.toml").read_text())
    of_run = [table[key] for key in ("encoder", "intent-threshold", "target-model")]
    assert of_run == ["hashing", 0.1, "sim-target"]
    for name in ("held_out", "adopted"):
        assert results[name]["low"] <= results[name]["difference"] <= results[name]["high"]
    assert results["held_out"]["seed"] <= results["adopted"]["seed"]
    spec = f"{run}/paraphrase_evolved.py:paraphrase_evolved"
    assert f"mutagym train --mutators {spec}" in said
    assert load_mutators((spec,))[0].prompt("Why?", (), 0).system == results["best_prompt"]
    calls = simulator.stats()["calls"]
    resume("evolve", run)
    assert (simulator.stats()["calls"], read(run)) == (calls, results)
    for words, line in (
        (("evolve", "--run", str(trained_run), *server), "--run is for a mutator that evolves"),
        ((*of_mutator, *server, "--task", "mine.jsonl"), "--task and --mutator: "),
        (of_mutator, "names hosts (--ollama-host"),
        (("evolve", "--mutator", "noop", *of_mutator[3:], *server), "'noop' has no instruction"),
    ):
        assert execute(words) == 2
        assert line in capsys.readouterr().err
