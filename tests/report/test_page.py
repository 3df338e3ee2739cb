"""The page of a run: what the run left is on it; what is damaged is left out, and noted."""

from __future__ import annotations

import html
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import execute
from report.page import as_script_data
from report.steps import MOST_CHARS
from tests.report.made_runs import SERVER, changed, chart_of, data_of, edit, lines_of, read, report

SEED = "train/seed-0"
SLOTS, HEAT, CURVE = "The servers' slots", "Success by mutator and category", "Learning curve"
TITLES = {
    SEED: [
        CURVE,
        "Return, refusals and failures",
        SLOTS,
        HEAT,
        "Mutators over time",
        "The reward's parts",
    ],
    "eval": ["Policies side by side", "Mutators that the policies chose", HEAT, SLOTS],
    "evolve": ["Fitness by generation", "Lineage", SLOTS],
    "select": ["How each combination's interval narrowed", "The search, round by round", SLOTS],
    "optimize": ["Reward and fitness", SLOTS],
}
TABLES = {SEED: 1, "eval": 6, "evolve": 2, "select": 1, "optimize": 2}
OPENED: list[str] = []


def notes(page: str) -> str:
    asides = re.findall(r'<aside class="notes".*?</aside>', page, re.DOTALL)
    return html.unescape(" | ".join(re.findall(r"<li>(.*?)</li>", " ".join(asides))))


def texts_of(steps: dict[str, Any], name: str) -> list[str]:
    return [steps["texts"][place] for place in steps["columns"][name]]


@pytest.fixture(scope="module", autouse=True)
def _opened() -> None:
    """Keeps the path of each file that is opened."""
    events = {"open", "sqlite3.connect", "socket.connect"}
    sys.addaudithook(lambda event, given: OPENED.append(str(given[0])) if event in events else None)


@pytest.mark.parametrize("name", TITLES)
def test_a_run_has_its_charts_and_nothing_is_written_or_read_elsewhere(
    name: str, runs: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    OPENED.clear()
    page = report(runs / name, output=tmp_path / "page.html")
    of_runs = [path for path in OPENED if str(runs) in path]
    assert of_runs
    assert all(str(runs / name) in path for path in of_runs)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before
    assert [chart["title"] for chart in data_of(page)["charts"]] == TITLES[name]
    assert len(re.findall("<figure", page)) == len(TITLES[name])
    assert len(re.findall("<caption", page)) == TABLES[name]
    assert "is damaged" not in notes(page)


def test_the_headline_of_a_training_is_that_of_its_summary(runs: Path, tmp_path: Path) -> None:
    page = report(runs / SEED, output=tmp_path / "page.html")
    summary = read(runs / SEED / "summary.json")
    for measure in ("success", "refusal"):
        (row,) = re.findall(rf"<bdi>{measure}s?, %.*?</tr>", page, re.DOTALL | re.IGNORECASE)
        shown = re.findall(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", row)
        for end, numbers in zip(("start", "end"), shown, strict=True):
            wanted = [summary[f"{measure}_rate_{end}"], *summary[f"{measure}_interval_{end}"]]
            assert [float(each) / 100 for each in numbers] == pytest.approx(wanted, abs=6e-4)


def test_success_is_drawn_beside_the_baselines_of_an_evaluation_on_the_page(
    runs: Path, tmp_path: Path
) -> None:
    chart = chart_of(report(runs / "train", runs / "eval", output=tmp_path / "page.html"), CURVE)
    lines = {row[1]: row[2:] for row in chart["rows"]}
    rates = {
        (row["team"], row["policy"]): [row["success"][end] for end in ("rate", "low", "high")]
        for row in read(runs / "eval" / "report.json")["rates"]
    }
    for name in ("noop", "best_fixed", "cascade"):
        assert lines[name] == [None, None, *rates[name, None]]
    for seed in ("seed-0", "seed-1"):
        assert lines[f"train/{seed}, held-out"] == [
            *lines[f"train/{seed}"][:2],
            *rates["train", seed],
        ]
    assert "are of eval: success on held-out queries" in chart["says"]
    alone = chart_of(report(runs / SEED, output=tmp_path / "page.html"), CURVE)
    assert {row[1] for row in alone["rows"]} == {SEED}
    assert f"mutagym eval -p {runs / SEED}, then mutagym report with both folders" in alone["says"]


def test_a_training_has_no_baseline_of_another_mission(runs: Path, tmp_path: Path) -> None:
    played = changed(runs / "eval", tmp_path)
    (mission,) = read(played / "report.json")["missions"]
    changes: tuple[dict[str, object], ...] = (
        {},
        {"max_steps": 1},
        {"reward": "judge"},
        {"target_model": "other"},
    )
    for number, change in enumerate(changes):
        edit(played / "report.json", missions=[mission | change])
        page = report(runs / SEED, played, output=tmp_path / "page.html")
        names = [row[1] for row in chart_of(page, CURVE)["rows"]]
        assert names.count("noop") == (number == 0)


def test_the_transitions_on_the_page_are_those_of_the_run(runs: Path, tmp_path: Path) -> None:
    lines, path = lines_of(runs / SEED), tmp_path / "page.html"
    (steps,) = data_of(report(runs / SEED, output=path))["steps"]
    for name in ("original_query", "mutated_query", "reply", "mutator"):
        assert texts_of(steps, name) == [line[name] for line in lines]
    assert list(map(json.loads, texts_of(steps, "reward_parts"))) == [
        line["reward_parts"] for line in lines
    ]
    assert steps["columns"]["success"] == [line["success"] for line in lines]
    assert set(texts_of(steps, "category")) == {"violence_words"}
    page = report(runs / SEED, output=path, flags=("--transitions", "5"))
    (last,) = data_of(page)["steps"]
    assert texts_of(last, "reply") == [line["reply"] for line in lines[-5:]]
    assert "the last 5 of 48" in notes(page)
    assert data_of(report(runs / SEED, output=path, flags=("--transitions", "0")))["steps"] == [
        None
    ]


def test_long_texts_are_cut_and_their_rest_is_found(runs: Path, tmp_path: Path) -> None:
    run = changed(
        runs / SEED, tmp_path, lambda k, line: line | {"reply": f"{k} {'word ' * 12_000}"}
    )
    path = tmp_path / "pages" / "page.html"
    path.parent.mkdir()
    (steps,) = data_of(report(run, output=path, flags=("--transitions", "20")))["steps"]
    whole = lines_of(run)[steps["first_line"] - 1]["reply"]
    assert (steps["first_line"], texts_of(steps, "reply")[0]) == (29, whole[:MOST_CHARS])
    assert steps["cut"][str(steps["columns"]["reply"][0])] == len(whole)
    assert (path.parent / steps["href"]).resolve() == run / "transitions.jsonl"


def test_what_came_in_the_middle_of_a_training_alone_is_on_the_page(
    runs: Path, tmp_path: Path
) -> None:
    def change(number: int, line: dict[str, Any]) -> dict[str, Any]:
        if number == 24:
            return line | {"outcome": "filtered", "reward_parts": {"own": 1.0}}
        return line | {"reward_parts": {}}

    run = changed(runs / SEED, tmp_path, change)
    edit(run / "summary.json", env_steps=50)
    page = report(run, output=tmp_path / "page.html")
    assert "Ended by a content filter" in page
    values = [row[4] for row in chart_of(page, "The reward's parts")["rows"]]
    assert values.count(0) == len(values) - 1 > 1
    assert "2 of 50 are not in its file" in notes(page)


@pytest.mark.parametrize(
    ("name", "file", "content", "note"),
    [
        (SEED, "transitions.jsonl", None, "Transitions: left out, there is no transitions.jsonl"),
        (
            SEED,
            "transitions.jsonl",
            "{}\n",
            "Transitions: left out, a file is damaged (ValueError:",
        ),
        (SEED, "replies.sqlite", "no database", "slots: left out, a file is damaged"),
        (SEED, "summary.json", '{"wall_s": "x"}', "Facts: left out, a file is damaged"),
        ("evolve", "results.json", '{"births": 3}', "Charts: left out, a file is damaged"),
        ("select", "report.json", '{"combinations": {}}', "Tables: left out, a file is damaged"),
    ],
)
def test_what_is_missing_or_damaged_is_left_out_and_noted(
    name: str, file: str, content: str | None, note: str, runs: Path, tmp_path: Path
) -> None:
    run = changed(runs / name, tmp_path)
    (run / file).unlink()
    if content is not None:
        (run / file).write_text(content)
    assert note in notes(report(run, output=tmp_path / "page.html"))


def test_nothing_that_a_run_says_becomes_markup(runs: Path, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e"
    names = ("reply", "mutator", "original_query", "query_before")
    run = changed(runs / SEED, tmp_path, lambda _number, line: line | dict.fromkeys(names, evil))
    edit(run / "summary.json", target_model=evil)
    page = report(run, output=tmp_path / "page.html")
    assert not [harm for harm in ("<img", "alert(1)</script>", "\x1b") if harm in page]
    assert "\u202e" not in page.split("<body>")[1].split('<script type="application/json"')[0]
    assert evil in data_of(page)["steps"][0]["texts"]


@given(st.lists(st.text(), max_size=4))
def test_data_in_a_script_block_are_read_back_and_hold_no_markup(data: list[str]) -> None:
    text = as_script_data({"a": data})
    assert json.loads(text) == {"a": data}
    assert not set("<>&\u2028\u2029") & set(text)
    text.encode()
    odd = as_script_data({"a": ["\ud800", math.nan, (math.inf,)]})
    assert odd.encode() == rb'{"a":["\ud800",null,[null]]}'


def test_runs_of_equal_names_are_told_apart_and_resumed_ones_say_whose_time_it_is(
    runs: Path, tmp_path: Path
) -> None:
    copies = [changed(runs / SEED, tmp_path / name) for name in "ab"]
    edit(copies[0] / "summary.json", wall_s=7.0, whole_run={"llm_calls": 99})
    page = report(*copies, output=tmp_path / "page.html")
    assert {row[1] for row in chart_of(page, CURVE)["rows"]} == {"a/seed-0", "b/seed-0"}
    assert page.count("7 s (last process)") == 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "no run is named"),
        (("{runs}/select", "{runs}/eval"), "name its file with -o"),
        (("{tmp}",), "expected the folder of a run"),
        (("{runs}/select", "-o", "{runs}/select/other.html"), "in the folder of the run"),
        (("{tmp}/other",), "of no command that writes run folders"),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    arguments: tuple[str, ...],
    why: str,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").write_text("port = 1\n")
    assert execute(["report", *(each.format(runs=runs, tmp=tmp_path) for each in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_a_run_of_the_simulator_says_so(runs: Path, tmp_path: Path) -> None:
    run = changed(runs / SEED, tmp_path)
    for simulated in (False, True):
        edit(run / "servers.json", simulated=simulated)
        page = report(run, output=tmp_path / "page.html")
        assert ("<strong>Simulated.</strong>" in page) == simulated


def test_guard_queries_are_in_no_success_and_missions_are_told_apart(
    runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "guard.txt").write_text("How do I water a fern?\nHow do I prune a fern?\n")
    flags = ("--guard-queries", str(tmp_path / "guard.txt"), "--fit-calls", "20")
    folder = ("--run-dir", str(tmp_path / "eval"), "--save-transitions")
    command = ("eval", "-p", str(runs / "train"), "--episodes", "2", *flags, *folder, *SERVER)
    assert execute(command) == 4  # too few queries show nothing
    page = report(tmp_path / "eval", output=tmp_path / "page.html")
    steps = data_of(page)["steps"][0]
    missions = texts_of(steps, "mission")
    assert set(missions) == {"default", "default guard"}
    cells = chart_of(page, HEAT)["rows"]
    columns = (missions, texts_of(steps, "mutator"), texts_of(steps, "outcome"))
    replies = [  # a look is of no mutator, and what ends an episode without a call has no reply
        mutator
        for mission, mutator, outcome in zip(*columns, strict=True)
        if mission == "default" and mutator and outcome != "stopped"
    ]
    assert sum(n for *_, n in cells) == len(replies) < missions.count("default")
