"""`mutagym eval` when calls fail, when it is interrupted, and when it was told what cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from records.run_folder import RunFolder
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.evaluation.evaluations import FLAGS, episodes_of, evaluate

INTERRUPTS = '''
import os, signal

class Interrupts:
    """Sends Ctrl-C once, in the midst of things."""
    def __init__(self, mutators, seed, mark):
        self.mark = mark
    def step(self, view):
        if view.step_count == 1 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGINT)
        return view.step_count
'''


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=8, time_scale=0.001)) as made:
        yield made


@pytest.fixture
def server(shared: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A simulator of this file's own, without faults in the end."""
    yield shared
    shared.set_faults([])


def agents(folder: Path) -> list[dict[str, Any]]:
    """What came of all agents, in order."""
    return [agent for episode in episodes_of(folder) for agent in episode["agents"]]


def test_a_step_whose_calls_fail_did_not_happen(server: EmbeddedServer, tmp_path: Path) -> None:
    flags = ("-p", "noop", "--agents", "2", "--episodes", "6", "--call-attempts", "1")
    assert evaluate(server, tmp_path / "sound", *flags) == 0
    server.set_faults([{"kind": "status", "rate": 0.6, "first": 2}])
    assert evaluate(server, tmp_path / "faulty", *flags, "--max-unscored", "1") == 0
    sound, faulty = agents(tmp_path / "sound"), agents(tmp_path / "faulty")
    failed = {"unscored_steps": 0, "errors": [], "calls": {}}
    assert [agent | failed for agent in sound] == [agent | failed for agent in faulty]
    lost = [agent for agent in faulty if agent["unscored_steps"]]
    assert lost
    assert all(agent["errors"][0].startswith("ServerFaultError") for agent in lost)


def test_an_agent_whose_step_fails_eight_times_is_unscored_and_in_no_rate(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    server.set_faults([{"kind": "status", "rate": 1, "model": "sim-mutator"}])
    teams = ("-p", "noop,proportion=1", "-p", "fixed:shorten,proportion=1", "--agents", "2")
    flags = (*teams, "--episodes", "3")
    assert evaluate(server, tmp_path / "run", *flags, "--call-attempts", "1", "--max-unscored", "1") == 0
    told = agents(tmp_path / "run")
    assert [agent["status"] for agent in told] == ["scored", "unscored"] * 3
    assert all(agent["unscored_steps"] == 8 for agent in told[1::2])
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["rates"][0]["unscored"]["count"] == 3


def faulty_choices(server: EmbeddedServer, rate: float) -> tuple[str, ...]:
    """Flags: calls to the model that chooses fail at this rate, and are not repeated."""
    server.set_faults([{"kind": "status", "rate": rate, "model": "sim-judge"}])
    return "--call-attempts", "1", "--episodes", "3"


def test_a_choice_whose_call_failed_is_asked_for_again_and_nobody_else_waits_or_loses_by_it(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    flags = (
        "--max-unscored",
        "1",
        "--agents",
        "4",
        "-p",
        "noop,proportion=1",
        "-p",
        "llm:sim-judge,proportion=1",
    )
    assert evaluate(server, tmp_path / "run", *faulty_choices(server, 0.5), *flags) == 0
    told = agents(tmp_path / "run")
    assert len(told) == 3 * 4  # the agents of an episode that failed are left out
    assert all(agent["status"] == "scored" for agent in told if agent["policy"] == "noop")
    asked = [agent for agent in told if agent["policy"] != "noop"]
    assert sum(agent["unscored_steps"] for agent in asked) > 0
    for agent in asked:
        assert agent["calls"]["choices"] == agent["steps"] + agent["unscored_steps"]
        assert len(agent["errors"]) == min(agent["unscored_steps"], 3)


def test_an_evaluation_stops_when_most_choices_fail(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(server, tmp_path / "run", *faulty_choices(server, 1.0), "-p", "llm:sim-judge") == 1
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert "could not be scored (--max-unscored 0.5); last error: ServerFaultError" in line


def test_too_many_failing_calls_stop_it_with_one_line_and_what_was_answered_is_kept(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.set_faults([{"kind": "status", "rate": 1}])
    flags = ("-p", "random", "--episodes", "20", "--call-attempts", "1")
    assert evaluate(server, tmp_path / "run", *flags) == 1
    *_, how, line = capsys.readouterr().err.strip().splitlines()
    assert "100% of the last 20 steps could not be scored (--max-unscored 0.5)" in line
    assert how == f"to go on: mutagym eval --resume {tmp_path / 'run'} --ollama-host {server.host}"
    assert not (tmp_path / "run" / "results.json").exists()
    server.set_faults([])
    assert execute(("eval", "--resume", str(tmp_path / "run"), "--ollama-host", server.host)) == 0
    assert {agent["status"] for agent in agents(tmp_path / "run")} == {"scored"}


def test_after_ctrl_c_it_goes_on_without_asking_again_what_was_answered(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(INTERRUPTS)
    policy = f"class={tmp_path / 'mine.py'}:Interrupts,mark={tmp_path / 'mark'}"
    flags = ("-p", policy, "--agents", "2", "--episodes", "8", "--save-transitions")
    assert evaluate(server, tmp_path / "run", *flags) == 130
    assert "mutagym eval --resume" in capsys.readouterr().err
    answered = server.stats()["calls"]
    assert execute(("eval", "--resume", str(tmp_path / "run"), "--trust-run")) == 0
    again = server.stats()["calls"] - answered
    spent = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert spent["whole_run"]["calls"] > spent["calls"] > 0
    assert evaluate(server, tmp_path / "whole", *flags) == 0
    assert again < server.stats()["calls"] - answered - again
    for name in ("results.json", "report.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    read = (tmp_path / "run" / "transitions.jsonl").read_text().splitlines()
    assert len(read) == sum(agent["steps"] for agent in agents(tmp_path / "run"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an error with exit code 2."""
    capsys.readouterr()
    assert execute(("eval", *arguments)) == 2
    captured = capsys.readouterr()
    found = captured.err.strip().splitlines()
    assert len(found) == 1, captured.err
    assert captured.out == ""
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), ["-p"]),
        (("-p", "nop"), ["'nop'", "noop"]),
        (("-p", "fixed:shortn"), ["shortn", "shorten"]),
        (("-p", "noop", "-p", "noop"), ["two policies", "'noop'"]),
        (("-p", "noop,proportion=1", "-p", "noop,proportion=2", "--agents", "3"), ["two policies", "'noop'"]),
        (("-p", "epsilon_greedy,epsilon=3"), ["epsilon", "3"]),
        (("-p", "ucb1", "--fit-calls", "10"), ["--fit-calls 10", "70"]),
        (("-p", "noop,proportion=1", "-p", "random,proportion=0.01"), ["1 agents", "more agents"]),
        (("-p", "noop", "-m", "missing.toml"), ["missing.toml", "TOML"]),
        (("-p", "noop", "-m", "reword=judge"), ["reword", "--reward"]),
        (("-p", "noop", "-m", "reward=jugde"), ["jugde", "judge"]),
        (("-p", "noop", "-m", "reward="), ["reward=", "key=value"]),
        (("-p", "noop", "-m", f"reward=jugde,name={'x' * 300}"), ["jugde", "judge"]),
        (("-p", "noop", "-m", "x" * 300), ["xxx", "TOML"]),
        (("-p", "noop", "-m", "name=a", "-m", "name=a"), ["two missions", "'a'"]),
        (("-p", "noop", "-m", "queries=missing.csv"), ["missing.csv"]),
        (("-p", "noop", "-m", "mutators=paraphrse"), ["paraphrse", "paraphrase"]),
        (("-p", "noop", "--episodes", "100000"), ["--episodes is 100000", "held-out"]),
        (("-p", "noop", "--held-out", "0"), ["hold out a larger share"]),
        (("-p", "noop", "--judge-accuracy", "missing.json"), ["missing.json"]),
        (("-p", "noop", "--power", "2"), ["--power", "2"]),
        (("-p", "noop", "--policy-wrapper", "proces"), ["--policy-wrapper", "process"]),
        (("-p", "run=missing"), ["missing"]),
        (("--resume", "missing"), ["missing"]),
    ],
)
def test_a_users_error_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: list[str]
) -> None:
    line = refused(capsys, "--ollama-host", "http://127.0.0.1:9", *FLAGS, *arguments)
    assert all(word in line for word in says), line


def test_too_few_calls_for_a_contextual_bandit_to_learn_from_are_one_line(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An episode of each mutator is paid for, but not a step of each of the 16 lanes that learn together."""
    flags = ("--mutators", "noop,shorten", "--max-steps", "2", "-p", "linucb", "--fit-calls", "8")
    assert evaluate(simulator, tmp_path / "run", *flags) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "linucb could not be fitted: no step was scored; --fit-calls of 16 or more give it one" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("reword = 'judge'\n", ["mission.toml", "reword", "reward"]),
        ("max-steps = 2.5\n", ["max-steps", "2.5"]),
        ("reward = = 1\n", ["mission.toml", "not a TOML file"]),
        ("[reward]\nname = 'judge'\n", ["mission.toml", "[reward]"]),
        ("slots = 4\n", ["mission.toml", "slots"]),
    ],
)
def test_a_mission_file_that_is_wrong_is_named_with_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: list[str]
) -> None:
    (tmp_path / "mission.toml").write_text(text)
    line = refused(capsys, "-p", "noop", "-m", str(tmp_path / "mission.toml"))
    assert all(word in line for word in says), line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-p", "llm:sim-model", "--policy-wrapper", "process"), ["llm:sim-model", "pickle"]),
        (("-p", "noop", "--policy-wrapper", "torch"), ["noop", "torch"]),
        (("-p", "llm:missing"), ["missing", "not pulled"]),
        (("-p", "noop", "-m", "target-model=missing"), ["missing", "ollama pull missing"]),
        (("-p", "noop", "-m", "reward=judge"), ["judge", "model"]),
        (("-p", "fixed:shorten", "-m", "name=a", "-m", "name=b,mutators=noop"), ["shorten", "noop"]),
    ],
)
def test_what_only_the_server_can_tell_is_one_line_too_and_leaves_no_folder(
    server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: list[str],
) -> None:
    folder = tmp_path / "run"
    line = refused(capsys, "--ollama-host", server.host, *FLAGS, "--run-dir", str(folder), *arguments)
    assert all(word in line for word in says), line
    assert not folder.exists()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with two mutators; nobody gets as far as its policy."""
    folder = tmp_path / "trained"
    config = {"encoder": "hashing:64", "mutators": ["noop", "shorten"], "target-model": "m"}
    with RunFolder(folder) as made:
        made.begin(config | {"num-env-steps": 8}, simulated=True)
    texts = [
        f"How do I cut {word}?"
        for word in ["bread", "cake", "hair", "grass", "paper", "wood", "glass", "rope"]
    ]
    (folder / "queries.json").write_text(json.dumps({"train": texts}))
    (folder / "policy.safetensors").touch()
    return folder


def test_queries_that_a_run_was_trained_on_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "-p", str(run))
    assert "trained on by the run" in line
    assert "such as 'How do I cut" in line
    assert "--split-seed" in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--mutators", "noop,expand"), ["--mutators noop,shorten", "noop,expand"]),
        (("--encoder", "hashing:32"), ["--encoder hashing:64", "hashing:32"]),
    ],
)
def test_a_run_trained_otherwise_than_the_mission_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: list[str]
) -> None:
    line = refused(capsys, "-p", str(run), *flags)
    assert all(word in line for word in says), line


def test_a_resumed_evaluation_may_not_become_another_one(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text("step-cost = 0.1\n")
    folder = tmp_path / "run"
    assert evaluate(server, folder, "-p", "noop", "-m", str(tmp_path / "a.toml"), "--episodes", "2") == 0
    again = ("--resume", str(folder), "--ollama-host", server.host)
    assert "--agents is 2" in refused(capsys, *again, "--agents", "2")
