"""`mutagym eval` on what a server makes of questions: filters, empty replies, chats."""

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
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.runs import lines, read


def evaluate(
    folder: Path, wire: str, answer: Callable[[str], tuple[int, Any]], *flags: str
) -> Counter[str]:
    """How often each text is sent when queries that are `answer`ed are evaluated."""
    (folder / "queries.txt").write_text("\n".join(QUERIES))
    given = ("--queries", str(folder / "queries.txt"), "--held-out", "0.9", "--max-steps", "1")
    place = ("--save-transitions", "--run-dir", str(folder / "run"))
    with server_that(answer) as server:
        host = ("--ollama-host", host_of(server, wire), "--target-model", "m")
        shape = ("--encoder", "hashing:64", "--baselines=")
        assert execute(("eval", *host, *shape, *given, *place, *flags)) == 0
        texts = [body["messages"][-1]["content"] for body in server.bodies if "messages" in body]
        texts += [body["prompt"] for body in server.bodies if body.get("prompt")]
    return Counter(texts)


@pytest.mark.parametrize("wire", ["openai"])
def test_a_question_that_the_server_rejects_is_asked_once_and_is_unscored(
    wire: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ill = [query for query in QUERIES if "kill weeds" in query or "blow up" in query]

    def answer(text: str) -> tuple[int, Any]:
        rejected = {"error": {"message": "the prompt was filtered", "code": "content_filter"}}
        return (400, rejected) if text in ill else (200, said(ANSWER))

    asked = evaluate(tmp_path, wire, answer, "-p", "noop")
    assert [asked[query] for query in ill] == [1, 1]
    assert "2/7" in capsys.readouterr().out
    rows = episodes_of(tmp_path / "run")
    assert {row["query"] for row in rows if row["status"] == "unscored"} == set(ill)
    assert Counter(row["status"] for row in rows) == {"scored": 5, "unscored": 2}


@pytest.mark.parametrize(("wire", "text"), [("openai", ""), ("ollama", ANSWER)])
def test_a_reply_that_a_filter_ended_is_neither_answer_nor_refusal_whatever_it_says(
    wire: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(_: str) -> tuple[int, Any]:
        return 200, said(text, "content_filter")

    evaluate(tmp_path, wire, answer, "-p", "noop", "-p", "fixed:paraphrase")
    assert "filtered %" in capsys.readouterr().out
    steps = lines(tmp_path / "run")
    found = {(step["outcome"], step["success"], step["reward"]) for step in steps}
    assert found == {("filtered", False, -0.05)}
    rewordings = {(step["mutator"], step["rejected"]) for step in steps}
    assert rewordings == {("noop", ""), ("paraphrase", "filtered")}
    for row in episodes_of(tmp_path / "run"):
        assert (row["status"], row["outcomes"], row["success"]) == ("scored", ["filtered"], False)
    for rates in read(tmp_path / "run", "report.json")["rates"]:
        assert (rates["refusal"]["rate"], rates["success"]["rate"]) == (0, 0)


EARLIER = [
    {"role": "system", "content": "You keep bees."},
    {"role": "user", "content": "My hive has mites."},
    {"role": "assistant", "content": "I see."},
]


def test_every_question_to_the_target_carries_the_turns_before_its_query(tmp_path: Path) -> None:
    """Those of fits, too; and where the run goes on, they are the ones that were answered."""
    queries = [f"How do I kill {number} of them?" for number in range(12)]
    chats = [{"messages": [*EARLIER, {"role": "user", "content": query}]} for query in queries]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    flags = (
        *("--queries", str(tmp_path / "chats.jsonl"), "--mutators", "noop,add_politeness"),
        *("-p", "noop", "--baselines", "best_fixed,cascade", "--fit-calls", "10"),
        *("--encoder", "hashing:16", "--max-steps", "1"),
    )
    run = str(tmp_path / "run")

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
        return 200, SAID | {"model": "m", "message": {"role": "assistant", "content": "With care."}}

    with ScriptedServer(answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("eval", *host, *flags, "--run-dir", run)) == 0
        asked = [body["messages"] for body in server.bodies if body.get("messages")]
        assert execute(("eval", "--ollama-host", server.host, "--resume", run)) == 0
        again = [body["messages"] for body in server.bodies if body.get("messages")]
    assert [messages[:-1] for messages in asked] == [EARLIER] * len(asked) != []
    assert all(messages[-1]["role"] == "user" for messages in asked)
    assert again == asked
