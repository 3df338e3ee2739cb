"""A run that is stopped prints the line that goes on with it to the same end.

Each run here has code, files and a host of the user's own. What the folder has a copy of is gone
before the line is pasted.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from ollama_utils.reply_log import ReplyLog
from simulator.process import EmbeddedServer
from tests.runs import before_call, metrics, outcome, read, send_signal

Capture = pytest.CaptureFixture[str]

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
CASES = {
    "train": (
        f"""train {MODELS} {TRAIN} --queries queries.csv --group-column pair --kept 0.3
        --mutators noop,shorten,mine.py:shout""",
        "--mutators noop,shorten,@/mine.py:shout",
        "queries.csv",
    ),
    "eval": (
        f"""eval -m mission.toml -p class=mine.py:Second -p random {MODELS} --baselines noop
        --guard-queries guard.txt --guard-margin 0.99 --save-transitions --json out.json""",
        "--policy class=@/mine.py:Second --policy random --json out.json",
        "mission.toml queries.csv guard.txt out.json",
    ),
    "eval of code": (
        f"eval -m coded.toml -p random --baselines noop {MODELS}",
        "--mission @/coded.toml",
        "queries.csv",
    ),
    "evolve": (
        """evolve --target-model sim-solver --mutator-model sim-mutator --task task.jsonl
        --seed-prompt prompt.txt --seed-prompt 'Be brief.' --population-size 6
        --max-generations 2 --panel-size 15""",
        "--seed-prompt @/prompt.txt --seed-prompt 'Be brief.' --task @/task.jsonl",
        "",
    ),
}
"""A command with things of the user's own; what its line names again beside the host, where `@` is
the user's folder; and files that are gone by then, for the run has a copy."""


def write_files(folder: Path) -> None:
    """What is the user's own."""
    rows = [f"How do I kill process number {k}?,{k // 2}" for k in range(40)]
    sums = [{"question": f"What is {k} + {k + 3}?", "answer": 2 * k + 3} for k in range(40)]
    files = {
        "mine.py": CODE,
        "queries.csv": "\n".join(["prompt,pair", *rows]),
        "guard.txt": "\n".join(f"How do I pick lock number {k}?" for k in range(4)),
        "mission.toml": 'name = "mine"\nqueries = "queries.csv"\nencoder = "hashing"\n',
        "coded.toml": 'queries = "queries.csv"\nmutators = ["noop", "mine.py:shout"]\n',
        "task.jsonl": "\n".join(map(json.dumps, sums)),
        "prompt.txt": "Think step by step.",
    }
    for name, text in files.items():
        (folder / name).write_text(text)


def results(folder: Path) -> dict[str, Any]:
    """All that two equal runs share."""
    if (folder / "results.json").exists():
        return read(folder)
    return {"metrics": metrics(folder), **outcome(folder, "env_steps")}


def stop(capsys: Capture, *arguments: str) -> str:
    """Begin a run that Ctrl-C stops at its twelfth reply; its last line but one."""
    with before_call(ReplyLog, "write", 12, send_signal):
        assert execute(arguments) == 130
    *_, line, last = capsys.readouterr().err.splitlines()
    assert last == "mutagym: stopped by SIGINT"
    return line


@pytest.mark.parametrize("name", CASES)
def test_the_line_that_a_stopped_run_prints_goes_on_with_it(
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    name: str,
) -> None:
    command, says, copied = CASES[name]
    here = tmp_path / "its folder"
    here.mkdir()
    monkeypatch.chdir(here)
    write_files(here)
    arguments, run = [*shlex.split(command), "--ollama-host", simulator.host], here / "run"
    assert execute([*arguments, "--run-dir", "whole"]) == 0
    line = stop(capsys, *arguments, "--run-dir", str(run))
    words = shlex.split(line.replace(str(here), "@"))
    begins = f"to go on: mutagym {arguments[0]} --resume @/run"
    host = ["--ollama-host", simulator.host]
    assert words[:7] == begins.split()
    assert [word for word in words[7:] if word not in host] == shlex.split(says)
    assert {*host} <= {*words}
    for file in copied.split():
        (here / file).unlink()
    assert execute(shlex.split(line)[4:]) == 0
    assert results(run) == results(here / "whole")
    assert (here / "out.json").exists() == ("out.json" in copied)


def test_a_host_that_ollama_host_named_is_named_by_flag(
    simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", simulator.host)
    run = tmp_path / "run"
    line = stop(capsys, "train", *MODELS.split(), *TRAIN.split(), "--run-dir", str(run))
    assert line == f"to go on: mutagym train --resume {run} --ollama-host {simulator.host}"
