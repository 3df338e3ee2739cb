"""What a user can mend about a search is one line, and exit code 2."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cli.main import execute
from search.task import read_task
from simulator.process import EmbeddedServer
from tests.cli.searches import COMMANDS, arguments, one_of_them
from tests.runs import read

LINES = {
    "no_json.jsonl": "{",
    "no_answer.jsonl": '{"question": "Why?"}',
    "no_question.jsonl": '{"query": "Why?", "answer": "So."}',
    "empty.jsonl": "",
    "one.jsonl": '{"question": "Why?", "answer": "So."}',
}
FUNCTIONS = """
def grade(problem, reply):
    return 7

def takes_two(problem, reply):
    return 1.0

def takes_one(reply):
    return 1.0

async def later(problem, reply):
    return 1.0
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with bad files, which is where the command is run."""
    for name, text in LINES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    (tmp_path / "some.jsonl").write_text("".join(f'{{"question": "Say {k}."}}\n' for k in range(60)))
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "a.txt").write_text("Be brief.")
    (tmp_path / "b.txt").write_text("Be brief.\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *told: str) -> str:
    """The one line of an error with exit code 2; nothing is left of the run."""
    capsys.readouterr()
    assert execute(told) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert captured.out == ""
    return line


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", one_of_them("evolve"))
def test_a_users_error_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    table: list[tuple[tuple[str, ...], list[str]]] = [
        (("--task", "missing.jsonl"), ["missing.jsonl", "there is no regular file"]),
        (("--task", "no_json.jsonl"), ["no_json.jsonl, row 1", "column 2"]),
        (("--task", "no_answer.jsonl"), ["no_answer.jsonl, row 1", "answer"]),
        (("--task", "no_question.jsonl"), ["no_question.jsonl, row 1", "question"]),
        (("--task", "empty.jsonl"), ["empty.jsonl", "is empty"]),
        (("--scorer", "mine.py:grade"), ["--scorer", "--task"]),
        (("--task", "one.jsonl", "--scorer", "mine.py:grde"), ["mine.py", "'grde'", "grade"]),
        (("--task", "one.jsonl", "--scorer", "nowhere.py:grade"), ["nowhere.py", "FILE.py:NAME"]),
        (("--task", "one.jsonl", "--scorer", "mine.py:takes_one"), ["mine.py", "(problem, reply)"]),
        (("--task", "one.jsonl", "--scorer", "mine.py:later"), ["mine.py:later", "an async def; expected"]),
        (("--task", "one.jsonl", "--scorer", "broken.py:grade"), ["broken.py", "ZeroDivisionError"]),
        (("--json", "missing/x.json"), ["--json", "missing/x.json"]),
        (("--cache", "one.jsonl"), ["--cache", "one.jsonl"]),
        (("--resume", "missing"), ["--resume", "missing"]),
        (("--max-failed", "2"), ["--max-failed"]),
        (("--seed", "-1"), ["--seed"]),
        (("--max-in-flihgt", "2"), ["--max-in-flihgt", "--max-in-flight"]),
        (("--rate-limit-per-minute", "-1"), ["--rate-limit-per-minute"]),
        (("--num-ctx", "0"), ["--num-ctx", ">= 1"]),
        (("--num-ctx", "-1"), ["--num-ctx", ">= 1"]),
    ]
    for flags, says in table:
        line = refused(capsys, command, *flags)
        assert all(word in line for word in says), line


@pytest.mark.usefixtures("files")
def test_an_error_of_one_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    table: list[tuple[tuple[str, ...], list[str]]] = [
        (("evolve", "--population-size", "1"), ["--population-size is 1"]),
        (("evolve", "--num-predict", "0"), ["--num-predict", ">= 1"]),
        (("select", "--task", "missing.jsonl"), ["missing.jsonl", "there is no regular file"]),
        (("select", "--json", "missing/x.json"), ["--json", "missing/x.json"]),
        (("select", "--num-predict", "-1"), ["--num-predict", ">= 1"]),
        (("optimize", "--task", "missing.jsonl"), ["missing.jsonl", "there is no regular file"]),
        (("optimize", "--json", "missing/x.json"), ["--json", "missing/x.json"]),
        (("optimize", "--max-tokens", "0"), ["--max-tokens", ">= 1"]),
        (("evolve", "--panel-size", "500"), ["--panel-size is 500", "200 problems"]),
        (
            ("evolve", "--elite-size", "9", "--population-size", "4"),
            ["--elite-size is 9; expected at most 2, half of --population-size"],
        ),
        (("evolve", "--preset", "bold"), ["--preset", "balanced"]),
        (("evolve", "--seed-prompt", "missing.txt"), ["--seed-prompt", "missing.txt"]),
        (("evolve", "--seed-prompt", "blank.txt"), ["--seed-prompt", "nothing in it"]),
        (("evolve", "--seed-prompt", "a.txt", "--seed-prompt", "b.txt"), ["--seed-prompt", "twice"]),
        (("evolve", "--task", "one.jsonl"), ["--held-out is 0.3", "1 problem:", "set --held-out to 0"]),
        (("select", "--prompts", "missing.txt"), ["--prompts", "missing.txt"]),
        (("select", "--prompts", "a.txt", "--prompts", "b.txt"), ["--prompts b and a", "same text"]),
        (("select", "--price", "sim-solver=cheap"), ["--price", "MODEL=IN:OUT"]),
        (("select", "--option", "n_initial"), ["--option", "NAME=NUMBER"]),
        (("select", "--delta", "1"), ["--delta"]),
        (("optimize", "--task", "one.jsonl"), ["--held-out is 0.3", "1 problem:", "set --held-out to 0"]),
        (("optimize", "--actor", "human"), ["--actor", "learning"]),
        (("optimize", "--seed-prompt", "blank.txt"), ["--seed-prompt", "nothing in it"]),
    ]
    for told, says in table:
        line = refused(capsys, *told)
        assert all(word in line for word in says), line


def test_what_needs_a_server_to_be_told_is_one_line_too_and_leaves_no_folder(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table: list[tuple[str, tuple[str, ...], list[str]]] = [
        ("select", ("--selector", "arm_eliminaton"), ["arm_eliminaton", "did you mean arm_elimination"]),
        ("select", ("--option", "epsilom=1"), ["arm_elimination", "'epsilom'"]),
        ("select", ("--option", "n_initial=2.5"), ["n_initial is 2.5", "whole number"]),
        ("select", ("--epsilon", "0.1"), ["arm_elimination", "'epsilon'"]),
        ("select", ("--models", "sim-solver,sim-solver"), ["'model'", "'sim-solver' twice"]),
        ("select", ("--models", "sim-solver,qwen3"), ["ollama pull qwen3"]),
        ("select", ("--mutators", "shortn"), ["shortn", "shorten"]),
        ("select", ("--evaluate", "nowhere.py:f"), ["nowhere.py:f", "FILE.py:NAME"]),
        ("evolve", ("--target-model", "qwen3"), ["ollama pull qwen3"]),
        ("optimize", ("--encoder", "ollama:qwen3"), ["ollama pull qwen3"]),
        ("optimize", ("--population-size", "1"), ["--elite-size"]),
    ]
    for command, flags, says in table:
        line = refused(capsys, *arguments(command, simulator.host, tmp_path / "run", *flags))
        assert all(word in line for word in says), line
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_real_host_with_no_model_named_lists_what_it_has(
    simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    line = refused(capsys, command, "--ollama-host", simulator.host)
    assert ("--models" if command == "select" else "--target-model") in line
    assert "sim-solver-large" in line


def test_a_critic_that_is_a_model_needs_one(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ("--ollama-host", simulator.host, "--target-model", "sim-solver", "--encoder", "hashing:32")
    line = refused(capsys, "optimize", *told, "--critic", "llm", "--run-dir", str(tmp_path / "run"))
    assert "--judge-model" in line


@pytest.mark.usefixtures("files")
def test_a_scorer_that_fails_is_one_line_and_the_search_goes_on_with_a_mended_one(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ("--task", "some.jsonl", "--scorer", "mine.py:grade")
    assert execute(arguments("evolve", simulator.host, tmp_path / "run", *told)) == 2
    *_, hint, line = capsys.readouterr().err.splitlines()
    assert "mine.py:grade' returned 7; expected a number from 0 to 1" in line
    how, _, command = hint.partition(": mutagym ")
    assert how == "to go on"
    (tmp_path / "mine.py").write_text(FUNCTIONS.replace("7", "0.75"))
    assert execute(shlex.split(command)) == 0
    assert read(tmp_path / "run")["best_fitness"] == 0.75
    (tmp_path / "other.py").write_text(FUNCTIONS.replace("7", "0.5"))
    other = ("--scorer", "other.py:grade")
    assert execute(("evolve", "--resume", str(tmp_path / "run"), "--trust-run", *other)) == 0
    assert read(tmp_path / "run")["best_fitness"] == 0.5


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", one_of_them("optimize"))
def test_a_scorer_that_raises_at_one_problem_is_told_with_line_and_problem(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """In `optimize` and `evolve` that problem is held out."""
    held_out = read_task(tmp_path / "some.jsonl", "mine.py:takes_two").split(0.2, 0)[1].problems[0].question
    code = f"def grade(problem, reply):\n    return 1 / (problem.question != {held_out!r})\n"
    (tmp_path / "one_line.py").write_text(code)
    told = ("--task", "some.jsonl", "--scorer", "one_line.py:grade")
    assert execute(arguments(command, simulator.host, tmp_path / "run", *told)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "one_line.py:grade' failed: ZeroDivisionError: " in line
    assert "(line 2); expected a number from 0 to 1 (problem " in line
    assert line.endswith(f": {held_out!r})")
