"""What results.json says of a policy that fails: the same whatever way it was stepped."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import episodes_of, evaluate

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


def test_a_policy_that_fails_tells_the_same_wherever_it_stepped(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(POLICIES)
    names = ("Raises", "NoNumber", "Exits", "Unmade", "Unsendable")
    policies = [flag for name in names for flag in ("-p", f"class={tmp_path / 'mine.py'}:{name}")]
    told = []
    for wrapper in ("thread", "process"):
        flags = (*policies, "--agents", "2", "--episodes", "2", "--policy-wrapper", wrapper)
        assert evaluate(simulator, tmp_path / wrapper, *flags) == 0
        told.append([episode["error"] for episode in episodes_of(tmp_path / wrapper)])
    assert all(told[0])
    assert told[0] == told[1]


def test_where_every_call_of_a_policy_fails_its_agents_are_unscored_and_the_errors_name_no_address(
    tmp_path: Path,
) -> None:
    file = tmp_path / "faults.json"
    file.write_text(json.dumps([{"kind": "status", "rate": 1.0, "model": "sim-judge"}]))
    server = ("--ollama-host", "embedded", "--time-scale", "0", "--faults", str(file), "--call-attempts", "1")
    flags = ("--encoder=hashing:64", "--baselines=", "--episodes=3", "--agents=3", "--max-unscored=1")
    told = []
    for jobs in ("1", "9"):
        more = ("-p", "llm:sim-judge", "--jobs", jobs, "--run-dir", str(tmp_path / jobs))
        assert execute(("eval", *server, *flags, *more)) == 0
        told.append(episodes_of(tmp_path / jobs))
    assert told[0] == told[1]
    for agent in [agent for episode in told[0] for agent in episode["agents"]]:
        assert (agent["status"], agent["steps"], agent["unscored_steps"]) == ("unscored", 0, 8)
        assert all("ServerFaultError" in error and "127.0.0.1" not in error for error in agent["errors"])


def test_an_error_that_is_no_valid_text_is_told_of_nevertheless(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    policy = f"class={tmp_path / 'odd.py'}:Odd"
    assert evaluate(simulator, tmp_path / "run", "-p", policy, "--episodes", "2") == 0
    told = episodes_of(tmp_path / "run")
    assert all(episode["error"].endswith("ValueError: no such file: \\udcff\n") for episode in told)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_has_seen_enough_ends_nothing_but_the_report(
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert evaluate(simulator, tmp_path, "-p", "noop", "--episodes", "2", "--format", form) == 141
    assert "mutagym:" not in capsys.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["simulated"]
