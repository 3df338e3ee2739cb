"""`mutagym eval` on servers with a content filter: it refuses a request, or ends a reply."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from tests.content_filter import ANSWER, QUERIES, host_of, said, server_that
from tests.evaluation.evaluations import episodes_of
from tests.runs import lines


def evaluate(
    folder: Path, wire: str, answer: Callable[[str], tuple[int, Any]], *flags: str
) -> tuple[int, Counter[str]]:
    """The exit code of `mutagym eval` of queries that are `answer`ed, and how often each text was sent."""
    (folder / "queries.txt").write_text("\n".join(QUERIES))
    with server_that(answer) as server:
        code = execute(
            (
                *(
                    "eval",
                    "--ollama-host",
                    host_of(server, wire),
                    "--target-model",
                    "m",
                    "--encoder",
                    "hashing:64",
                ),
                *("--queries", str(folder / "queries.txt"), "--held-out", "0.9", "--max-steps", "1"),
                *("--baselines=", "--save-transitions", "--run-dir", str(folder / "run"), *flags),
            )
        )
        texts = [body["messages"][-1]["content"] for body in server.bodies if "messages" in body]
        texts += [body["prompt"] for body in server.bodies if body.get("prompt")]
    return code, Counter(texts)


@pytest.mark.parametrize("wire", ["openai", "ollama"])
def test_a_question_that_the_server_rejects_is_asked_once_and_the_table_tells_how_many_there_are(
    wire: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(text: str) -> tuple[int, Any]:
        if "kill weeds" in text or "blow up" in text:
            return 400, {"error": {"message": "the prompt was filtered", "code": "content_filter"}}
        return 200, said(ANSWER)

    code, asked = evaluate(tmp_path, wire, answer, "-p", "noop")
    assert code == 0
    assert [asked[query] for query in QUERIES if "kill weeds" in query or "blow up" in query] == [1, 1]
    assert "2/7" in capsys.readouterr().out
    agents = [agent for episode in episodes_of(tmp_path / "run") for agent in episode["agents"]]
    assert Counter(agent["status"] for agent in agents) == {"scored": 5, "unscored": 2}


def test_max_unscored_counts_steps_however_often_each_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(text: str) -> tuple[int, Any]:
        is_ill = "kill weeds" in text or "blow up" in text
        return (500, {"error": "out of order"}) if is_ill else (200, said(ANSWER))

    code, asked = evaluate(tmp_path, "openai", answer, "-p", "noop", "--call-attempts", "1")
    assert code == 0
    assert [asked[query] for query in QUERIES if "kill weeds" in query or "blow up" in query] == [8, 8]
    assert "2/7" in capsys.readouterr().out


@pytest.mark.parametrize(("temperature", "unscored"), [("0", 6), ("0.5", 0)])
def test_an_empty_reply_is_drawn_again_only_where_another_seed_may_give_another(
    temperature: str, unscored: int, tmp_path: Path
) -> None:
    asked: Counter[str] = Counter()

    def answer(text: str) -> tuple[int, Any]:
        asked[text] += 1
        return 200, said("" if asked[text] == 1 else ANSWER)

    flags = ("-p", "noop", "--target-temperature", temperature, "--max-unscored", "1")
    assert evaluate(tmp_path, "ollama", answer, *flags)[0] == 0
    agents = [agent for episode in episodes_of(tmp_path / "run") for agent in episode["agents"]]
    # One query is asked before the others, to see what comes.
    assert sum(agent["status"] == "unscored" for agent in agents) == unscored


@pytest.mark.parametrize("wire", ["openai", "ollama"])
@pytest.mark.parametrize("text", [ANSWER, "I'm sorry, but I can't help with that.", ""])
def test_a_reply_that_a_filter_ended_is_neither_answer_nor_refusal_whatever_it_says(
    wire: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(_: str) -> tuple[int, Any]:
        return 200, said(text, "content_filter")

    assert evaluate(tmp_path, wire, answer, "-p", "noop", "-p", "fixed:paraphrase")[0] == 0
    assert "filtered %" in capsys.readouterr().out
    steps = lines(tmp_path / "run")
    assert {(step["outcome"], step["success"], step["reward"]) for step in steps} == {
        ("filtered", False, -0.05)
    }
    assert {(step["mutator"], step["rejected"]) for step in steps} == {
        ("noop", ""),
        ("paraphrase", "filtered"),
    }
    for row in json.loads((tmp_path / "run" / "report.json").read_text())["rates"]:
        assert (row["filtered_share"], row["refusal"]["rate"], row["success"]["rate"]) == (1, 0, 0)
    assert execute(("report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html"))) == 0
    assert "filtered %" in (tmp_path / "page.html").read_text()
