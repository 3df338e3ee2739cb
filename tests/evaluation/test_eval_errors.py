"""What a user of `mutagym eval` may get wrong: one line, exit code 2, and nothing is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.main import execute
from records.run_folder import RunFolder
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import FLAGS, evaluate

Capture = pytest.CaptureFixture[str]
FILES = {
    "unknown.toml": "reword = 'judge'\n",
    "broken.toml": "reward = = 1\n",
    "mine.py": '''
class Shy:
    """Wants a rate."""
    def __init__(self, mutators, seed, rate):
        if rate > 1:
            raise ValueError("rate must be\\nat most 1")
    def step(self, view):
        return 0

class Exits(Shy):
    def __init__(self, mutators, seed):
        raise SystemExit(3)
''',
}
"""Those of the user."""


def refused(capsys: Capture, *arguments: str) -> str:
    """The one line of an error with exit code 2."""
    capsys.readouterr()
    assert execute(("eval", *arguments)) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert captured.out == ""
    return line


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", ["-p"]),
        ("-p nop", ["'nop'", "noop"]),
        (f"-p {'x' * 5000}", ["unknown policy", "no such folder"]),
        ("-p fixed:shortn", ["shortn", "shorten"]),
        ("-p noop -p noop", ["two policies", "'noop'"]),
        ("-p noop,proportion=1 -p random,proportion=0.01", ["1 agents", "more agents"]),
        ("-p cascade --fit-calls 10", ["--fit-calls 10", "71"]),
        ("-p noop -m missing.toml", ["missing.toml", "TOML"]),
        ("-p noop -m unknown.toml", ["unknown.toml", "reword", "reward"]),
        ("-p noop -m broken.toml", ["broken.toml", "not a TOML file"]),
        (f"-p noop -m reward=jugde,name={'x' * 300}", ["jugde", "judge"]),
        ("-p noop -m name=a -m name=a", ["two missions", "'a'"]),
        ("-p noop --episodes 100000", ["--episodes is 100000", "held-out"]),
        ("-p noop --held-out 0", ["hold out a larger share"]),
        ("-p noop --guard-column x", ["--guard-column", "--guard-queries"]),
        ("-p noop --judge-accuracy missing.json", ["missing.json"]),
        ("-p noop --policy-wrapper proces", ["--policy-wrapper", "process"]),
        ("--baselines noop --fail-under success=0.5", ["--fail-under", "-p"]),
        ("--resume missing", ["missing"]),
    ],
)
def test_what_the_flags_have_wrong(capsys: Capture, arguments: str, says: list[str]) -> None:
    line = refused(capsys, "--ollama-host", "http://127.0.0.1:9", *FLAGS, *arguments.split())
    assert all(word in line for word in says), line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-p llm:sim-model --policy-wrapper process", ["llm:sim-model", "pickle"]),
        ("-p noop --policy-wrapper torch", ["'noop' has no torch network", "torch cannot serve"]),
        ("-p noop -m reward=judge", ["judge", "model"]),
        (f"-p class={'x' * 5000}.py:Shy", ["policy class", "there is no such file"]),
        (f"-p class={'x/' * 2500}mine.py:Shy", ["policy class", "there is no such file"]),
        ("-p cascade -p class=mine.py:Exits", ["cannot be made", "SystemExit(3)"]),
        (
            "-p class=mine.py:Shy,rate=2 --policy-wrapper process",
            ["mine.py:Shy,rate=2' cannot be made: ValueError: rate must be at most 1"],
        ),
    ],
)
def test_what_cannot_be_played_ends_it_before_anything_is_asked_and_leaves_no_folder(
    simulator: EmbeddedServer, capsys: Capture, arguments: str, says: list[str]
) -> None:
    asked = simulator.stats()["calls"]
    place = ("--ollama-host", simulator.host, *FLAGS, "--run-dir", "run")
    line = refused(capsys, *place, *arguments.split())
    assert all(word in line for word in says), line
    assert simulator.stats()["calls"] == asked
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), ["trained on by the run", "such as 'How do I cut", "--split-seed"]),
        (("--mutators", "noop,expand"), ["--mutators noop,shorten", "noop,expand"]),
        (("--encoder", "hashing:32"), ["--encoder hashing:64", "hashing:32"]),
    ],
)
def test_a_run_that_was_trained_on_the_queries_or_otherwise_than_the_mission(
    tmp_path: Path, capsys: Capture, flags: Sequence[str], says: list[str]
) -> None:
    config = {"encoder": "hashing:64", "mutators": ["noop", "shorten"], "target-model": "m"}
    with RunFolder(tmp_path / "run") as made:
        made.begin(config | {"num-env-steps": 8}, simulated=True)
    subjects = ("bread", "cake", "hair", "grass", "paper", "wood", "glass", "rope")
    queries = {"train": [f"How do I cut {subject}?" for subject in subjects]}
    (tmp_path / "run" / "queries.json").write_text(json.dumps(queries))
    (tmp_path / "run" / "policy.safetensors").touch()
    line = refused(capsys, "-p", str(tmp_path / "run"), *flags)
    assert all(word in line for word in says), line


def test_a_folder_that_is_not_what_it_is_to_go_on_with_or_to_be(
    simulator: EmbeddedServer, trained_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    run, host = str(tmp_path / "run"), ("--ollama-host", simulator.host)
    Path("a.toml").write_text("step-cost = 0.1\n")
    flags = ("-p", "noop", "-m", "a.toml", "--episodes", "2")
    assert evaluate(simulator, tmp_path / "run", *flags) == 0
    Path("a.toml").unlink()
    for arguments, says in (
        (("--resume", run, *host, "--agents", "2"), "--agents is 2"),
        (("--resume", str(trained_run)), f"{str(trained_run)!r}, a run of `mutagym train`"),
        ((*FLAGS, "-p", run, *host), "is an evaluation; expected"),
    ):
        assert says in refused(capsys, *arguments)
    assert execute(("train", "--resume", run, *host)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--resume names {run!r}, a run of `mutagym eval`: go on with that command" in line
    assert execute(("eval", "--resume", run, *host, "--power", "0.1", "--jobs", "2")) == 0
