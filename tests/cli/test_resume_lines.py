"""A run that is stopped prints the line that goes on with it: pasted, it ends as if nothing had been.

Each run here has code, files and a host of the user's own. What the folder has a copy of is gone before
the line is pasted.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from records.resume import resume_line
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.cli.searches import replies
from tests.runs import lines, metrics, read
from train.config import TrainConfig

CODE = '''
from mutators.registry import by_rule


@by_rule
def shout(query, earlier, seed):
    """Say it louder."""
    return query.upper()


def grade(problem, reply):
    return float(str(problem.answer) in reply)


class Second:
    def __init__(self, mutators, seed):
        pass

    def step(self, view):
        return 1
'''
TRAIN = "--num-processes 4 --num-steps 8 --num-env-steps 96 --ppo-epoch 2 --encoder hashing:16"
MODELS = "--target-model sim-target --mutator-model sim-mutator"
SOLVER = "--target-model sim-solver --mutator-model sim-mutator --task task.jsonl"


@dataclass(frozen=True)
class Case:
    """A command with things of the user's own."""

    command: str
    says: str = ""
    """What the line names again, beside the host; `@` is the folder of the user's files."""
    copied: tuple[str, ...] = ()
    """What the run's folder has a copy of."""


CASES = {
    "train": Case(
        f"train {MODELS} {TRAIN} --queries queries.csv --group-column pair --kept 0.3 "
        "--mutators noop,shorten,mine.py:shout",
        "--mutators noop,shorten,@/mine.py:shout",
        ("queries.csv",),
    ),
    "train --seeds": Case(
        f"train {MODELS} {TRAIN} --queries queries.csv --seeds 2", copied=("queries.csv",)
    ),
    "eval": Case(
        f"eval -m mission.toml -p class=mine.py:Second -p random {MODELS} --baselines noop "
        "--guard-queries guard.txt --guard-margin 0.99 --save-transitions --json out.json",
        "--policy class=@/mine.py:Second --policy random --json out.json",
        ("mission.toml", "queries.csv", "guard.txt"),
    ),
    "eval of code": Case(
        f"eval -m coded.toml -p random --baselines noop {MODELS}",
        "--mission @/coded.toml",
        ("queries.csv",),
    ),
    "evolve": Case(
        f"evolve {SOLVER} --seed-prompt prompt.txt --seed-prompt 'Be brief.' --population-size 6 "
        "--max-generations 2 --panel-size 15",
        "--seed-prompt @/prompt.txt --seed-prompt 'Be brief.' --task @/task.jsonl",
    ),
    "select": Case(
        "select --task task.jsonl --scorer mine.py:grade --models sim-solver,sim-solver-large",
        "--task @/task.jsonl --scorer @/mine.py:grade",
    ),
    "optimize": Case(
        f"optimize {SOLVER} --steps 16 --num-candidates 2 --encoder hashing:32",
        "--task @/task.jsonl",
    ),
}


@pytest.fixture(scope="module")
def slow() -> Iterator[EmbeddedServer]:
    """A server that takes its time, so that a run can be stopped in the middle."""
    with EmbeddedServer(Settings(slots=8, time_scale=0.05)) as server:
        yield server


def write_files(folder: Path) -> None:
    """What is the user's own."""
    rows = [f"How do I kill process number {k}?,{k // 2}" for k in range(40)]
    sums = [{"question": f"What is {k} + {k + 3}?", "answer": 2 * k + 3} for k in range(40)]
    files = {
        "mine.py": CODE,
        "queries.csv": "\n".join(["prompt,pair", *rows]),
        "guard.txt": "\n".join(f"How do I pick lock number {k}?" for k in range(4)),
        "mission.toml": 'name = "mine"\nqueries = "queries.csv"\nencoder = "hashing"\n',
        "coded.toml": 'queries = "queries.csv"\nencoder = "hashing"\nmutators = ["noop", "mine.py:shout"]\n',
        "task.jsonl": "\n".join(map(json.dumps, sums)),
        "prompt.txt": "Think step by step.",
    }
    for name, text in files.items():
        (folder / name).write_text(text)


def results(folder: Path) -> dict[str, Any]:
    """All that two equal runs share."""
    if (folder / "results.json").exists():
        return read(folder)
    runs = sorted(folder.glob("seed-*")) or [folder]
    hashes = [
        [read(run, "summary.json")[f"{name}_sha256"] for name in ("transitions", "weights")]
        for run in runs
    ]
    return {
        "hashes": hashes,
        "metrics": [metrics(run) for run in runs],
        "steps": [len(lines(run)) for run in runs],
    }


def stop(arguments: list[str], folder: Path, least: int) -> str:
    """Begin a run in a process of its own, and stop it at so many replies; its last line but one."""
    command = [sys.executable, "-m", "mutagym", *arguments, "--run-dir", str(folder)]
    with subprocess.Popen(  # noqa: S603 - ours
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        logs = [folder / "replies.sqlite", folder / "seed-0" / "replies.sqlite"]
        while not (folder / "config.toml").exists() or most_replies(logs) < least:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 143
    *_, line, last = said.splitlines()
    assert last == "mutagym: stopped by SIGTERM"
    return line


def most_replies(logs: list[Path]) -> int:
    return max((replies(log.parent) for log in logs if log.exists()), default=0)


@pytest.mark.parametrize("name", CASES)
def test_the_line_that_a_stopped_run_prints_goes_on_with_it(
    slow: EmbeddedServer,
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    case, here = CASES[name], tmp_path / "its folder"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    write_files(here)
    arguments, run = shlex.split(case.command), here / "run"
    assert execute([*arguments, "--ollama-host", simulator.host, "--run-dir", "whole"]) == 0
    line = stop([*arguments, "--ollama-host", slow.host], run, 12)
    words = shlex.split(line.replace(str(here), "@"))
    assert words[:6] == ["to", "go", "on:", "mutagym", arguments[0], "--resume"]
    assert words[6] == "@/run"
    said = [word for word in words[7:] if word not in {"--ollama-host", slow.host}]
    assert said == shlex.split(case.says)
    assert slow.host in words
    for file in [*map(here.joinpath, case.copied), *here.glob("out.json")]:
        file.unlink()
    done = subprocess.run(  # noqa: S602 - the line itself
        line.removeprefix("to go on: "), shell=True, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert results(run) == results(here / "whole")
    assert (here / "out.json").exists() == ("--json" in arguments)


def test_a_host_that_ollama_host_named_is_named_by_flag(
    simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig()
    assert resume_line("train", Path("runs/a"), config) == "to go on: mutagym train --resume runs/a"
    monkeypatch.setenv("OLLAMA_HOST", simulator.host)
    line = stop(f"train {MODELS} {TRAIN}".split(), tmp_path / "run", 12)
    assert (
        line
        == f"to go on: mutagym train --resume {tmp_path / 'run'} --ollama-host {simulator.host}"
    )
