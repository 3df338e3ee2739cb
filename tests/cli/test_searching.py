"""Laws of every search: it depends on seed and replies alone, and nothing is paid twice."""

from __future__ import annotations

import json
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from report import searches
from report.table import Table
from search.task import read_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.cli.searches import (
    COMMANDS,
    WholeSearches,
    arguments,
    one_of_them,
    replies,
    requests,
    resume,
    search,
)
from tests.runs import metrics, read

Capture = pytest.CaptureFixture[str]
AT_ONCE = 64
"""No search here has more calls in flight."""
BROKEN = ("--call-attempts", "1")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of 30 sums."""
    path = tmp_path_factory.mktemp("task") / "sums.jsonl"
    problems = ({"question": f"What is {k} + {k}?", "answer": 2 * k} for k in range(30))
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return path


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("evolve", "--no-enable-async-evaluation"),
        ("select", "--max-concurrent=1"),
        ("optimize", "--max-workers=1"),
    ],
)
def test_results_do_not_depend_on_how_many_calls_are_under_way(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path, command: str, flags: str
) -> None:
    expected = (whole[command] / "results.json").read_bytes()
    simulator.reset_stats()
    run = search(command, simulator.host, tmp_path / "run", flags)
    assert (run / "results.json").read_bytes() == expected
    assert simulator.stats()["max_in_flight"] == 1


@pytest.mark.parametrize("command", one_of_them("evolve"))
def test_a_search_killed_in_the_middle_and_resumed_is_the_search_that_was_not(
    whole: WholeSearches, tmp_path: Path, command: str
) -> None:
    folder = tmp_path / "run"
    with EmbeddedServer(Settings(slots=4, time_scale=0.1)) as slow:
        line = [sys.executable, "-m", "mutagym", *arguments(command, slow.host, folder)]
        with subprocess.Popen(  # noqa: S603 - ours
            line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            least = replies(whole[command]) // 5
            while not (folder / "config.toml").exists() or replies(folder) < least:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert not (folder / "results.json").exists()
        paid, asked = replies(folder), slow.stats()["calls"]
        resume(command, folder, "--ollama-host", whole.host)
    for name in ("results.json", "parts.json"):
        assert read(folder, name) == read(whole[command], name)
    assert metrics(folder) == metrics(whole[command])
    assert replies(folder) == replies(whole[command])
    assert 0 <= asked - paid <= AT_ONCE
    summary = read(folder, "summary.json")
    assert summary["calls"] == replies(folder) - paid  # none is asked again that was answered
    assert summary["whole_run"]["calls"] == replies(folder)


def test_a_cache_that_runs_share_answers_a_second_search(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path
) -> None:
    search("evolve", simulator.host, tmp_path / "a", "--cache", str(tmp_path / "cache"))
    asked = simulator.stats()["calls"]
    search("evolve", simulator.host, tmp_path / "b", "--cache", str(tmp_path / "cache"))
    assert simulator.stats()["calls"] == asked
    assert read(tmp_path / "b") == read(whole["evolve"])


@pytest.mark.parametrize("command", one_of_them("select"))
def test_a_full_disk_stops_the_search_which_goes_on_when_there_is_room_again(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path, capsys: Capture, command: str
) -> None:
    """No file may grow so large as the whole log of replies."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = (whole[command] / "replies.sqlite").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        folder = search(command, simulator.host, tmp_path / "run", code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    *_, how, line = capsys.readouterr().err.splitlines()
    assert how.startswith(f"to go on: mutagym {command} --resume {folder} --ollama-host ")
    assert line.endswith(": mend that, then go on")
    assert read(resume(command, folder)) == read(whole[command])


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [("evolve", "--seed", "1"), ("select", "--num-ctx", "2048"), ("optimize", "--critic", "ridge")],
)
def test_a_resumed_search_is_the_same_search_in_the_same_folder(
    whole: WholeSearches, tmp_path: Path, capsys: Capture, command: str, flag: str, value: str
) -> None:
    resumed = (command, "--resume", str(whole[command]), "--trust-run")
    assert execute((*resumed, flag, value)) == 2
    given = value if value.isdigit() else repr(value)
    assert f"mutagym: {flag} is {given}, but the run began with " in capsys.readouterr().err
    assert execute((*resumed, "--run-dir", str(tmp_path / "other"))) == 2
    assert "leave out --run-dir" in capsys.readouterr().err
    for other in COMMANDS.keys() - {command}:
        assert execute((other, *resumed[1:])) == 2
        assert f"a run of `mutagym {command}`: go on with that" in capsys.readouterr().err


TABLES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Table]]] = {
    "evolve": searches.evolution_tables,
    "select": searches.selection_tables,
    "optimize": searches.optimization_tables,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_complete_search_resumed_asks_nothing_and_shows_the_tables_of_its_report(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path, capsys: Capture, command: str
) -> None:
    folder, asked = whole.copy_of(command, tmp_path / "run"), simulator.stats()["calls"]
    resume(command, folder, "--max-in-flight", "3", "--json", str(tmp_path / "report.json"))
    out = capsys.readouterr().out
    assert simulator.stats()["calls"] == asked
    report = read(folder, "report.json")
    assert read(folder) == read(whole[command])
    assert report == read(tmp_path, "report.json")
    assert out.startswith("SIMULATED: ")
    for table in TABLES[command](report):
        cells = (text for row in table.rows for text in row)
        words = " ".join((table.caption, *table.columns, table.says, *cells))
        plain = words.replace("\N{MINUS SIGN}", "-").replace("\N{EN DASH}", "-")
        assert all(word in out for word in plain.split())


MORE = {"select": ("--mutators", "noop,paraphrase", "--selector", "brute_force")}
"""So that models reword."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_call_carries_what_the_flags_say(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, command: str
) -> None:
    given = ("--num-ctx", "2048", "--num-predict", "99", "--think=off", *MORE.get(command, ()))
    folder = search(command, simulator.host, tmp_path / "run", "--task", str(few), *given)
    assert {each["options"].get("num_ctx") for each in requests(folder)} == {2048}
    asked, reworded = requests(folder, "sim-solver"), requests(folder, "sim-mutator")
    assert {(each["options"]["num_predict"], each["think"]) for each in asked} == {(99, False)}
    assert all(each["options"]["num_predict"] <= 99 for each in reworded)
    assert {each["think"] for each in reworded} == {False}


@pytest.fixture(scope="module")
def lame() -> Iterator[EmbeddedServer]:
    """A server on which two models cannot run, and a third fails at a twentieth of its calls."""
    with EmbeddedServer(Settings(slots=16, time_scale=0)) as server:
        rates = {"sim-mutator": 1.0, "sim-solver-small": 1.0, "sim-solver": 0.05}
        server.set_faults([{"kind": "status", "rate": r, "model": m} for m, r in rates.items()])
        yield server


@pytest.mark.parametrize("command", ["evolve", "optimize"])
def test_a_problem_whose_call_failed_is_in_no_share(
    lame: EmbeddedServer, tmp_path: Path, capsys: Capture, command: str
) -> None:
    held_out = read(search(command, lame.host, tmp_path / "run", *BROKEN))["held_out"]
    if command == "evolve":
        seed, others = (
            {**held_out, "score": held_out["seed"]},
            [{**held_out, "score": held_out["best"]}],
        )
        assert "rewordings by model failed: " in capsys.readouterr().err
    else:
        seed, *others = held_out
    assert seed["left_out"] > 0
    for arm in others:
        assert (arm["queries"], arm["left_out"]) == (seed["queries"], seed["left_out"])
        assert arm["score"] - seed["score"] == pytest.approx(arm["difference"])


def test_a_model_that_fails_too_often_is_not_named_unless_that_is_allowed(
    lame: EmbeddedServer, tmp_path: Path
) -> None:
    broken = ("--models", "sim-solver-small,sim-mutator", *BROKEN)
    run = search("select", lame.host, tmp_path / "none", *broken, code=1)
    assert {row["verdict"] for row in read(run)["combinations"]} == {"fails too often"}
    resume("select", run, "--max-errors", "1")
    assert sum(row["is_best"] for row in read(run)["combinations"]) == 1


@pytest.mark.parametrize(
    ("command", "why"),
    [("evolve", "no prompt of the first population"), ("optimize", "--max-failed 0.5")],
)
def test_a_search_whose_calls_keep_failing_stops_saved(
    lame: EmbeddedServer, tmp_path: Path, capsys: Capture, command: str, why: str
) -> None:
    broken = ("--target-model", "sim-solver-small", *BROKEN)
    search(command, lame.host, tmp_path / "run", *broken, code=1)
    *_, hint, line = capsys.readouterr().err.splitlines()
    assert hint.startswith(f"to go on: mutagym {command} --resume ")
    assert why in line


GRADE = """
def grade(problem, reply):
    print("graded")
    return {}
"""


@pytest.fixture
def files(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's files, which is where the command is run."""
    texts = {"mine.py": GRADE.format(1), "blank.txt": " ", "a.txt": "Be brief."}
    texts |= {"some.jsonl": few.read_text(), "one.jsonl": few.read_text().splitlines()[0]}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", one_of_them("evolve"))
def test_a_scorer_that_fails_is_one_line_and_the_search_goes_on_with_a_mended_one(
    simulator: EmbeddedServer, files: Path, capsys: Capture, command: str
) -> None:
    """In `optimize` and `evolve` the problem that it fails at is held out."""
    question = read_task(files / "some.jsonl").split(0.2, 0)[1].problems[0].question
    (files / "mine.py").write_text(GRADE.format(f"1 / (problem.question != {question!r})"))
    own = ("--task", "some.jsonl", "--scorer", "mine.py:grade", "--format", "json")
    run = search(command, simulator.host, files / "run", *own, code=2)
    *_, hint, line = capsys.readouterr().err.splitlines()
    assert "mine.py:grade' failed: ZeroDivisionError: " in line
    assert line.endswith(f": {question!r})")
    (files / "mine.py").write_text(GRADE.format(0.75))
    assert execute(shlex.split(hint.removeprefix("to go on: mutagym "))) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == read(run, "report.json")
    assert "graded" in said.err.splitlines()


def test_a_task_that_was_changed_is_another_search(
    simulator: EmbeddedServer, files: Path, capsys: Capture
) -> None:
    folder = search("select", simulator.host, files / "run", "--task", "some.jsonl")
    (files / "some.jsonl").write_text((files / "one.jsonl").read_text())
    assert execute(("select", "--resume", str(folder), "--trust-run")) == 2
    assert "'task some' is not what the run" in capsys.readouterr().err


ERRORS = {
    "evolve --scorer mine.py:grade": ["--scorer", "--task"],
    "evolve --panel-size 500": ["--panel-size is 500", "200 problems"],
    "evolve --elite-size 9 --population-size 4": ["--elite-size is 9; expected at most 2"],
    "evolve --preset bold": ["--preset", "balanced"],
    "evolve --seed-prompt missing.txt": ["--seed-prompt", "missing.txt"],
    "optimize --seed-prompt blank.txt": ["--seed-prompt", "nothing in it"],
    "evolve --seed-prompt a.txt --seed-prompt a.txt": ["--seed-prompt", "twice"],
    "evolve --task one.jsonl": ["--held-out is 0.3", "1 problem:", "set --held-out to 0"],
    "select --prompts blank.txt": ["--prompts", "nothing in it"],
    "select --price sim-solver=cheap": ["--price", "MODEL=IN:OUT"],
    "select --option n_initial": ["--option", "NAME=NUMBER"],
    "select --evaluate mine.py:f --scorer mine.py:f": ["--scorer and --evaluate cannot"],
    "select --engine ray --rate-limit-per-minute 9": ["is kept by one process"],
    # These are seen once there is a server.
    "optimize --target-model sim-solver --critic llm HOST": ["--judge-model"],
    "select --models sim-solver,qwen3 HOST": ["ollama pull qwen3"],
    "select --models sim-solver HOST": ["model=sim-solver alone is no choice"],
    "select --models sim-solver --evaluate mine.py:grade HOST": ["(combination, datapoint, ask)"],
    "select --models sim-solver --price sim-solver-larg=1:2 HOST": ["sim-solver-larg', which is"],
    "evolve HOST": ["--target-model", "sim-solver-large"],
    "select HOST": ["--models", "sim-solver-large"],
}


@pytest.mark.parametrize("line", ERRORS)
def test_what_a_user_can_mend_is_one_line_and_leaves_no_folder(
    simulator: EmbeddedServer, files: Path, capsys: Capture, line: str
) -> None:
    words = line.replace("HOST", f"--ollama-host {simulator.host}").split()
    asked = simulator.stats()["calls"]
    assert execute((*words, "--run-dir", "run")) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == ""
    assert all(word in last for word in ERRORS[line]), last
    assert not (files / "run").exists()
    assert simulator.stats()["calls"] == asked
