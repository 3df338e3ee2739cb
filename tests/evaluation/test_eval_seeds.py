"""`mutagym eval -p` of a training of several seeds: all play as one algorithm."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from evaluation.report import report
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import agent, results
from tests.runs import PASSES, WORLD, read, train

SMALL = ("--num-processes", "4", "--num-steps", "8", "--num-env-steps", "32", *PASSES)


@pytest.fixture(scope="module")
def training(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of seeds 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("runs") / "three"
    shape = (*WORLD, *SMALL, "--encoder", "hashing:16", "--seeds", "3")
    assert train(simulator.host, folder, *shape) == 0
    return folder


def rows(found: dict[str, Any], team: str) -> dict[str | None, dict[str, Any]]:
    return {row["policy"]: row for row in found["rates"] if row["team"] == team}


def test_every_seed_plays_all_queries_as_alone_and_all_together_are_one_policy(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = ("-p", str(training), "-p", str(training / "seed-1"), "--baselines", "noop")
    place = ("--run-dir", str(tmp_path), "--episodes", "12")
    assert execute(("eval", "--trust-run", *policies, *place)) == 0
    played = read(tmp_path)
    names = [f"three/seed-{k}" for k in range(3)]
    assert [each["name"] for each in played["teams"]] == [*names, "seed-1", "noop"]
    assert [each.get("seeds_of") for each in played["teams"]] == ["three"] * 3 + [None] * 2
    by_team = [
        [row | {"team": 0} for row in played["episodes"] if row["team"] == team]
        for team in range(5)
    ]
    assert by_team[1] == by_team[3]
    found = read(tmp_path, "report.json")
    seeds = rows(found, "three")
    assert list(seeds) == [None, "seed-0", "seed-1", "seed-2"]
    assert (seeds[None]["success"]["n"], seeds[None]["success"]["queries"]) == (36, 12)
    means = [seeds[f"seed-{k}"]["return"]["mean"] for k in range(3)]
    assert seeds[None]["return"]["mean"] == pytest.approx(sum(means) / 3)
    pairs = {(each["team"], each["policy"]): each["success"] for each in found["comparisons"]}
    assert set(pairs) == {*(("three", name) for name in seeds), ("seed-1", None)}
    assert (pairs["three", None]["p"], seeds[None]["success"]["low"]) == (None, None)
    assert pairs["three", "seed-1"]["p"] == pairs["seed-1", None]["p"]
    assert (found["several_seeds"], found["one_seed"]) == (True, ["seed-1"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Of a training of several seeds" in shown
    assert "seed-1: one seed; no interval holds for other seeds" in shown


def test_where_one_policy_is_asked_for_a_seed_is_to_be_named(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ("ask", "--policy", str(training), "How do I fold a crane?"),
        ("eval", "-p", f"{training},proportion=0.5", "-p", "noop,proportion=0.5", "--agents", "2"),
    ):
        assert execute((*arguments, "--trust-run")) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"name one of them, such as '{training}/seed-0'" in line
    fewer = shutil.copytree(training, tmp_path / "fewer")
    shutil.rmtree(fewer / "seed-1")
    assert execute(("eval", "-p", str(fewer), "--trust-run")) == 2
    assert f"'{fewer}/seed-1' is not a run" in capsys.readouterr().err


def test_from_five_seeds_on_the_interval_holds_other_seeds_and_students_stands_beside_it() -> None:
    """Of six seeds, each of which answers 24 queries of 40; noop answers none."""
    seeds = {
        f"a/seed-{k}": [[agent(f"seed-{k}", success=query % 5 < 3)] for query in range(40)]
        for k in range(6)
    }
    none = {"noop": [[agent(success=False)]] * 40}
    written = results({**seeds, **none}, asked=tuple(seeds), baselines=("noop",))
    for team in written["teams"][:-1]:
        team |= {"seeds_of": "a", "trained_on": "m"}
    found = report(written, power=0.1)
    row = rows(found, "a")[None]["success"]
    assert row["rate"] == pytest.approx(0.6)
    assert row["low"] < 0.4
    assert row["high"] > 0.6
    (note,) = [line for line in found["notes"] if "a: success" in line]
    assert "assumes nothing about other seeds; Student's interval, which assumes" in note
    assert found["comparisons"][0]["queries_needed"] is None
