"""What results.json says of a policy that fails: the same whatever way it was stepped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from train.cli import execute

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
        raise ValueError("not today")
    def step(self, view):
        return 0

class Unsendable(First):
    def step(self, view):
        class Odd(Exception):
            pass
        raise Odd("odd")
"""
EMBEDDED = ("eval", "--ollama-host", "embedded", "--time-scale", "0", "--encoder", "hashing:64")


def errors(folder: Path, *flags: str) -> list[str]:
    """The error of each episode of an evaluation on a simulator of its own."""
    more = ("--baselines", "", "--run-dir", str(folder), "--max-unscored", "1")
    assert execute((*EMBEDDED, *more, *flags)) == 0
    episodes: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["episodes"]
    return [episode["error"] for episode in episodes]


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


def test_the_error_of_a_policy_whose_call_failed_names_no_address_and_not_how_the_call_was_sent(
    tmp_path: Path,
) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps([{"kind": "error_500", "rate": 1.0, "model": "sim-judge"}]))
    flags = ("-p", "llm:sim-judge", "--faults", str(faults), "--call-attempts", "1", "--episodes", "3")
    told = [errors(tmp_path / jobs, *flags, "--agents", "3", "--jobs", jobs) for jobs in ("1", "9")]
    assert told[0] == told[1]
    for error in told[0]:
        assert "ServerFaultError" in error
        assert "127.0.0.1" not in error
        assert "ollama_utils" not in error.replace("ollama_utils.errors", "")
