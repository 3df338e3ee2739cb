"""What the calls of `mutagym evolve`, `select` and `optimize` carry: context length, limit, thinking."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from mutators.rewrite import most_tokens
from simulator.process import EmbeddedServer
from tests.cli.searches import COMMANDS, replies, requests, search

EVALUATE = """
from ollama_utils.types import Call

def texts(combination, datapoint, ask):
    return float(bool(ask(datapoint["text"]).text and ask(datapoint["text"], model="sim-target").text))

def calls(combination, datapoint, ask):
    told = {"options": {"temperature": 0, "num_ctx": 1024}, "think": False}
    return float(bool(ask(Call(model=combination["model"], prompt=datapoint["text"], **told)).text))
"""
LIMITS = {"evolve": "--num-predict", "select": "--num-predict", "optimize": "--max-tokens"}
MORE = {
    "evolve": (),
    "select": ("--mutators", "noop,paraphrase", "--selector", "brute_force"),
    "optimize": (),
}
"""So that models reword."""


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of 30 sums."""
    path = tmp_path_factory.mktemp("task") / "sums.jsonl"
    problems = ({"question": f"What is {k} + {k}?", "answer": 2 * k} for k in range(30))
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return path


def options(folder: Path, model: str = "") -> list[dict[str, object]]:
    """Those of the calls to a model; there are some."""
    found = [request["options"] for request in requests(folder, model)]
    assert found
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_call_carries_what_the_flags_say(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, command: str
) -> None:
    flags = ("--task", str(few), "--num-ctx", "2048", LIMITS[command], "99", "--think=off", *MORE[command])
    folder = search(command, simulator.host, tmp_path / "run", *flags)
    assert {each["num_ctx"] for each in options(folder)} == {2048}
    assert {each["num_predict"] for each in options(folder, "sim-solver")} == {99}
    limits = {each.get("num_predict") for each in options(folder, "sim-mutator")}
    own = {most_tokens(f"What is {k} + {k}?") for k in range(30)}  # of a question's rewording
    assert limits <= (own if command == "select" else {99})
    answer_or_reword = [*requests(folder, "sim-solver"), *requests(folder, "sim-mutator")]
    assert {each["think"] for each in answer_or_reword} == {False}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_rewords_is_not_made_to_think(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, command: str
) -> None:
    thinker = "--models" if command == "select" else "--target-model"
    flags = ("--task", str(few), *MORE[command], "--think", "on", thinker, "sim-thinker")
    folder = search(command, simulator.host, tmp_path / "run", *flags)
    assert {each["think"] for each in requests(folder, "sim-thinker")} == {True}
    assert {each["think"] for each in requests(folder, "sim-mutator")} == {False}


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_flag_replies_have_a_limit_and_the_rest_is_the_servers(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, command: str
) -> None:
    folder = search(command, simulator.host, tmp_path / "run", "--task", str(few), *MORE[command])
    assert not any("num_ctx" in each for each in options(folder))
    assert {each["num_predict"] for each in options(folder, "sim-solver")} == {512}
    assert {each.get("think") for each in requests(folder, "sim-solver")} == {None}


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, ...]:
    """The flags of a selection with a user's function, whose name is still to be put behind them."""
    (tmp_path / "mine.py").write_text(EVALUATE)
    (tmp_path / "few.jsonl").write_text(
        "".join(json.dumps({"text": f"Tell me of {k}."}) + "\n" for k in range(3))
    )
    flags = ("--num-ctx", "2048", "--num-predict", "99", "--think=off", "--selector", "brute_force")
    return ("--task", str(tmp_path / "few.jsonl"), *flags, "--evaluate")


def test_a_users_evaluation_puts_its_texts_as_the_flags_say(
    simulator: EmbeddedServer, tmp_path: Path, own: tuple[str, ...]
) -> None:
    folder = search("select", simulator.host, tmp_path / "run", *own, f"{tmp_path / 'mine.py'}:texts")
    asked = {"temperature": 0, "num_ctx": 2048, "num_predict": 99}
    assert replies(folder) == 3 * 3  # of both solvers, and of the model that the function names
    assert all(each == asked for each in options(folder))
    assert {each["think"] for each in requests(folder)} == {False}


def test_a_call_that_a_user_made_is_sent_as_it_is_with_a_limit(
    simulator: EmbeddedServer, tmp_path: Path, own: tuple[str, ...]
) -> None:
    folder = search("select", simulator.host, tmp_path / "run", *own, f"{tmp_path / 'mine.py'}:calls")
    asked = {"temperature": 0, "num_ctx": 1024, "num_predict": 512}
    assert all(each == asked for each in options(folder))


def test_a_model_that_may_not_think_answers_within_the_limit(
    simulator: EmbeddedServer, tmp_path: Path, few: Path
) -> None:
    """The simulator's thinker spends such a limit on its thoughts."""
    told = ("--ollama-host", simulator.host, "--models", "sim-thinker", "--task", str(few))
    flags = ("--selector", "brute_force", "--num-predict", "8", "--max-failed", "1")
    assert execute(("select", *told, *flags, "--think=off", "--run-dir", str(tmp_path / "a"))) == 0
    assert replies(tmp_path / "a") == 30
    assert execute(("select", *told, *flags, "--run-dir", str(tmp_path / "b"))) == 1
    assert replies(tmp_path / "b") < 30


def test_whether_models_think_is_what_a_search_is(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = search("select", simulator.host, tmp_path / "run", "--task", str(few), "--think=off")
    before = simulator.stats()["calls"]
    assert execute(("select", "--resume", str(folder), "--trust-run")) == 0
    assert simulator.stats()["calls"] == before
    capsys.readouterr()
    again = ("select", "--resume", str(folder), "--ollama-host", simulator.host, "--task", str(few))
    assert execute((*again, "--think=on")) == 2
    assert capsys.readouterr().err.startswith("mutagym: --think is 'on', but the run began with 'off'")
