"""What results.json says of a policy that fails: the same whatever way it was stepped."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer

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
EMBEDDED = ("--ollama-host", "embedded", "--time-scale", "0")


def episodes(folder: Path, *flags: str) -> list[dict[str, Any]]:
    """The episodes of an evaluation."""
    assert (
        execute(("eval", "--encoder", "hashing:64", "--baselines", "", "--run-dir", str(folder), *flags)) == 0
    )
    told: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["episodes"]
    return told


def server_flags(simulator: EmbeddedServer) -> tuple[str, ...]:
    return ("--ollama-host", simulator.host, "--target-model=sim-target", "--mutator-model=sim-mutator")


def test_a_policy_that_fails_tells_the_same_wherever_it_stepped(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(POLICIES)
    names = ("Raises", "NoNumber", "Exits", "Unmade", "Unsendable")
    policies = [flag for name in names for flag in ("-p", f"class={tmp_path / 'mine.py'}:{name}")]
    flags = (*server_flags(simulator), *policies, "--agents", "2", "--episodes", "2")
    told = [
        [episode["error"] for episode in episodes(tmp_path / wrapper, *flags, "--policy-wrapper", wrapper)]
        for wrapper in ("thread", "process")
    ]
    assert all(told[0])
    assert told[0] == told[1]


def test_where_every_call_of_a_policy_fails_its_agents_are_unscored_and_the_errors_name_no_address(
    tmp_path: Path,
) -> None:
    file = tmp_path / "faults.json"
    file.write_text(json.dumps([{"kind": "error_500", "rate": 1.0, "model": "sim-judge"}]))
    flags = (*EMBEDDED, "--faults", str(file), "--call-attempts", "1", "--max-unscored", "1")
    more = ("-p", "llm:sim-judge", "--episodes", "3", "--agents", "3", "--jobs")
    told = [episodes(tmp_path / jobs, *flags, *more, jobs) for jobs in ("1", "9")]
    assert told[0] == told[1]
    for agent in [agent for episode in told[0] for agent in episode["agents"]]:
        assert (agent["status"], agent["steps"], agent["unscored_steps"]) == ("unscored", 0, 8)
        assert all("ServerFaultError" in error and "127.0.0.1" not in error for error in agent["errors"])


def test_an_error_that_is_no_valid_text_is_told_of_nevertheless(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    flags = ("-p", f"class={tmp_path / 'odd.py'}:Odd", "--episodes", "2")
    told = episodes(tmp_path / "run", *server_flags(simulator), *flags)
    assert all(episode["error"].endswith("ValueError: no such file: \\udcff\n") for episode in told)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_has_seen_enough_ends_nothing_but_the_report(
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    flags = (*server_flags(simulator), "--encoder", "hashing:64", "-p", "noop", "--baselines", "")
    more = ("--episodes", "2", "--run-dir", str(tmp_path), "--format", form)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert execute(("eval", *flags, *more)) == 141
    assert "mutagym:" not in capsys.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["simulated"]
