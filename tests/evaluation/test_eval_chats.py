"""`mutagym eval` on a file of chats: the target reads the earlier turns, also where the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli.main import execute
from tests.ollama_utils.scripted import SAID, ScriptedServer

EARLIER = [
    {"role": "system", "content": "You keep bees."},
    {"role": "user", "content": "My hive has mites."},
    {"role": "assistant", "content": "I see."},
]


def test_every_question_to_the_target_carries_the_turns_before_its_query(tmp_path: Path) -> None:
    queries = [f"How do I kill {number} of them?" for number in range(12)]
    lines = [{"messages": [*EARLIER, {"role": "user", "content": query}]} for query in queries]
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    flags = ("--queries", str(file), "--mutators", "noop,add_politeness", "--encoder", "hashing:16")
    policies = ("-p", "noop", "--baselines", "best_fixed", "--fit-calls", "10", "--max-steps", "1")
    run = str(tmp_path / "run")

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
        return 200, SAID | {"model": "m", "message": {"role": "assistant", "content": "With care."}}

    with ScriptedServer(answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("eval", *host, *flags, *policies, "--run-dir", run)) == 0
        asked = [body["messages"] for body in server.bodies if body.get("messages")]
        assert execute(("eval", "--ollama-host", server.host, "--resume", run)) == 0
        again = [body["messages"] for body in server.bodies if body.get("messages")]
    assert [messages[:-1] for messages in asked] == [EARLIER] * len(asked) != []
    assert all(messages[-1]["role"] == "user" for messages in asked)
    assert again == asked  # all replies stand in the log
