"""What a prompt is specialized to: problems of the task that it got wrong, whoever's task it is."""

from __future__ import annotations

import json
import sqlite3
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mutators.system_prompts import drop_sentence
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.reply_log import ReplyLog
from search.evolution import EvolutionController
from search.genetics.fitness import divide
from search.task import Problem, Task
from simulator.process import EmbeddedServer
from simulator.prompts import task_of
from tests.search.evolutions import MODELS, small, timeless


def worth(problem: Problem, reply: str) -> float:
    """A score that is nobody's but this task's."""
    return (blake2b(f"{problem.id} {reply}".encode(), digest_size=1).digest()[0] % 4) / 3


STRANGE = Task(
    name="riddles",
    problems=tuple(
        Problem(id=str(i), question=f"Riddle {i}: <query>what</query> am I?", answer=None) for i in range(40)
    ),
    scorer=worth,
)
"""Problems of no kind that the simulator knows, without answers."""
SETTINGS: dict[str, Any] = {"max_generations": 3, "panel_size": 20}


def searched(
    server: EmbeddedServer,
    log: Path,
    **settings: Any,  # noqa: ANN401 - any of them
) -> tuple[dict[str, Any], list[str]]:
    """What an evolution on the strange task comes to, and the failures that each specialization showed."""
    with ReplyLog(log, digests={}) as replies, Dispatcher([server.host]) as dispatcher:
        dispatcher.keep_in(replies)
        results = EvolutionController(
            small(**{**SETTINGS, **settings}),
            dispatcher=dispatcher,
            task=STRANGE,
            mutators=[drop_sentence],
            crossovers=(),
            **MODELS,
        ).run_evolution()
    with sqlite3.connect(log) as database:
        requests = [json.loads(row[0]) for row in database.execute("SELECT request FROM replies")]
    database.close()
    shown = [task_of(each["prompt"]).failures for each in requests if not each.get("system")]
    return timeless(results), sorted(filter(None, shown))


def test_a_strangers_prompt_is_specialized_to_problems_that_it_got_wrong(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    results, shown = searched(server, tmp_path / "replies.sqlite", failures_shown=3)
    assert results["best_fitness"] > 0
    assert shown
    panel = {each.question: each for each in divide(STRANGE, small(**SETTINGS)).panel.problems}
    for failures in shown:
        rows = [json.loads(line) for line in failures.split("\n")]
        assert 1 <= len(rows) <= 3
        for row in rows:
            assert set(row) == {"question", "reply"}
            assert worth(panel[row["question"]], row["reply"]) < 1


def test_the_calls_are_the_same_whatever_the_concurrency_and_none_is_asked_again(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    ten = searched(server, tmp_path / "ten.sqlite")
    assert ten == searched(server, tmp_path / "one.sqlite", enable_async_evaluation=False)
    server.reset_stats()
    assert ten == searched(server, tmp_path / "ten.sqlite")
    assert server.stats()["calls"] == 0


def test_none_is_specialized_where_none_are_to_be_shown(server: EmbeddedServer, tmp_path: Path) -> None:
    assert searched(server, tmp_path / "replies.sqlite", failures_shown=0)[1] == []
