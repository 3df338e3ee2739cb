"""What results.json says of a policy that fails: the same whatever way it was stepped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute

POLICIES = """
class First:
    def __init__(self, mutators, seed):
        self.seed = seed

class Raises(First):
    def step(self, view):
        try:
            return {}[view.query]
        except KeyError as error:
            raise RuntimeError(f"no idea for {view.query}") from error

class NoNumber(First):
    def step(self, view):
        return "shorten"

class Exits(First):
    def step(self, view):
        raise SystemExit(3)

class Unmade(First):
    def __init__(self, mutators, seed):
        if seed > 9:
            raise ValueError("not today")
    def step(self, view):
        return 0

class Unsendable(First):
    def step(self, view):
        class Odd(Exception):
            pass
        raise Odd("odd")
"""
ODD = """
class Odd:
    def __init__(self, mutators, seed):
        pass
    def step(self, view):
        raise ValueError("no such file: \\udcff")
"""
EMBEDDED = ("eval", "--ollama-host", "embedded", "--time-scale", "0", "--encoder", "hashing:64")


def errors(folder: Path, *flags: str) -> list[str]:
    """The error of each episode of an evaluation on a simulator of its own."""
    return [episode["error"] for episode in episodes(folder, *flags)]


def episodes(folder: Path, *flags: str) -> list[dict[str, Any]]:
    """The episodes of an evaluation on a simulator of its own."""
    more = ("--baselines", "", "--run-dir", str(folder), "--max-unscored", "1")
    assert execute((*EMBEDDED, *more, *flags)) == 0
    told: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["episodes"]
    return told


def test_a_policy_that_fails_tells_the_same_wherever_it_stepped(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POLICIES)
    names = ("Raises", "NoNumber", "Exits", "Unmade", "Unsendable")
    flags = [flag for name in names for flag in ("-p", f"class={tmp_path / 'mine.py'}:{name}")]
    told = [
        errors(tmp_path / wrapper, *flags, "--agents", "2", "--episodes", "2", f"--policy-wrapper={wrapper}")
        for wrapper in ("thread", "process")
    ]
    assert all(told[0])
    assert told[0] == told[1]


def faults(folder: Path, rate: float) -> tuple[str, ...]:
    """Flags: calls to the model that chooses fail at this rate, and are not repeated."""
    file = folder / "faults.json"
    file.write_text(json.dumps([{"kind": "error_500", "rate": rate, "model": "sim-judge"}]))
    return "-p", "llm:sim-judge", "--faults", str(file), "--call-attempts", "1", "--episodes", "3"


def test_where_every_call_of_a_policy_fails_its_agents_are_unscored_and_the_errors_name_no_address(
    tmp_path: Path,
) -> None:
    flags = (*faults(tmp_path, 1.0), "--agents", "3", "--jobs")
    told = [episodes(tmp_path / jobs, *flags, jobs) for jobs in ("1", "9")]
    assert told[0] == told[1]
    for agent in [agent for episode in told[0] for agent in episode["agents"]]:
        assert (agent["status"], agent["steps"], agent["unscored_steps"]) == ("unscored", 0, 8)
        assert all("ServerFaultError" in error and "127.0.0.1" not in error for error in agent["errors"])


def test_a_choice_whose_call_failed_is_asked_for_again_and_nobody_else_waits_or_loses_by_it(
    tmp_path: Path,
) -> None:
    more = ("--agents", "4", "-p", "noop,proportion=0.5", "-p", "llm:sim-judge,proportion=0.5")
    _, _, *flags = faults(tmp_path, 0.5)
    told = episodes(tmp_path / "run", *flags, *more)
    agents = [agent for episode in told for agent in episode["agents"]]
    assert {episode["status"] for episode in told} == {"done"}
    assert all(agent["status"] == "scored" for agent in agents if agent["policy"] == "noop")
    asked = [agent for agent in agents if agent["policy"] != "noop"]
    assert sum(agent["unscored_steps"] for agent in asked) > 0
    for agent in asked:
        assert agent["calls"]["choices"] == agent["steps"] + agent["unscored_steps"]
        assert len(agent["errors"]) == min(agent["unscored_steps"], 3)


def test_an_evaluation_stops_when_most_choices_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (*faults(tmp_path, 1.0), "--baselines", "", "--run-dir", str(tmp_path / "run"))
    assert execute((*EMBEDDED, *flags)) == 1
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert "could not be scored (--max-unscored 0.5); last error: ServerFaultError" in line


def test_an_error_that_is_no_valid_text_is_told_of_nevertheless(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    told = errors(tmp_path / "run", "-p", f"class={tmp_path / 'odd.py'}:Odd", "--episodes", "2")
    assert all(error.endswith("ValueError: no such file: \\udcff\n") for error in told)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_has_seen_enough_ends_nothing_but_the_report(tmp_path: Path, form: str) -> None:
    flags = ("-p", "noop", "--baselines", "", "--episodes", "2", "--run-dir", str(tmp_path), "--format", form)
    command = [sys.executable, "-m", "cli.main", *EMBEDDED, *flags]
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        said = process.stderr.read()
    assert process.returncode == 141
    assert "mutagym:" not in said
    assert json.loads((tmp_path / "report.json").read_text())["simulated"]
