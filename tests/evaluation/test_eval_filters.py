"""`mutagym eval` on what a server makes of questions: filters and chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from tests.content_filter import ANSWER, QUERIES, host_of, said, server_that
from tests.evaluation.evaluations import episodes_of
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.runs import lines, read


@pytest.mark.parametrize(("wire", "text"), [("openai", ""), ("ollama", ANSWER)])
def test_a_reply_that_a_filter_ended_is_neither_answer_nor_refusal_whatever_it_says(
    wire: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))
    run = tmp_path / "run"
    flags = (
        *("--queries", str(tmp_path / "queries.txt"), "--held-out", "0.9", "--max-steps", "1"),
        *("--save-transitions", "--run-dir", str(run), "--encoder", "hashing:64"),
        *("--target-model", "m", "--baselines=", "-p", "noop", "-p", "fixed:paraphrase"),
    )
    with server_that(lambda _: (200, said(text, "content_filter"))) as server:
        assert execute(("eval", "--ollama-host", host_of(server, wire), *flags)) == 0
    assert "filtered %" in capsys.readouterr().out
    steps = lines(run)
    found = {(step["outcome"], step["success"], step["reward"]) for step in steps}
    assert found == {("filtered", False, -0.05), ("stopped", False, 0.0)}
    rewordings = {(step["mutator"], step["rejected"]) for step in steps}
    assert rewordings == {("", ""), ("noop", ""), ("paraphrase", "filtered")}
    last = {"noop": "stopped", "fixed:paraphrase": "filtered"}
    for row in episodes_of(run):
        assert (row["status"], row["success"]) == ("scored", False)
        assert row["outcomes"] == ["filtered", last[row["policy"]]]
    for rates in read(run, "report.json")["rates"]:
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
