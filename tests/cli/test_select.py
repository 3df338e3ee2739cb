"""`mutagym select` on the simulator: choices, a user's own evaluation, prices, chance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, replies, requests, search
from tests.runs import metrics, read

EVALUATE = """
def length(combination, datapoint, ask):
    ask(datapoint["text"], model="sim-target")
    return min(1.0, len(ask(datapoint["text"]).text) / 1000)

def fails(combination, datapoint, ask):
    raise RuntimeError("no idea")

def forgets(combination, datapoint, ask):
    ask(datapoint["text"], model="sim-solver")

def nobody(combination, datapoint, ask):
    return float(bool(ask(datapoint["text"], model="nobody").text))

def some(combination, datapoint, ask):
    if combination["model"].endswith("large"):
        raise RuntimeError("no idea")
    return 0.5
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's file of evaluations."""
    path = tmp_path / "mine.py"
    path.write_text(EVALUATE)
    return path


@pytest.fixture
def few(tmp_path: Path) -> tuple[str, ...]:
    """The flags of a small dataset of rows of the user's own."""
    path = tmp_path / "few.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"Tell me of number {k}."}) + "\n" for k in range(4))
    )
    return ("--task", str(path), "--selector", "brute_force")


def test_the_better_solver_is_named_in_fewer_calls_and_how_its_interval_narrowed_is_kept(
    whole: WholeSearches,
) -> None:
    results = read(whole["select"])
    best, other = results["combinations"]
    assert best["combination"] == {"model": "sim-solver-large"}
    assert (best["is_best"], other["is_best"]) == (True, False)
    assert results["evaluations"] == best["datapoints"] + other["datapoints"] < 400
    assert metrics(whole["select"])[-1]["select/evaluations"] == results["evaluations"]
    for row in results["combinations"]:
        last = [row["datapoints"], row["score"], row["low"], row["high"]]
        assert row["trail"][-1] == pytest.approx(last)
        assert [point[0] for point in row["trail"]][:3] == [1, 2, 4]
        widths = [high - low for _, _, low, high in row["trail"]]
        assert widths[-1] < widths[0]


def test_a_price_is_that_of_the_tokens_and_other_models_have_none(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = search("select", simulator.host, tmp_path / "run", "--price", "sim-solver-large=1:2")
    rows = {row["combination"]["model"]: row for row in read(run)["combinations"]}
    large = rows["sim-solver-large"]
    tokens = large["prompt_tokens"] + 2 * large["completion_tokens"]
    assert large["price"] == pytest.approx(tokens / 1e6)
    assert rows["sim-solver"]["price"] is None
    assert " price " in capsys.readouterr().out


def test_prompts_and_mutators_are_choices_of_their_own_and_a_users_texts_are_put_as_the_flags_say(
    simulator: EmbeddedServer, tmp_path: Path, few: tuple[str, ...], mine: Path
) -> None:
    for name in ("brief", "long"):
        (tmp_path / f"{name}.txt").write_text(f"Be {name}.")
    prompts = [f"--prompts={tmp_path / name}.txt" for name in ("brief", "long")]
    flags = [
        "--num-ctx",
        "2048",
        "--num-predict",
        "99",
        "--think=off",
        "--mutators",
        "noop,shorten",
    ]
    own = ("--evaluate", f"{mine}:length")
    run = search("select", simulator.host, tmp_path / "run", *few, *prompts, *flags, *own)
    rows = read(run)["combinations"]
    chosen = {tuple(row["combination"].values()) for row in rows}
    models = ("sim-solver", "sim-solver-large")
    assert chosen == {
        (m, p, r) for m in models for p in ("brief", "long") for r in ("noop", "shorten")
    }
    assert all(row["completion_tokens"] > 0 for row in rows)
    asked = {"temperature": 0, "num_ctx": 2048, "num_predict": 99}
    assert all((each["options"], each["think"]) == (asked, False) for each in requests(run))
    assert replies(run) == 3 * 2 * 4  # of both solvers, and of the model that the function names


@pytest.mark.parametrize(
    ("function", "code", "says"),
    [
        ("some", 0, "errors: sim-solver-large: 4 of 4, first OwnError: RuntimeError: no idea"),
        ("nobody", 1, "nobody"),
        ("fails", 2, "mine.py:fails' failed wherever it was tried first: RuntimeError: no idea"),
        (
            "forgets",
            2,
            "mine.py:forgets' failed wherever it was tried first: expected a score from 0 to 1",
        ),
    ],
)
def test_an_error_counts_against_its_combination_and_a_function_that_never_works_ends_the_search(
    simulator: EmbeddedServer,
    tmp_path: Path,
    few: tuple[str, ...],
    mine: Path,
    capsys: pytest.CaptureFixture[str],
    function: str,
    code: int,
    says: str,
) -> None:
    own = (*few, "--evaluate", f"{mine}:{function}")
    run = search("select", simulator.host, tmp_path / "run", *own, code=code)
    said = capsys.readouterr()
    assert says in (said.err if code else said.out)
    if code == 0:
        assert read(run)["combinations"][0]["combination"]["model"] == "sim-solver"
