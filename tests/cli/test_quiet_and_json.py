"""What all commands share: `--quiet`, `--json`, what they will cost, completion."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.cli.searches import COMMANDS, WholeSearches, search
from tests.evaluation.evaluations import evaluate
from tests.runs import read, summary, train

SMALL = (
    *("--target-model", "sim-target", "--mutator-model", "sim-mutator", "--encoder", "hashing:64"),
    *("--num-processes", "4", "--num-steps", "8", "--num-env-steps", "64", "--ppo-epoch", "1"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_quiet_search_prints_its_results_alone_and_as_json_where_that_is_asked(
    whole: WholeSearches, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    run = whole.copy_of(command, tmp_path / "run")
    assert execute((command, "--quiet", "--resume", str(run), "--trust-run")) == 0
    table = capsys.readouterr()
    assert table.err == ""
    assert execute((command, "--resume", str(run), "--trust-run", "--json", "-", "--quiet")) == 0
    told = capsys.readouterr()
    assert told.err == ""
    report = json.loads(told.out)
    assert report == read(run, "report.json")
    if command == "select":
        assert all(f"{row['score']:.3f}" in table.out for row in report["combinations"])
    else:
        assert str(report["best_prompt"]) in table.out


def test_a_training_and_an_evaluation_are_quiet_and_tell_json_too(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(simulator.host, tmp_path / "run", *SMALL, "--quiet", "--json", "-") == 0
    told = capsys.readouterr()
    assert (json.loads(told.out), told.err) == (summary(tmp_path / "run"), "")
    flags = ("--policy", "noop", "--episodes", "2", "--json=-", "--quiet")
    assert evaluate(simulator, tmp_path / "eval", *flags) == 0
    told = capsys.readouterr()
    assert (json.loads(told.out), told.err) == (read(tmp_path / "eval", "report.json"), "")


@pytest.mark.parametrize("command", ["bench", "rescore"])
def test_what_a_users_function_prints_does_not_spoil_the_json(
    simulator: EmbeddedServer,
    trained_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "print('imported')\ndef said(query, reply):\n    print('called')\n    return 'answered'\n"
    )
    small = ("--num-processes", "2", "--num-steps", "2", "--schedules", "lanes")
    host = ("--ollama-host", simulator.host, "--target-model", "sim-target")
    flags = {"bench": (*host, *small), "rescore": (str(trained_run),)}[command]
    capsys.readouterr()
    assert execute((command, *flags, "--reward", f"{code}:said", "--json", "-")) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found[0] if command == "bench" else found)["simulated"] is True
    assert "imported" in told.err
    assert "called" in told.err


def test_a_quiet_command_tells_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(("--quiet", "train", "--queries", "missing.csv")) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert "missing.csv" in told.err


def announced(told: str) -> int:
    """The calls that the line about the run folder tells."""
    (most,) = re.findall(r"^run folder .*, at most ([\d,]+) calls$", told, re.MULTILINE)
    return int(most.replace(",", ""))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_search_says_beforehand_how_many_calls_it_makes_at_most(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    all_of_them = ("--selector", "brute_force") if command == "select" else ()
    run = search(command, simulator.host, tmp_path / "run", *all_of_them)
    spent = summary(run)
    made = spent["calls"] + spent["cache_hits"]
    most = announced(capsys.readouterr().err)
    assert made == most if command == "select" else 0.3 * most < made <= most


@pytest.mark.parametrize(
    "flags",
    [
        ("-p", "fixed:noop", "--mutators", "noop", "--steps", "1"),
        ("-p", "best_fixed", "-p", "random", "--mutators", "noop,paraphrase,shorten", "--fit-calls", "60"),
        ("-p", "llm:sim-target", "--agents", "2", "--reward", "judge", "--judge-model", "sim-judge"),
    ],
    ids=["one call an episode", "fitted", "a model chooses, and one judges"],
)
def test_an_evaluation_says_beforehand_how_many_calls_it_makes_at_most(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    assert evaluate(simulator, tmp_path / "run", "--episodes", "6", *flags) == 0
    spent = summary(tmp_path / "run")
    made, most = spent["calls"] + spent["cache_hits"], announced(capsys.readouterr().err)
    assert (spent["calls"], made) == (6, most) if "--steps" in flags else made <= most


def test_completion_is_installed_for_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert execute(("--install-completion", "--shell", "bash")) == 0
    (script,) = tmp_path.rglob("completions/mutagym")
    assert str(script) in capsys.readouterr().out
    text = script.read_text()
    assert all(word in text for word in ("evolve", "--num-processes", "--population-size"))
