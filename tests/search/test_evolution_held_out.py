"""The final comparison: on problems that nothing of the search ever saw, and told as plain data."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.reply_log import ReplyLog
from search.evolution import EvolutionController
from search.genetics.fitness import divide
from search.task import Problem, bundled_task
from simulator.process import EmbeddedServer
from tests.search.evolutions import MODELS, evolved, small


def test_no_problem_held_out_is_seen_before_the_end_and_no_example_is_a_problem_that_counts(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    task, config, scored = bundled_task(), small(held_out=0.2, max_generations=1), [list[str]()]

    def score(problem: Problem, reply: str) -> float:
        scored[-1].append(problem.question)
        return task.scorer(problem, reply)

    problems = divide(task, config)
    with (
        ReplyLog(tmp_path / "replies.sqlite", digests={}) as log,
        Dispatcher([server.host]) as dispatcher,
    ):
        dispatcher.keep_in(log)
        results = EvolutionController(
            config,
            dispatcher=dispatcher,
            task=replace(task, scorer=score),
            on_generation=lambda _: scored.append([]),
            **MODELS,
        ).run_evolution()
    *generations, at_the_end = scored
    panel = {problem.question for problem in problems.panel.problems}
    held_out = {problem.question for problem in problems.held_out.problems} if problems.held_out else set()
    assert len(generations) == results["generations"]
    assert {question for each in generations for question in each} == panel
    assert set(at_the_end) == held_out
    with sqlite3.connect(tmp_path / "replies.sqlite") as database:
        requests = [json.loads(row[0]) for row in database.execute("SELECT request FROM replies")]
    database.close()
    told = {request["system"] for request in requests if request.get("system")}
    assert any(example.question in each for each in told for example in problems.examples)
    rewordings = {request["prompt"] for request in requests if not request.get("system")}
    assert not any(question in each for each in told for question in panel)
    assert not any(question in each for each in told | rewordings for question in held_out)


def test_nothing_is_held_out_where_that_is_asked_for(server: EmbeddedServer) -> None:
    assert evolved(server, small(held_out=0.0, max_generations=0))["held_out"] is None


def test_results_are_plain_json_even_where_too_few_problems_are_held_out_for_an_interval(
    server: EmbeddedServer,
) -> None:
    task = bundled_task()
    one = replace(task, problems=task.problems[:15], scorer=lambda _, __: 0.25)
    results = evolved(server, small(max_generations=1, panel_size=3, held_out=0.05), task=one)
    assert json.loads(json.dumps(results["held_out"], allow_nan=False))["queries"] == 1
    assert results["held_out"]["low"] is results["held_out"]["deviation"] is None


def test_the_final_means_are_over_the_problems_that_both_prompts_have_a_reply_to(
    server: EmbeddedServer,
) -> None:
    with Dispatcher([server.host], attempts=1, memory_bytes=0) as dispatcher:
        told = EvolutionController(
            small(max_unscored=1.0, max_generations=1),
            dispatcher=dispatcher,
            on_generation=lambda _: server.set_faults([{"kind": "status", "status": 503, "rate": 0.4}]),
            **MODELS,
        ).run_evolution()["held_out"]
    assert told["left_out"] > 0
    assert told["best"] - told["seed"] == pytest.approx(told["difference"])
