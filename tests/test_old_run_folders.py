"""Run folders of earlier versions, in `fixtures/run_folders`: each is read, or one line says why not."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from simulator.process import EmbeddedServer

OLD = Path(__file__).parent / "fixtures" / "run_folders"
COMMANDS = ("train", "eval", "evolve", "select", "optimize")
ENDS = ("finished", "stopped", "killed")
FOLDERS = [f"{command}-{end}" for command in COMMANDS for end in ENDS]
TENSORS = "train-tensors"
"""A run that finished and has its policy as plain tensors, marked as made on a machine that is gone."""
TOKEN = "RUN_FOLDERS"  # noqa: S105 - begins the paths in the config.toml of the old folders
QUERY = "How do I kill a stuck process?"
NO_POLICY = {
    "train-killed": "has no policy.safetensors yet",
    **dict.fromkeys(("train-finished", "train-stopped"), "made by an earlier version.*train --resume"),
    **{name: "is an evaluation" for name in FOLDERS if name.startswith("eval")},
    **{name: "has no 'mutators'" for name in FOLDERS if name.startswith(("evolve", "optimize"))},
    **{name: "has no 'encoder'|no mutator named" for name in FOLDERS if name.startswith("select")},
}
"""What is said of the policy of each folder, as a pattern: policy.zip, which holds pickles, is not read."""
ASKED = [
    name
    if name.startswith("train") or name.endswith("finished")
    else pytest.param(name, marks=pytest.mark.soak)
    for name in FOLDERS
]
"""Of a command that leaves no policy one folder in `make test`: what is said does not depend on its end."""


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    """A copy of the old folder `name`; the files that it names are copied, too."""
    for each in {name, "train-finished"}:
        shutil.copytree(OLD / each, tmp_path / each)
        config = tmp_path / each / "config.toml"
        config.write_text(config.read_text().replace(TOKEN, str(tmp_path)))
    shutil.copy(OLD / "task.jsonl", tmp_path)
    return tmp_path / name


def run(*arguments: str) -> int:
    """Run `mutagym`; its exit code."""
    project = tomllib.loads((OLD.parents[2] / "pyproject.toml").read_text())["project"]
    module = importlib.import_module(project["scripts"]["mutagym"].partition(":")[0])
    return int(module.execute(arguments))


def check_refused(code: int, errors: str, why: str) -> None:
    """Check that a command ended with one line that says why."""
    assert code == 2
    (line,) = errors.splitlines()
    assert line.startswith("mutagym: ")
    assert re.search(why, line)


def lines(folder: Path) -> Sequence[str]:
    """The transitions of a run that was trained."""
    return (folder / "transitions.jsonl").read_text().splitlines()


def results(folder: Path) -> dict[str, Any]:
    """What a finished run came to, fractions left out: their last digits are the processor's."""
    text = (folder / "results.json").read_text()
    read: dict[str, Any] = json.loads(text, parse_float=lambda _: None)
    return read


def not_reworded(evaluation: dict[str, Any]) -> dict[str, Any]:
    """What of an evaluation no prompt for a rewording decides: who played what, and all that noop did."""
    noop = [team["name"] for team in evaluation["teams"]].index("noop")
    where = ("mission", "team", "episode", "query")
    episodes = [
        each if each["team"] == noop else {key: each[key] for key in where} for each in evaluation["episodes"]
    ]
    return {key: evaluation[key] for key in evaluation.keys() - {"fits"}} | {"episodes": episodes}


def not_searched(search: dict[str, Any]) -> dict[str, Any]:
    """What of a search for a prompt no rewording decides."""
    return {key: search[key] for key in ("simulated", "steps", "rewarded_steps", "candidates", "seed_prompt")}


def not_eliminated(selection: dict[str, Any]) -> dict[str, Any]:
    """What of a selection does not depend on how many datapoints each combination was evaluated at."""
    return {key: selection[key] for key in ("simulated", "selector", "seed", "best", "dataset_size", "claim")}


def test_there_is_an_old_folder_of_each_command_and_each_end() -> None:
    assert sorted(path.name for path in OLD.iterdir() if path.is_dir()) == sorted([*FOLDERS, TENSORS])


@pytest.mark.parametrize(
    "name",
    [
        name
        if name.endswith("killed") or name in {"train-finished", "select-finished"}
        else pytest.param(name, marks=pytest.mark.soak)
        for name in FOLDERS
        if not name.startswith("evolve")
    ],
)
def test_an_old_run_goes_on_to_its_end(simulator: EmbeddedServer, folder: Path, name: str) -> None:
    command = name.partition("-")[0]
    whole = OLD / f"{command}-finished"
    if command == "eval":  # it evaluates the policy of an old run, which is to be written anew first
        trained = str(folder.parent / "train-finished")
        assert run("train", "--resume", trained, "--ollama-host", simulator.host) == 0
    # Earlier versions did not mark a run as made here.
    assert run(command, "--resume", str(folder), "--trust-run", "--ollama-host", simulator.host) == 0
    assert {path.name for path in whole.iterdir()} <= {path.name for path in folder.iterdir()}
    if command == "train":
        done = lines(OLD / name)
        assert lines(folder)[: len(done)] == done
        assert json.loads((folder / "summary.json").read_text())["env_steps"] == 48
        assert run("ask", "--policy", str(folder), "--ollama-host", simulator.host, QUERY) == 0
    else:
        before, after = results(whole), results(folder)
        if command == "eval":  # what was not played yet is reworded by the prompts of today
            before, after = map(not_reworded, (before, after))
        if command == "select":  # what is evaluated when, and so where elimination stops, is another
            before, after = map(not_eliminated, (before, after))
        if command == "optimize":  # no prompt is specialized any more
            before, after = map(not_searched, (before, after))
        assert {key: after[key] for key in before} == before


@pytest.mark.parametrize("name", [f"evolve-{end}" for end in ENDS])
def test_an_old_evolution_whose_prompts_were_specialized_otherwise_is_refused(
    simulator: EmbeddedServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run("evolve", "--resume", str(folder), "--trust-run", "--ollama-host", simulator.host)
    trusted, *errors = capsys.readouterr().err.splitlines()
    assert trusted.startswith("trusted: ")
    check_refused(
        code, "\n".join(errors), "--failures-shown is 5, but the run began with none, or before there was"
    )


@pytest.mark.parametrize("name", ASKED)
def test_an_old_policy_is_not_evaluated_before_its_run_has_written_it_anew(
    simulator: EmbeddedServer, folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    new = folder.parent / "new"
    few = ("--episodes", "2", "--baselines", "noop", "--format", "json", "--run-dir", str(new))
    code = run("eval", "-p", str(folder), "--ollama-host", simulator.host, *few)
    check_refused(code, capsys.readouterr().err, NO_POLICY[name])
    assert not new.exists()


@pytest.mark.parametrize("name", ASKED)
def test_an_old_policy_is_not_asked_before_its_run_has_written_it_anew(
    simulator: EmbeddedServer, folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code = run("ask", "--policy", str(folder), "--ollama-host", simulator.host, "--json", QUERY)
    check_refused(code, capsys.readouterr().err, NO_POLICY[name])


@pytest.mark.parametrize("name", [TENSORS])
def test_a_run_of_another_machine_that_names_nothing_of_it_is_used_and_gone_on_with_as_it_stands(
    simulator: EmbeddedServer, folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run("ask", "--policy", str(folder), "--ollama-host", simulator.host, "--json", QUERY) == 0
    assert json.loads(capsys.readouterr().out)["policy"].endswith(name)
    assert run("train", "--resume", str(folder), "--ollama-host", simulator.host) == 0
    assert lines(folder) == lines(OLD / name)
    assert "trusted:" not in capsys.readouterr().err
