"""`mutagym select` on the simulator: choices, selectors, a user's own evaluation, prices, chance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, replies, requests, resume, search
from tests.runs import metrics, read

EVALUATE = """
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call

def call(combination, datapoint, **options):
    return Call(model=combination["model"], prompt=datapoint["text"], options=options)

def length(combination, datapoint, ask):
    ask(datapoint["text"], model="sim-target")
    return min(1.0, len(ask(datapoint["text"]).text) / 1000)

def by_name(combination, datapoint, ask):
    return 1.0 if combination["model"].endswith("large") else 0.0

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

def share(told):
    # a number that other texts, or the same in another order, do not give
    assert len({reply.text for reply in told}) == 5
    return int.from_bytes("|".join(reply.text for reply in told).encode(), "big") % 997 / 997

def votes(combination, datapoint, ask):
    return share([ask(call(combination, datapoint, temperature=1)) for _ in range(5)])

def slip(combination, datapoint, ask):
    return votes(combination, datapoint, ask).nothing

def at_once(combination, datapoint, ask):
    calls = [call(combination, datapoint, temperature=1, seed=-1) for _ in range(5)]
    return len({reply.text for reply in map_parallel(ask, calls)}) / 5  # in whatever order

def as_it_is(combination, datapoint, ask):
    for options in ({"temperature": 1, "seed": 7, "num_ctx": 1024}, {"temperature": 0, "num_ctx": 1024}):
        first, again = (ask(call(combination, datapoint, **options)) for _ in range(2))
        assert (again.text, again.cached) == (first.text, True)
    return 1.0
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


def test_the_simulators_three_solvers_are_compared_where_no_model_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = (
        "--ollama-host",
        "embedded",
        "--time-scale",
        "0",
        "--slots",
        "8",
        "--selector",
        "random",
    )
    assert execute(("select", *simulated, "--run-dir", str(tmp_path / "run"))) == 0
    assert capsys.readouterr().out.startswith("SIMULATED: these figures")
    models = {row["combination"]["model"] for row in read(tmp_path / "run")["combinations"]}
    assert models == {"sim-solver-small", "sim-solver", "sim-solver-large"}


def test_prompts_and_mutators_are_choices_of_their_own_and_a_users_texts_are_put_as_the_flags_say(
    simulator: EmbeddedServer, tmp_path: Path, few: tuple[str, ...], mine: Path
) -> None:
    for name in ("brief", "long"):
        (tmp_path / f"{name}.txt").write_text(f"Be {name}.")
    prompts = [f"--prompts={tmp_path / name}.txt" for name in ("brief", "long")]
    flags = (
        "--num-ctx",
        "2048",
        "--num-predict",
        "99",
        "--think=off",
        "--mutators",
        "noop,shorten",
    )
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


def test_a_users_evaluation_takes_the_bundled_task_and_one_combination_alone_by_brute_force(
    simulator: EmbeddedServer, tmp_path: Path, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = (
        "--models",
        "sim-solver-large",
        "--selector",
        "brute_force",
        "--evaluate",
        f"{mine}:by_name",
    )
    results = read(search("select", simulator.host, tmp_path / "run", *own))
    assert results["dataset"] == "everyday"
    assert [row["verdict"] for row in results["combinations"]] == ["best"]
    assert "The best on these datapoints: all were seen." in results["claim"]
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "evaluations: 200 made, best 1.000: model=sim-solver-large"


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


def seeds(folder: Path) -> list[int]:
    """The seeds of the calls whose replies a run has."""
    return sorted(request["options"]["seed"] for request in requests(folder))


def test_each_ask_left_to_chance_draws_a_reply_and_every_run_draws_the_same(
    simulator: EmbeddedServer, tmp_path: Path, few: tuple[str, ...], mine: Path
) -> None:
    own = (*few, "--models", "sim-target", "--evaluate")

    def run(name: str, function: str, *flags: str) -> Path:
        told = (*own, f"{mine}:{function}", *flags)
        return search("select", simulator.host, tmp_path / name, *told)

    one, other = run("one", "votes"), run("other", "votes", "--max-concurrent", "1")
    assert (len(set(seeds(one))), replies(one)) == (5, 5 * 4)
    assert read(one) == read(other)
    assert read(one)["errors"] == 0
    assert not set(seeds(run("seeded", "votes", "--seed", "1"))) & set(seeds(one))
    assert seeds(run("at once", "at_once")) == seeds(one)
    as_it_is = run("as it is", "as_it_is")
    assert read(as_it_is)["combinations"][0]["score"] == 1.0
    assert {each["options"]["num_ctx"] for each in requests(as_it_is)} == {1024}
    assert {each["options"]["num_predict"] for each in requests(as_it_is)} == {512}


def test_a_function_that_was_mended_goes_on_with_the_replies_that_it_had(
    simulator: EmbeddedServer, tmp_path: Path, few: tuple[str, ...], mine: Path
) -> None:
    folder, own = tmp_path / "run", (*few, "--models", "sim-target", "--evaluate")
    search("select", simulator.host, folder, *own, f"{mine}:slip", code=2)
    paid, asked = replies(folder), simulator.stats()["calls"]
    mine.write_text(EVALUATE.replace(".nothing", ""))
    resume("select", folder)
    assert simulator.stats()["calls"] - asked == replies(folder) - paid
    assert paid > 5
    whole = search("select", simulator.host, tmp_path / "whole", *own, f"{mine}:votes")
    assert read(folder)["combinations"] == read(whole)["combinations"]
