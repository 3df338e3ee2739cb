"""`mutagym select` on the simulator: choices, selectors, a user's own evaluation, prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, replies, search
from tests.docs.snippets import snippets
from tests.runs import metrics, read

EVALUATE = """
from ollama_utils.types import Call

def length(combination, datapoint, ask):
    told = {"prompt": datapoint["text"], "system": combination.get("prompt")}
    reply = ask(Call(model=combination["model"], **told))
    return min(1.0, len(reply.text) / 1000)

def by_name(combination, datapoint, ask):
    return 1.0 if combination["model"].endswith("large") else 0.0

def fails(combination, datapoint, ask):
    raise RuntimeError("no idea")

def plain(combination, datapoint, ask):
    # a text is put as this call is, which is written out
    ask(datapoint["text"])
    told = {"system": combination.get("prompt"), "options": {"temperature": 0, "num_predict": 512}}
    return float(ask(Call(model=combination["model"], prompt=datapoint["text"], **told)).cached)

def forgets(combination, datapoint, ask):
    ask(datapoint["text"], model="sim-solver")

def nobody(combination, datapoint, ask):
    return float(bool(ask(datapoint["text"], model="nobody").text))

async def later(combination, datapoint, ask):
    return 1.0

def some(combination, datapoint, ask):
    if combination["model"].endswith("large"):
        raise RuntimeError("no idea")
    return 0.5
"""


@pytest.fixture(autouse=True)
def _whole_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as on a terminal of no known width, whoever runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's file of evaluations."""
    path = tmp_path / "mine.py"
    path.write_text(EVALUATE)
    return path


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A small dataset."""
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"text": f"Tell me of {k}."}) + "\n" for k in range(12)))
    return path


def test_the_better_solver_is_named_with_fewer_calls_than_there_are_cells(
    whole: WholeSearches,
) -> None:
    results = read(whole["select"])
    best, other = results["combinations"]
    assert best["combination"] == {"model": "sim-solver-large"}
    assert best["is_best"]
    assert not other["is_best"]
    assert best["low"] <= best["score"] <= best["high"]
    assert results["evaluations"] == best["datapoints"] + other["datapoints"]
    assert [line["select/evaluations"] for line in metrics(whole["select"])][-1] == results["evaluations"]


def test_how_each_interval_narrowed_is_kept(whole: WholeSearches) -> None:
    for row in read(whole["select"])["combinations"]:
        last = pytest.approx([row["datapoints"], row["score"], row["low"], row["high"]])
        assert row["trail"][-1] == last
        assert [point[0] for point in row["trail"]][:3] == [1, 2, 4]
        widths = [high - low for _, _, low, high in row["trail"]]
        assert widths[-1] < widths[0]


def test_the_report_shows_the_seconds_that_the_results_leave_out(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    run = search("select", simulator.host, tmp_path / "run", "--price", "sim-solver-large=1:2")
    assert all("latency_s" not in row for row in read(run)["combinations"])
    rows = {row["combination"]["model"]: row for row in read(run, "report.json")["combinations"]}
    assert all(row["latency_s"] >= 0 for row in rows.values())
    large = rows["sim-solver-large"]
    tokens = large["prompt_tokens"] + 2 * large["completion_tokens"]
    assert large["price"] == pytest.approx(tokens / 1e6)
    assert rows["sim-solver"]["price"] is None


def test_all_three_solvers_are_compared_where_no_model_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (
        "--time-scale",
        "0",
        "--slots",
        "8",
        "--selector",
        "random",
        "--run-dir",
        str(tmp_path / "run"),
    )
    assert execute(("select", "--ollama-host", "embedded", *flags)) == 0
    told = capsys.readouterr()
    assert told.out.startswith("SIMULATED: these figures")
    assert "evaluations: " in told.err
    models = {row["combination"]["model"] for row in read(tmp_path / "run")["combinations"]}
    assert models == {"sim-solver-small", "sim-solver", "sim-solver-large"}


def test_prompts_and_mutators_are_choices_of_their_own(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, mine: Path
) -> None:
    for name in ("brief", "long"):
        (tmp_path / f"{name}.txt").write_text(f"Be {name}.")
    prompts = [flag for name in ("brief", "long") for flag in ("--prompts", str(tmp_path / f"{name}.txt"))]
    flags = (
        "--dataset",
        str(few),
        *prompts,
        "--mutators",
        "noop,shorten",
        "--evaluate",
        f"{mine}:length",
    )
    run = search("select", simulator.host, tmp_path / "run", *flags)
    chosen = [row["combination"] for row in read(run)["combinations"]]
    assert len(chosen) == 8
    assert {each["prompt"] for each in chosen} == {"brief", "long"}
    assert {each["mutator"] for each in chosen} == {"noop", "shorten"}


def test_a_dataset_has_a_line_for_each_line_feed_whatever_else_is_in_it(
    simulator: EmbeddedServer, tmp_path: Path, mine: Path
) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes('\ufeff{"text": "One\u2028two"}\r\n{"text": "three\x85"}\r\n'.encode())
    flags = ("--task", str(path), "--evaluate", f"{mine}:by_name", "--selector", "brute_force")
    rows = read(search("select", simulator.host, tmp_path / "run", *flags))["combinations"]
    assert {row["datapoints"] for row in rows} == {2}


def test_a_users_evaluation_is_given_the_line_and_its_calls_are_counted(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, mine: Path
) -> None:
    flags = ("--task", str(few), "--evaluate", f"{mine}:length")
    rows = read(search("select", simulator.host, tmp_path / "run", *flags))["combinations"]
    assert all(row["completion_tokens"] > 0 for row in rows if row["datapoints"])
    named = read(search("select", simulator.host, tmp_path / "b", "--evaluate", f"{mine}:by_name"))
    assert named["combinations"][0]["combination"]["model"] == "sim-solver-large"
    assert named["dataset"] == "everyday"


def test_a_combination_that_fails_is_never_named_and_its_errors_are_told(
    simulator: EmbeddedServer,
    tmp_path: Path,
    few: Path,
    mine: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--task", str(few), "--evaluate", f"{mine}:some")
    rows = read(search("select", simulator.host, tmp_path / "run", *flags))["combinations"]
    assert rows[0]["combination"]["model"] == "sim-solver"
    assert "errors: sim-solver-large: " in capsys.readouterr().out


def test_where_all_fail_nobody_is_named(
    simulator: EmbeddedServer,
    tmp_path: Path,
    few: Path,
    mine: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--task", str(few), "--evaluate", f"{mine}:nobody")
    search("select", simulator.host, tmp_path / "run", *flags, code=1)
    assert "nobody" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("fails", "RuntimeError: no idea (line 13)"),
        ("forgets", "expected a score from 0 to 1, got None"),
    ],
)
def test_a_function_that_does_not_work_ends_the_search_at_once(
    simulator: EmbeddedServer,
    tmp_path: Path,
    few: Path,
    mine: Path,
    capsys: pytest.CaptureFixture[str],
    function: str,
    says: str,
) -> None:
    flags = ("--task", str(few), "--evaluate", f"{mine}:{function}", "--selector", "brute_force")
    search("select", simulator.host, tmp_path / "run", *flags, code=2)
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{mine}:{function}" in line
    assert says in line


def test_a_text_is_put_to_the_model_of_the_combination_under_its_prompt(
    simulator: EmbeddedServer, tmp_path: Path, few: Path, mine: Path
) -> None:
    (tmp_path / "brief.txt").write_text("Be brief.")
    flags = (
        "--task",
        str(few),
        "--evaluate",
        f"{mine}:plain",
        "--prompts",
        str(tmp_path / "brief.txt"),
    )
    rows = read(search("select", simulator.host, tmp_path / "run", *flags))["combinations"]
    assert [row["score"] for row in rows] == [1.0, 1.0]
    assert [row["verdict"] for row in rows] == ["best", "not distinguished from the best"]


def test_a_function_that_was_mended_goes_on_where_it_failed(
    simulator: EmbeddedServer, tmp_path: Path, few: Path
) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "run"
    code = """def judged(combination, datapoint, ask):
    reply = ask(datapoint["text"])
    return {}
"""
    mine.write_text(code.format("reply.txt"))
    flags = ("--task", str(few), "--evaluate", f"{mine}:judged", "--selector", "brute_force")
    search("select", simulator.host, folder, *flags, code=2)
    paid = replies(folder)
    mine.write_text(code.format("float(len(reply.text) > 9)"))
    before = simulator.stats()["calls"]
    assert execute(("select", "--resume", str(folder), "--trust-run")) == 0
    assert simulator.stats()["calls"] - before == replies(folder) - paid
    assert paid > 0


def test_the_evaluation_of_the_documents_names_the_better_solver(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    page = Path(__file__).parents[2] / "docs" / "searches.md"
    (code,) = [each.text for each in snippets(page) if "def right" in each.text]
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    run = search("select", simulator.host, tmp_path / "run", "--evaluate", f"{tmp_path / 'mine.py'}:right")
    best = read(run)["combinations"][0]
    assert best["combination"]["model"] == "sim-solver-large"
    assert best["score"] > 0.5


def test_what_cannot_be_selected_so_is_one_line(
    simulator: EmbeddedServer,
    tmp_path: Path,
    mine: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(mine.parent)
    table: list[tuple[tuple[str, ...], str]] = [
        (("--evaluate", "mine.py:later"), "an async def; expected a plain def"),
        (
            ("--evaluate", "mine.py:fails", "--scorer", "mine.py:fails"),
            "--scorer and --evaluate cannot",
        ),
        (("--models", "sim-solver"), "model=sim-solver alone is no choice"),
        (
            ("--price", "sim-solver-larg=1:2"),
            "'sim-solver-larg', which is not asked here; did you mean",
        ),
        (("--option", "seed=3"), "write --seed 3"),
        (("--option", "begin=3"), "'begin'; expected one of n_initial, growth_factor, seed"),
    ]
    for flags, says in table:
        search("select", simulator.host, tmp_path / "run", *flags, code=2)
        assert says in capsys.readouterr().err.splitlines()[-1]
        assert not (tmp_path / "run").exists()


def test_one_combination_alone_is_scored_by_brute_force(simulator: EmbeddedServer, tmp_path: Path) -> None:
    flags = ("--models", "sim-solver", "--selector", "brute_force")
    results = read(search("select", simulator.host, tmp_path / "run", *flags))
    assert [row["verdict"] for row in results["combinations"]] == ["best"]


def test_the_table_says_what_is_claimed_and_the_last_line_who_won(
    simulator: EmbeddedServer,
    tmp_path: Path,
    few: Path,
    mine: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--task", str(few), "--evaluate", f"{mine}:by_name", "--selector", "brute_force")
    search("select", simulator.host, tmp_path / "run", *flags)
    told = capsys.readouterr()
    assert " ruled out " in " ".join(told.out.split())
    assert "The best on these datapoints: all were seen." in told.out
    assert told.err.splitlines()[-1] == "evaluations: 24 made, best 1.000: model=sim-solver-large"
    assert metrics(tmp_path / "run")[-1]["select/best"] == 1.0


def test_results_do_not_depend_on_the_cap(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path
) -> None:
    one = search("select", simulator.host, tmp_path / "run", "--max-concurrent", "1")
    assert (one / "results.json").read_bytes() == (whole["select"] / "results.json").read_bytes()


def test_the_report_is_written_for_machines_too(
    whole: WholeSearches, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = whole.copy_of("select", tmp_path / "run")
    assert execute(("select", "--resume", str(run), "--trust-run", "--format", "json")) == 0
    assert json.loads(capsys.readouterr().out) == read(run, "report.json")
