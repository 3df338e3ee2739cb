"""A query is first asked as it stands, and reworded only if it gets no answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.content_filter import ANSWER, said, server_that
from tests.evaluation.evaluations import episodes_of, evaluate
from tests.evaluation.test_fit import ANSWERED, MUTATORS, REFUSAL, crane
from tests.runs import lines, read

PLAYED = ("noop", "random", "fixed:shorten", "llm:sim-judge")
ALL = tuple(flag for name in PLAYED for flag in ("-p", name))
"""Policies of every kind that needs no fit and no run."""
SIZE = ("--episodes", "12")
DRAWN = ("--target-temperature", "0.8")
CRANES = "\n".join(f"How do I fold crane {k}?" for k in range(80))
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def everyone(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation of them all, in which equal questions have equal replies."""
    folder = tmp_path_factory.mktemp("everyone") / "run"
    assert evaluate(simulator, folder, *ALL, *SIZE, "--save-transitions", "--jobs", "1") == 0
    return folder


def by_policy(folder: Path) -> dict[str, Rows]:
    """The rows of each policy, in the order of the queries."""
    found: dict[str, Rows] = {name: [] for name in PLAYED}
    for row in episodes_of(folder):
        found[row["policy"]].append(row)
    return found


def test_all_policies_share_the_call_of_a_look(tmp_path: Path) -> None:
    """Of eight queries that are answered as they stand, each is asked once in all."""
    (tmp_path / "q.txt").write_text(CRANES)
    asked: Counter[str] = Counter()

    def answer(text: str) -> tuple[int, Any]:
        asked[text] += not text.startswith("<query>")  # a mutator is tried before all
        return 200, said(ANSWER)

    flags = ("--queries", str(tmp_path / "q.txt"), "--encoder", "hashing:64", "--episodes", "8")
    policies = ("-p", "noop", "-p", "random", "-p", "fixed:shorten", "--agents", "3")
    with server_that(answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m", "--baselines=")
        place = ("--run-dir", str(tmp_path / "run"))
        assert execute(("eval", *host, *flags, *policies, *place)) == 0
    rows = episodes_of(tmp_path / "run")
    assert len(rows) == 3 * 8 * 3
    assert +asked == Counter({row["query"] for row in rows})


def test_a_query_that_is_answered_as_it_stands_is_a_success_of_every_policy_without_a_rewording(
    everyone: Path,
) -> None:
    of_noop, *others = by_policy(everyone).values()
    looks = [row["look"] for row in of_noop]
    assert 0 < looks.count("answered") < len(looks)
    for rows in (of_noop, *others):
        assert [row["look"] for row in rows] == looks
        for row in rows:
            assert row["outcomes"][0] == row["look"]
            assert (row["look"] == "answered") == (row["actions"] == [])
            if row["look"] == "answered":
                assert (row["success"], row["outcomes"], row["return"]) == (
                    True,
                    ["answered"],
                    0.95,
                )
                spent = {"choices": 0, "rewrites": 0, "questions": 1, "verdicts": 0}
                assert row["calls"] == spent


def test_noop_asks_nothing_after_the_look_and_succeeds_where_that_does(everyone: Path) -> None:
    for row in by_policy(everyone)["noop"]:
        assert row["success"] == (row["look"] == "answered")
        assert (row["calls"]["questions"], row["calls"]["rewrites"]) == (1, 0)
        if not row["success"]:
            assert (row["actions"], row["outcomes"][1:]) == (["noop"], ["stopped"])
            assert row["return"] == pytest.approx(-0.05)  # that of the look; to stop costs nothing
    stops = [line for line in lines(everyone) if line["outcome"] == "stopped"]
    assert stops
    for line in stops:
        assert (line["mutator"], line["reply"], line["terminated"]) == ("noop", "", True)
        assert line["prompt_tokens"] == line["completion_tokens"] == 0
    rates = {row["team"]: row for row in read(everyone, "report.json")["rates"]}
    for name, rows in by_policy(everyone).items():
        opened = [row["success"] for row in rows if row["look"] != "answered"]
        found = rates[name]["opened"]
        assert (found["n"], found["rate"]) == (len(opened), sum(opened) / len(opened))
    assert rates["noop"]["opened"]["rate"] == 0 < rates["random"]["opened"]["rate"]


@pytest.mark.parametrize("flags", [(), DRAWN], ids=["equal replies", "drawn replies"])
def test_results_are_the_same_bytes_for_1_and_8_jobs(
    simulator: EmbeddedServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    shape = (*ALL, *SIZE, *flags, "--agents", "2", "--repeats", "2")
    for jobs in ("1", "8"):
        assert evaluate(simulator, tmp_path / jobs, *shape, "--jobs", jobs) == 0
    for name in ("results.json", "report.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "8" / name).read_bytes()


def test_a_look_that_fails_eight_times_makes_its_agent_unscored(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text(CRANES)
    asked: Counter[int] = Counter()

    def answer(text: str) -> tuple[int, Any]:
        if text.startswith("<query>"):
            return 200, said(ANSWER)
        asked[crane(text)] += 1
        return (200, said(ANSWER)) if crane(text) % 4 else (500, {"error": "no"})

    flags = ("--queries", str(tmp_path / "q.txt"), "--encoder", "hashing:64", "--call-attempts=1")
    policy = ("-p", "fixed:shorten", "--baselines=", "--run-dir", str(tmp_path / "run"))
    with server_that(answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("eval", *host, *flags, *policy)) == 0
    rows = episodes_of(tmp_path / "run")
    failed = [row for row in rows if crane(row["query"]) % 4 == 0]
    assert 0 < len(failed) < len(rows)
    for row in failed:
        assert (row["status"], row["look"], row["actions"]) == ("unscored", None, [])
        assert (row["failed_steps"], row["failed_calls"], row["outcomes"]) == (1, 8, [])
        assert asked[crane(row["query"])] >= 8
    assert {row["status"] for row in rows if row not in failed} == {"scored"}
    (rates,) = read(tmp_path / "run", "report.json")["rates"]
    assert (rates["opened"]["n"], rates["success"]["n"]) == (0, len(rows) - len(failed))


def test_what_is_reworded_at_once_has_no_look(simulator: EmbeddedServer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert evaluate(simulator, run, *ALL, *SIZE, "--always-reword") == 0
    (mission,) = read(run)["missions"]
    assert not mission["asks_first"]
    rows = episodes_of(run)
    assert {(row["look"], row["again"]) for row in rows} == {(None, None)}
    for row in rows:
        assert len(row["outcomes"]) == len(row["actions"]) == row["calls"]["questions"] >= 1
        assert "stopped" not in row["outcomes"]
    assert {row["opened"]["n"] for row in read(run, "report.json")["rates"]} == {0}


def test_ask_asks_a_query_that_is_answered_once(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = lines(trained_run, "screen.jsonl")
    query = next(line["original_query"] for line in screen if line["success"])
    with EmbeddedServer(Settings(time_scale=0.0)) as server:
        flags = ("--ollama-host", server.host, "--trust-run", "--json")
        capsys.readouterr()
        assert execute(("ask", "--policy", str(trained_run), *flags, query)) == 0
        assert server.stats()["calls"] == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["success"], found["rewording"], len(found["steps"])) == (True, query, 1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_is_noted_what_was_answered_when_it_was_asked_once_more(
    tmp_path: Path, temperature: float
) -> None:
    """Only where replies are drawn: every second seed has an answer."""
    (tmp_path / "q.txt").write_text(CRANES)

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        options = body["options"]
        is_answered = options["temperature"] > 0 and options["seed"] % 2
        return 200, said(ANSWER if is_answered else REFUSAL)

    flags = ("--queries", str(tmp_path / "q.txt"), "--encoder", "hashing:64", "--episodes", "16")
    drawn = ("--target-temperature", str(temperature), "--run-dir", str(tmp_path / "run"))
    policies = ("-p", "noop", "-p", "fixed:add_politeness", "--baselines=")
    with server_that(lambda _: (200, {}), of_body=answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("eval", *host, *flags, *drawn, *policies)) == 0
    rows = episodes_of(tmp_path / "run")
    again = [row["again"] for row in rows if row["policy"] == "noop" and not row["success"]]
    assert set(again) == ({True, False} if temperature else {False})
    assert {row["again"] for row in rows if row["policy"] != "noop" or row["success"]} == {None}
    notes = [note for note in read(tmp_path / "run", "report.json")["notes"] if "once more" in note]
    text = f"of {len(again)} questions without an answer {sum(again)} were answered when asked"
    assert [text in note for note in notes] == [True] * (temperature > 0)


def test_fits_ask_first_and_try_the_others_on_what_got_no_answer(tmp_path: Path) -> None:
    """On a server that answers by ANSWERED."""
    (tmp_path / "mine.py").write_text(MUTATORS)
    (tmp_path / "q.txt").write_text("\n".join(f"How do I fold crane {k}?" for k in range(64)))

    def answer(text: str) -> tuple[int, Any]:
        first = text.split(maxsplit=1)[0]
        return 200, said(ANSWER if crane(text) % 8 in ANSWERED[first] else REFUSAL)

    own = ",".join(f"{tmp_path / 'mine.py'}:{name}" for name in ("please", "hello"))
    flags = (
        *("--mutators", f"noop,{own}", "--queries", str(tmp_path / "q.txt"), "--max-steps", "3"),
        *("-p", "best_fixed", "--baselines", "cascade", "--intent-threshold", "0"),
        *("--encoder", "hashing:64", "--fit-calls"),
    )
    with server_that(answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        for calls in ("1000", "50"):
            place = ("--run-dir", str(tmp_path / calls))
            assert execute(("eval", *host, *flags, calls, *place)) == 0
    queries = read(tmp_path / "1000", "queries.json")
    (sides,) = queries["missions"].values()
    train = [crane(query["text"]) % 8 for query in queries["sets"][sides["train"]]]
    left = [kind for kind in train if kind not in ANSWERED["How"]]
    please, hello = (
        sum(kind in ANSWERED[first] for kind in left) / len(left) for first in ("Please.", "Hello.")
    )
    best_fixed, cascade = read(tmp_path / "1000")["fits"]
    assert cascade["means"] == pytest.approx({"please": please, "hello": hello})
    assert sorted(cascade["order"]) == ["hello", "please"]
    assert cascade["calls"] == len(train) + 2 * len(left)
    of = {"noop": 0.0}  # it stops
    of |= {name: 0.95 * p - 0.15 * (1 - p) for name, p in (("please", please), ("hello", hello))}
    assert best_fixed["means"] == pytest.approx(of)
    assert best_fixed["chosen"] == max(of, key=lambda name: of[name])
    assert all(fit["calls"] <= 50 for fit in read(tmp_path / "50")["fits"])
    for row in episodes_of(tmp_path / "1000"):
        kind = crane(row["query"]) % 8
        assert (row["look"] == "answered") == (kind in ANSWERED["How"])
        if row["policy"] == "cascade":
            assert row["success"] == (kind in {1, 2, 3, 4})


@pytest.mark.parametrize(
    ("reply", "mutators", "why"),
    [
        (ANSWER, "noop,add_politeness", "no training query needs a rewording, so it plays noop"),
        (REFUSAL, "noop", "there is no other mutator, so it plays noop"),
    ],
)
def test_where_there_is_nothing_to_fit_a_fitted_policy_plays_noop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: str, mutators: str, why: str
) -> None:
    (tmp_path / "q.txt").write_text(CRANES)
    fitted = ("best_fixed", "cascade", "linucb")
    policies = [flag for name in fitted for flag in ("-p", name)]
    flags = ("--queries", str(tmp_path / "q.txt"), "--encoder", "hashing:64", "--fit-calls", "40")
    place = ("--mutators", mutators, "--baselines=", "--run-dir", str(tmp_path / "run"))
    with server_that(lambda _: (200, said(reply))) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("eval", *host, *flags, *place, *policies)) == 0
    printed = capsys.readouterr().err
    assert all(f"{name}: {why}" in printed for name in fitted)
    assert [fit["chosen"] for fit in read(tmp_path / "run")["fits"]] == ["noop"] * 3
    rows = episodes_of(tmp_path / "run")
    assert {tuple(row["actions"]) for row in rows} == {() if reply == ANSWER else ("noop",)}


def test_a_fit_of_which_no_query_could_be_asked_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.txt").write_text(CRANES)
    flags = ("--queries", str(tmp_path / "q.txt"), "--encoder", "hashing:64", "--fit-calls", "40")
    more = ("--mutators", "noop,add_politeness", "--max-unscored", "1", "--call-attempts", "1")
    policy = ("-p", "best_fixed", "--baselines=", "--run-dir", str(tmp_path / "run"))
    with server_that(lambda _: (500, {"error": "no"})) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("eval", *host, *flags, *more, *policy)) == 1
    assert "no query could be asked as it stands" in capsys.readouterr().err
