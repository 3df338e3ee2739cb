"""`mutagym eval -p` of a training of several seeds: every seed plays, and the report is of the algorithm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from evaluation.report import report
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import ACCURACY, agent, results
from tests.runs import WORLD, train

SMALL = ("--num-processes", "4", "--num-steps", "8", "--num-env-steps", "32", "--ppo-epoch", "2")


@pytest.fixture(scope="module")
def training(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of seeds 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("runs") / "three"
    shape = (*WORLD, *SMALL, "--encoder", "hashing:16", "--seeds", "3")
    assert train(simulator.host, folder, *shape) == 0
    return folder


def evaluated(folder: Path, *flags: str) -> dict[str, Any]:
    """The report of an evaluation."""
    out = folder.parent / f"{folder.name}.json"
    places = ("--run-dir", str(folder), "--json", str(out))
    assert execute(("eval", "--trust-run", *flags, *places, "--episodes", "12")) == 0
    told: dict[str, Any] = json.loads(out.read_text())
    return told


def rows(told: dict[str, Any], team: str) -> dict[str | None, dict[str, Any]]:
    return {row["policy"]: row for row in told["rates"] if row["team"] == team}


def test_every_seed_plays_all_queries_and_all_together_are_one_policy(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = evaluated(tmp_path / "eval", "-p", str(training), "--baselines", "noop")
    found = rows(told, "three")
    assert list(found) == [None, "seed-0", "seed-1", "seed-2"]
    assert found[None]["success"]["n"] == 36
    assert found[None]["success"]["queries"] == 12
    alone = [
        evaluated(tmp_path / f"{k}", "-p", str(training / f"seed-{k}"), "--baselines", "noop")
        for k in range(3)
    ]
    for k, one in enumerate(alone):
        assert rows(one, f"seed-{k}")[None]["success"] == found[f"seed-{k}"]["success"]
        assert rows(one, f"seed-{k}")[None]["return"] == found[f"seed-{k}"]["return"]
    means = [found[f"seed-{k}"]["return"]["mean"] for k in range(3)]
    assert found[None]["return"]["mean"] == pytest.approx(sum(means) / 3)
    (line,) = told["comparisons"]
    assert (line["team"], line["against"]) == ("three", "noop")
    assert line["success"]["test"] == "Student's t over queries and seeds"
    differences = [one["comparisons"][0]["return"]["difference"] for one in alone]
    assert line["return"]["difference"] == pytest.approx(sum(differences) / 3)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Of a training of several seeds" in shown
    assert "the network of one seed" in shown
    assert (told["several_seeds"], told["one_seed"]) == (True, [])
    assert (alone[0]["several_seeds"], alone[0]["one_seed"]) == (False, ["seed-0"])


def test_a_training_of_several_seeds_may_be_what_others_are_compared_with(
    training: Path, tmp_path: Path
) -> None:
    told = evaluated(tmp_path / "eval", "-p", str(training / "seed-1"), "--baselines", f"{training},noop")
    pairs = {(line["team"], line["against"]) for line in told["comparisons"]}
    assert pairs == {("seed-1", "three"), ("seed-1", "noop"), ("noop", "three")}


def test_where_one_policy_is_asked_for_a_seed_is_named(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ("ask", "--policy", str(training), "How do I fold a crane?"),
        ("eval", "-p", f"{training},proportion=0.5", "-p", "noop,proportion=0.5", "--agents", "2"),
    ):
        assert execute((*arguments, "--trust-run")) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"name one of them, such as '{training}/seed-0'" in line
    asked = ("ask", "--policy", str(training / "seed-2"), "--trust-run", "How do I fold a crane?")
    assert execute(asked) == 0


def test_a_seed_that_is_missing_or_a_spoilt_number_is_said(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (training / "config.toml").read_text()
    for seeds, said in (
        ("4", "'seed-3' is not a run"),
        ('"x"', "has 'x' as 'seeds'"),
        ("-1", "has -1 as 'seeds'"),
    ):
        folder = tmp_path / f"spoilt{len(seeds)}{seeds[0]}"
        folder.mkdir()
        for path in training.glob("seed-*"):
            shutil.copytree(path, folder / path.name)
        (folder / "config.toml").write_text(config.replace("seeds = 3", f"seeds = {seeds}"))
        assert execute(("eval", "-p", str(folder), "--trust-run")) == 2
        assert said.replace("'seed-3'", f"'{folder}/seed-3'") in capsys.readouterr().err


def spread(*by_seed: list[bool]) -> dict[str, Any]:
    """An evaluation written by hand: each seed's successes, query by query, beside noop, which has none."""
    seeds = {f"a/seed-{k}": [[agent(f"seed-{k}", success=x)] for x in row] for k, row in enumerate(by_seed)}
    none = {"noop": [[agent(success=False)] for _ in by_seed[0]]}
    told = results({**seeds, **none}, baselines=("noop",))
    for team in told["teams"][:-1]:
        team |= {"seeds_of": "a", "trained_on": "m"}
    return told


def test_seeds_that_differ_make_the_interval_wide_and_those_that_agree_do_not() -> None:
    agree = spread(*([q % 5 < 3 for q in range(40)] for _ in range(3)))
    differ = spread(*([q % 10 < good for q in range(40)] for good in (2, 6, 10)))
    widths, differences = [], []
    for told in (agree, differ):
        found = report(told, power=0.1, accuracy=ACCURACY)
        row = rows(found, "a")[None]
        assert row["success"]["rate"] == pytest.approx(0.6)
        widths.append(row["success"]["high"] - row["success"]["low"])
        assert row["success_corrected"]["high"] - row["success_corrected"]["low"] > widths[-1] - 0.2
        (line,) = found["comparisons"]
        assert line["queries_needed"] is None
        differences.append(line["success"]["high"] - line["success"]["low"])
    for narrow, wide in (widths, differences):
        assert narrow < 0.35
        assert wide > 0.7
