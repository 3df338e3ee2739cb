"""The page of a run: what is on it is what the run left, and what is damaged is left out and said."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import execute
from evaluation.gates import read_gates
from evaluation.report import report as evaluated
from report.charts import COLORS, evaluation_charts
from report.evaluations import evaluation_tables
from report.page import MOST_TRANSITIONS, as_script_data, names_of
from report.run_files import read_run
from tests.evaluation.evaluations import ACCURACY, full
from tests.report.made_runs import OLD, changed, copied, data_of, report
from train.summary import rates

FOLDERS = sorted(path.name for path in OLD.iterdir() if path.is_dir())
FINISHED = [name for name in FOLDERS if name.endswith("finished")]
SHOWN = {
    "train-finished": (
        "Learning curves",
        "Mutators over time",
        "Success by mutator and category",
        "parts",
        "slots",
    ),
    "eval-finished": ("Policies side by side", "Mutators that the policies chose", "slots"),
    "evolve-finished": ("Fitness by generation", "slots"),
    "select-finished": ("The search, round by round", "slots"),
    "optimize-finished": ("Reward and fitness", "slots"),
}


def notes(page: str) -> list[str]:
    found = re.search(r'<aside class="notes".*?</aside>', page, re.DOTALL)
    return re.findall(r"<li>(.*?)</li>", found[0]) if found else []


@pytest.mark.parametrize("name", FOLDERS)
def test_each_old_run_folder_has_a_page_and_nothing_is_written_into_it(name: str, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in OLD.rglob("*")}
    page = report(OLD / name, output=tmp_path / "page.html")
    assert page.startswith("<!DOCTYPE html>")
    assert {path: path.stat().st_mtime_ns for path in OLD.rglob("*")} == before


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_has_its_charts(name: str, tmp_path: Path) -> None:
    page = report(OLD / name, output=tmp_path / "page.html")
    (run,) = data_of(page)["runs"]
    titles = " ".join(chart["title"] for chart in run["charts"])
    assert all(title in titles for title in SHOWN[name])
    assert len(re.findall("<figure", page)) == len(run["charts"])


def test_the_headline_of_a_training_is_that_of_its_summary(tmp_path: Path) -> None:
    page = report(OLD / "train-seed-1", output=tmp_path / "page.html")
    # The run is of a version with other intervals.
    rows, rollout = 24, 8
    lines = read_run(OLD / "train-seed-1", "run").transitions()
    summary = rates(lines, rows=rows, rollout=rollout, max_steps=5)
    for measure in ("success", "refusal"):
        for end in ("start", "end"):
            wanted = [summary[f"{measure}_rate_{end}"], *summary[f"{measure}_interval_{end}"]]
            pattern = rf"<tr>\s*<th scope=\"row\"><bdi>{measure}.*?</tr>"
            (row,) = re.findall(pattern, page, re.DOTALL | re.IGNORECASE)
            told = re.findall(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", row)[end == "end"]
            assert [float(each) / 100 for each in told] == pytest.approx(wanted, abs=6e-4)


def test_the_transitions_on_the_page_are_those_of_the_run(tmp_path: Path) -> None:
    lines = [
        json.loads(line) for line in (OLD / "train-finished" / "transitions.jsonl").read_text().splitlines()
    ]
    run = copied("train-finished", tmp_path)
    queries = json.loads((run / "queries.json").read_text())
    queries["categories"] = dict.fromkeys(queries["train"], "violence_words")
    (run / "queries.json").write_text(json.dumps(queries))
    steps = data_of(report(run, output=tmp_path / "page.html"))["runs"][0]["steps"]
    texts, columns = steps["texts"], steps["columns"]
    for name in ("original_query", "mutated_query", "reply", "mutator"):
        assert [texts[place] for place in columns[name]] == [line[name] for line in lines]
    assert [steps["reward_parts"][place] for place in columns["parts"]] == [
        line["reward_parts"] for line in lines
    ]
    assert {texts[place] for place in columns["category"]} == {"violence_words"}


def test_the_last_transitions_are_kept_where_there_are_many(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert execute(["report", str(OLD / "train-finished"), "-o", str(path), "--transitions", "5"]) == 0
    page = path.read_text()
    assert len(data_of(page)["runs"][0]["steps"]["columns"]["lane"]) == 5
    assert "Transitions: the last 5 of 48" in " ".join(notes(page))


@pytest.mark.parametrize(
    ("name", "file", "content", "note"),
    [
        (
            "train-finished",
            "transitions.jsonl",
            None,
            "Learning curves: left out, there is no transitions.jsonl",
        ),
        (
            "train-finished",
            "transitions.jsonl",
            '{"row": 0}\n',
            "Transitions: left out, a file is damaged (ValueError",
        ),
        ("train-finished", "replies.sqlite", None, "slots: left out, there is no replies.sqlite"),
        ("train-finished", "replies.sqlite", "no database", "slots: left out, a file is damaged"),
        ("train-finished", "summary.json", "[]", "Summary: left out, a file is damaged"),
        (
            "eval-finished",
            "report.json",
            '{"rates": [{"mission": 1}]}',
            "Tables: left out, a file is damaged",
        ),
        (
            "eval-finished",
            "report.json",
            '{"rates": [], "comparisons": [], "problems": null}',
            "Problems: left out, a file is damaged",
        ),
        ("evolve-finished", "results.json", '{"held_out": 3}', "Tables: left out, a file is damaged"),
        ("select-finished", "results.json", '{"combinations": {}}', "Tables: left out, a file is damaged"),
        ("optimize-finished", "metrics.jsonl", '{"step": "x"}\n', "slots"),
    ],
)
def test_what_is_missing_or_damaged_is_left_out_and_said(
    name: str, file: str, content: str | None, note: str, tmp_path: Path
) -> None:
    run = copied(name, tmp_path)
    (run / file).unlink()
    if content is not None:
        (run / file).write_text(content)
    page = report(run, output=tmp_path / "page.html")
    assert note in " ".join(notes(page)) + page


def test_a_torn_last_line_ends_the_transitions(tmp_path: Path) -> None:
    run = copied("train-finished", tmp_path)
    with (run / "transitions.jsonl").open("a") as file:
        file.write('{"row": 24, "la')
    steps = data_of(report(run, output=tmp_path / "page.html"))["runs"][0]["steps"]
    assert steps["total"] == 48


def test_nothing_that_a_run_says_becomes_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e"

    def say(_number: int, line: dict[str, Any]) -> dict[str, Any]:
        return line | {"reply": evil, "mutator": evil, "original_query": evil, "query_before": evil}

    run = changed(copied("train-finished", tmp_path), say)
    (run / "summary.json").write_text(json.dumps({"target_model": evil, "wall_s": 1.0, "env_steps": 48}))
    page = report(run, output=tmp_path / "page.html")
    assert "<img" not in page
    assert "alert(1)</script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page.split("<body>")[1].split('<script type="application/json"')[0]
    assert evil in data_of(page)["runs"][0]["steps"]["texts"]


@given(st.lists(st.text(), max_size=4))
def test_data_in_a_script_block_are_read_back_and_hold_no_markup(data: list[str]) -> None:
    text = as_script_data(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)
    text.encode()


def test_half_of_a_surrogate_pair_and_nan_can_be_written() -> None:
    assert as_script_data(["\ud800", math.nan, (math.inf,)]).encode() == rb'["\ud800",null,[null]]'


def test_equal_names_are_told_apart_and_seeds_by_their_training(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/run", "b/run", "c/seed-0", "c/seed-1")]
    for path in paths:
        path.mkdir(parents=True)
    assert names_of(paths[:1]) == ["run"]
    assert names_of(paths[:2]) == ["a/run", "b/run"]
    assert names_of(paths[2:]) == ["c/seed-0", "c/seed-1"]


def test_the_seeds_of_a_training_stand_side_by_side(tmp_path: Path) -> None:
    whole = copied("train-finished", tmp_path)
    for seed in (0, 1):
        copied("train-seed-1", tmp_path).rename(whole / f"seed-{seed}")
    data = data_of(report(whole, output=tmp_path / "page.html"))
    assert [run["name"] for run in data["runs"]] == ["train-finished/seed-0", "train-finished/seed-1"]
    assert [len(panel["series"]) for panel in data["together"][0]["panels"]] == [2, 2, 2, 2]


def test_a_page_is_written_into_the_run_folder(tmp_path: Path) -> None:
    run = copied("train-finished", tmp_path)
    assert execute(["report", str(run)]) == 0
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "no run is named"),
        (("{old}/train-finished", "{old}/eval-finished"), "name its file with -o"),
        (("{tmp}",), "expected the folder of a run"),
        (("{old}/train-finished", "-o", "{tmp}/no/such.html"), "expected a file in a folder that exists"),
        (("{tmp}/other",), "of no command that writes run folders"),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    arguments: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").write_text("port = 1\n")
    assert execute(["report", *(each.format(old=OLD, tmp=tmp_path) for each in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def fact(page: str, name: str) -> str:
    (value,) = re.findall(rf"<dt>{re.escape(name)}</dt><dd><bdi>(.*?)</bdi>", page)
    return str(value)


def test_the_facts_of_an_evaluation_are_those_of_its_missions(tmp_path: Path) -> None:
    run = copied("eval-finished", tmp_path)
    missions = json.loads((run / "missions.json").read_text())
    other = missions["default"] | {"target-model": "other-target", "reward": "judge"}
    (run / "missions.json").write_text(json.dumps(missions | {"other": other}))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('target-model = "sim-target"\n', ""))
    page = report(run, output=tmp_path / "page.html")
    assert fact(page, "target") == "sim-target, other-target"
    assert fact(page, "reward") == "refusal, judge"


@pytest.mark.parametrize(
    ("whole", "facts"),
    [
        (None, {"model calls, last process": "61", "wall, last process": "0 s"}),
        (61, {"model calls": "61", "wall": "0 s"}),
        (200, {"model calls": "200", "wall, last process": "0 s", "from the cache, last process": "77"}),
    ],
)
def test_what_is_counted_of_the_last_process_alone_is_said(
    whole: int | None, facts: dict[str, str], tmp_path: Path
) -> None:
    run = copied("eval-finished", tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    totals = {"calls": whole, "retries": 0, "failures": 0, "completion_tokens": 9}
    (run / "summary.json").write_text(json.dumps(summary | ({"whole_run": totals} if whole else {})))
    page = report(run, output=tmp_path / "page.html")
    assert {name: fact(page, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("servers", "host", "said"),
    [
        ({"simulated": True}, "http://127.0.0.1:1", "<strong>Simulated.</strong>"),
        ({"simulated": False}, "http://127.0.0.1:1", ""),
        (None, "http://127.0.0.1:1", "<strong>Simulated or not: unknown.</strong>"),
        (None, "embedded", "<strong>Simulated.</strong>"),
    ],
)
def test_a_run_without_a_summary_says_whether_it_is_simulated(
    servers: dict[str, Any] | None, host: str, said: str, tmp_path: Path
) -> None:
    run = copied("train-killed", tmp_path)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"embedded"', f'"{host}"'))
    if servers:
        (run / "servers.json").write_text(json.dumps(servers))
    page = report(run, output=tmp_path / "page.html")
    assert re.findall(r'<p class="simulated">(<strong>.*?</strong>)', page) == [said] * bool(said)


def test_a_damaged_line_is_said_and_so_is_what_is_missing(tmp_path: Path) -> None:
    run = copied("train-finished", tmp_path)
    lines = (run / "transitions.jsonl").read_text().splitlines(keepends=True)
    for left, says in (
        (lines[:9], "Transitions: 39 of the run&#39;s 48 are not in its transitions.jsonl."),
        (
            [*lines[:9], "{torn\n", *lines[10:]],
            "Transitions: left out, a file is damaged (ValueError: line 10",
        ),
    ):
        (run / "transitions.jsonl").write_text("".join(left))
        said = notes(report(run, output=tmp_path / "page.html"))
        (note,) = (note for note in said if note.startswith("Transitions:"))
        assert note.startswith(says)


def test_without_transitions_there_is_no_browser(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert execute(["report", str(OLD / "train-finished"), "-o", str(path), "--transitions", "0"]) == 0
    assert data_of(path.read_text())["runs"][0]["steps"] is None
    assert "the last 0 of 48" in " ".join(notes(path.read_text()))


def guarded(run: Path) -> Path:
    """The evaluation, of two missions, with transitions of which every second is of a guard query."""

    def changed_line(number: int, line: dict[str, Any]) -> dict[str, Any]:
        guard = {"guard": True} if number % 2 else {}
        return line | {"mission": number % 3 % 2, "team": 0, "success": bool(guard)} | guard

    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("save-transitions = false", "save-transitions = true"))
    missions = json.loads((run / "missions.json").read_text())
    (run / "missions.json").write_text(json.dumps(missions | {"other": missions["default"]}))
    (run / "transitions.jsonl").write_bytes((OLD / "train-finished" / "transitions.jsonl").read_bytes())
    return changed(run, changed_line)


def test_guard_queries_are_in_no_success_and_missions_are_told_apart(tmp_path: Path) -> None:
    run = guarded(copied("eval-finished", tmp_path))
    (shown,) = data_of(report(run, output=tmp_path / "page.html"))["runs"]
    (heat,) = (chart for chart in shown["charts"] if chart["kind"] == "heat")
    assert sum(n for *_, n in heat["cells"]) == 24
    assert sum(successes for *_, successes, _ in heat["cells"]) == 0
    texts, columns = shown["steps"]["texts"], shown["steps"]["columns"]
    missions = [texts[place] for place in columns["mission"]]
    assert missions == [("default", "other")[k % 3 % 2] for k in range(48)]


def test_the_page_of_an_evaluation_has_all_tables_of_its_report(tmp_path: Path) -> None:
    run = copied("eval-finished", tmp_path)
    gates = read_gates(("success=0.9", "kept=0.5"), (), ["mission 0", "mission 0 guard"], ["mission 0 guard"])
    told = evaluated(full(8), power=0.05, accuracy=ACCURACY, gates=gates)
    (run / "report.json").write_text(json.dumps(told))
    page = html.unescape(report(run, output=tmp_path / "page.html"))
    tables = [table for table in evaluation_tables(told) if table.rows]
    assert len(tables) == 13
    for table in tables:
        assert table.caption in page
        assert table.says in page
        for cell in (cell for row in table.rows for cell in row):
            assert cell in page


def test_runs_share_the_transitions_of_a_page(tmp_path: Path) -> None:
    runs = [copied("train-finished", tmp_path / str(number)) for number in range(3)]
    lines = (OLD / "train-finished" / "transitions.jsonl").read_text().splitlines(keepends=True)
    (runs[0] / "transitions.jsonl").write_text("".join(lines[:2] * (MOST_TRANSITIONS // 4)))
    page = report(*runs, output=tmp_path / "page.html")
    assert len(data_of(page)["runs"][0]["steps"]["columns"]["lane"]) == MOST_TRANSITIONS // 3


def test_many_mutators_are_told_apart_by_as_many_colours_as_there_are() -> None:
    row = {"mission": "m", "team": "t", "policy": None, "mutators": {f"m{k}": 1 / 20 for k in range(20)}}
    rate = {"rate": 0.5, "mean": 0.5, "low": 0.1, "high": 0.9}
    told = {"rates": [row | dict.fromkeys(("success", "refusal", "return"), rate)]}
    (bars,) = (chart for chart in evaluation_charts(told) if chart["kind"] == "bars")
    assert len(bars["names"]) == COLORS
    assert sum(bars["rows"][0][1]) == pytest.approx(1.0)
