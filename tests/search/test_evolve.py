"""Laws of an evolution: same replies, same results; nothing paid for twice; no error is a score."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutators.mutator import by_rule
from mutators.system_prompts import improve_instructions
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import OutageError
from ollama_utils.reply_log import ReplyLog
from search.async_llm import AsyncLLMInterface
from search.evolve import (
    AsyncEvolutionController,
    EvolutionController,
    EvolutionProgress,
    Record,
)
from search.panel import AsyncEvaluationPipeline
from search.task import SEED_INSTRUCTIONS, bundled_task
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.search.evolutions import MODELS, evolved, small, timeless


@pytest.fixture(scope="module")
def whole(simulator: EmbeddedServer) -> dict[str, Any]:
    """What the small evolution finds when nothing disturbs it."""
    return evolved(simulator, small())


@pytest.mark.parametrize(
    "schedule",
    [
        {"max_concurrent_requests": 7, "genome_batch_size": 2, "max_concurrent_genomes": 1},
        {"max_concurrent_requests": 20, "genome_batch_size": 20, "max_concurrent_genomes": 20},
    ],
)
def test_results_are_equal_at_any_concurrency_and_the_cap_holds(
    server: EmbeddedServer, whole: dict[str, Any], schedule: dict[str, Any]
) -> None:
    found = evolved(server, small(**schedule))
    assert timeless(found) == timeless(whole)
    most = schedule["max_concurrent_requests"]
    assert server.stats()["max_in_flight"] <= found["metrics"]["max_in_flight"] <= most


def test_evolution_improves_on_the_seed_prompt_on_problems_it_never_saw(
    server: EmbeddedServer,
) -> None:
    settings = {"population_size": 12, "elite_size": 4, "max_generations": 4, "panel_size": 40}
    found = evolved(server, small(**settings, held_out=0.3, seed=2))
    assert found["best_fitness"] > found["seed_fitness"]
    assert found["held_out"]["difference"] > 0.1
    means = found["held_out"]["best"] - found["held_out"]["seed"]
    assert means == pytest.approx(found["held_out"]["difference"])


def test_the_best_never_falls_and_every_birth_has_its_parents(whole: dict[str, Any]) -> None:
    best, births = [record["best_fitness"] for record in whole["history"]], whole["births"]
    assert best == sorted(best)
    assert best[-1] == whole["best_fitness"] == whole["population"][0]["fitness"]
    assert {whole["best_prompt"], SEED_INSTRUCTIONS} <= {birth["prompt"] for birth in births}
    assert len(births) == whole["genomes"] == sum(each["children"] for each in whole["history"])
    for place, birth in enumerate(births):
        assert bool(birth["parents"]) == bool(birth["steps"])
        assert all(parent < place for parent in birth["parents"])


@settings(max_examples=15)
@given(
    texts=st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 50),
    cap=st.sampled_from([1, 7, 20]),
)
def test_an_equal_prompt_is_scored_once(
    simulator: EmbeddedServer, texts: list[int], seed: int, cap: int
) -> None:
    """Whatever the operators make; no memory of calls hides it."""

    @by_rule
    def another(_text: str, _earlier: Sequence[str], seed: int) -> str:
        """One of a few texts."""
        return f"Prompt {texts[seed % len(texts)]}."

    simulator.reset_stats()
    config = small(panel_size=4, held_out=0.0, early_stop_level=0.0, failures_shown=0, seed=seed)
    with Dispatcher([simulator.host], memory_bytes=0) as dispatcher:
        found = EvolutionController(
            replace(config, max_concurrent_requests=cap),
            dispatcher=dispatcher,
            mutators=[another],
            crossovers=(),
            **MODELS,
        ).run_evolution()
    prompts = [birth["prompt"] for birth in found["births"]]
    assert len(set(prompts)) == len(prompts) == found["genomes"]
    assert simulator.stats()["calls"] == 4 * len(prompts)


def test_held_out_problems_are_in_no_prompt_and_failures_are_shown_to_the_rewording_model(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    config, log = small(held_out=0.2, crossover_rate=0.0), tmp_path / "replies.sqlite"
    with ReplyLog(log, digests={}) as replies, Dispatcher([server.host]) as dispatcher:
        dispatcher.keep_in(replies)
        controller = EvolutionController(
            config, dispatcher=dispatcher, mutators=[improve_instructions], **MODELS
        )
        controller.run_evolution()
    with closing(sqlite3.connect(log)) as database:
        requests = [json.loads(row[0]) for row in database.execute("SELECT request FROM replies")]
    train, held_out = bundled_task().split(config.held_out, config.seed)
    rewordings = [each["prompt"] for each in requests if not each.get("system")]
    texts = [*rewordings, *(each["system"] for each in requests if each.get("system"))]
    assert not any(problem.question in text for problem in held_out.problems for text in texts)
    assert any(problem.question in text for problem in train.problems for text in rewordings)
    asked = {each["prompt"] for each in requests if each.get("system")}
    assert len(asked & {problem.question for problem in train.problems}) == 10


FAULTS = [
    {"kind": "status", "status": 503, "rate": 0.2, "first": 3},
    {"kind": "drop", "rate": 0.1, "first": 1, "at": "body"},
    {"kind": "hang", "rate": 0.02, "first": 1},
]


def test_faults_that_pass_change_no_result(server: EmbeddedServer, whole: dict[str, Any]) -> None:
    server.set_faults(FAULTS)
    found = evolved(server, small())
    assert found["metrics"]["retries"] > 0
    assert timeless(found) == timeless(whole)


@pytest.mark.parametrize(("failing", "fitness"), [(29, 1.0), (30, None)])
def test_a_failed_call_is_never_a_zero_and_too_many_leave_no_fitness(
    failing: int, fitness: float | None
) -> None:
    """As a float .29 of 100 is less than 29."""
    task = replace(bundled_task(), problems=bundled_task().problems[:100])
    answers = {problem.question: problem.answer for problem in task.problems[failing:]}

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if body["prompt"] not in answers:
            return 500, {"error": "broken"}
        return 200, {**SAID, "response": f"Answer: {answers[body['prompt']]}"}

    with (
        ScriptedServer(answer) as server,
        Dispatcher([server.host], attempts=1, max_outage_s=None) as dispatcher,
        closing(AsyncLLMInterface(dispatcher, model="m")) as calls,
    ):
        pipeline = AsyncEvaluationPipeline(calls, task, config=small(max_unscored=0.29))
        found = pipeline.score("Answer.")
    assert found.fitness == fitness


def interrupt_in_generation(number: int) -> Callable[[EvolutionProgress], None]:
    """Ctrl-C, once, a few calls after so many generations."""
    calls = itertools.count(1)

    def look(progress: EvolutionProgress) -> None:
        if progress.generations == number and next(calls) == 10:
            os.kill(os.getpid(), signal.SIGINT)

    return look


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_ctrl_c_leaves_what_was_found_and_the_same_call_goes_on_without_paying_twice(
    server: EmbeddedServer, whole: dict[str, Any], tmp_path: Path, face: str
) -> None:
    with (
        ReplyLog(tmp_path / "replies.sqlite", digests={}) as log,
        Dispatcher([server.host]) as dispatcher,
    ):
        dispatcher.keep_in(log)
        controller = AsyncEvolutionController(
            small(), dispatcher=dispatcher, on_progress=interrupt_in_generation(1), **MODELS
        )
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            "threads": controller.run_evolution,
            "asyncio": lambda: asyncio.run(controller.run_evolution_async()),
        }
        with pytest.raises(KeyboardInterrupt):
            runs[face]()
        assert controller.results["interrupted"]
        assert controller.results["history"] == whole["history"][:1]
        assert 0 < controller.results["metrics"]["calls"] < whole["metrics"]["calls"]
        assert timeless(runs[face]()) == timeless(whole)
        paid = whole["metrics"]["calls"] - whole["metrics"]["hits"]
        assert log.totals()["calls"] == server.stats()["calls"] == paid


@pytest.mark.parametrize("number", [0, 2])
def test_a_server_that_dies_in_a_generation_or_the_final_comparison_takes_nothing_that_was_found(
    server: EmbeddedServer, whole: dict[str, Any], tmp_path: Path, number: int
) -> None:
    answered = []

    def dies(record: Record) -> None:
        if record["generation"] == number:
            answered.append(log.last())
            server.set_outage("drop", at="all")

    with ReplyLog(tmp_path / "replies.sqlite", digests={}) as log:
        with Dispatcher([server.host], max_outage_s=0, report=lambda _: None) as dispatcher:
            dispatcher.keep_in(log)
            controller = EvolutionController(
                small(), dispatcher=dispatcher, on_generation=dies, **MODELS
            )
            with pytest.raises(OutageError):
                controller.run_evolution()
        server.end_outage()
        assert controller.results["history"] == whole["history"][: number + 1]
        assert controller.results["best_fitness"] == whole["history"][number]["best_fitness"]
        assert (controller.results["interrupted"], controller.results["held_out"]) == (True, None)
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(log)
            again = EvolutionController(small(), dispatcher=dispatcher, **MODELS).run_evolution()
            asked = dispatcher.totals()["calls"]
    assert timeless(again) == timeless(whole)
    assert asked == whole["metrics"]["calls"] - whole["metrics"]["hits"] - answered[0] > 0


def test_where_nothing_more_can_be_scored_the_search_ends_with_what_it_has(
    server: EmbeddedServer,
) -> None:
    def break_it(_: Record) -> None:
        server.set_faults([{"kind": "status", "status": 503, "rate": 1.0}])

    with Dispatcher([server.host], attempts=1, max_outage_s=None) as dispatcher:
        found = EvolutionController(
            small(patience=1), dispatcher=dispatcher, on_generation=break_it, **MODELS
        ).run_evolution()
    assert found["ended"] == "no better prompt in 1 generation"
    assert found["best_fitness"] == found["history"][0]["best_fitness"] is not None
    assert found["held_out"]["queries"] == 0


def test_progress_is_reported_after_each_call(
    server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    reports: list[EvolutionProgress] = []
    generations: list[Record] = []
    found = evolved(server, small(), on_progress=reports.append, on_generation=generations.append)
    assert capsys.readouterr().err == ""
    assert len(reports) == found["metrics"]["calls"]
    assert {each.generations for each in reports} == {0, 1, 2, 3}
    assert {each.of for each in reports} == {3}
    assert [{**each, "step_error": ""} for each in found["history"]] == generations
    found = evolved(server, small(), show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"generations: 3 of 3, best {found['best_fitness']:.3f}, " in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("settings_", "more", "says"),
    [
        ({}, {"seed_prompts": ["a", "a"]}, "twice, or one is blank"),
        ({}, {"seed_prompts": list("abcdefg")}, "expected 1 to population_size"),
        ({}, {"mutators": []}, "no mutator"),
        ({}, {"model": None}, "expected a model's name beside a dispatcher"),
        ({"panel_size": 5000}, {}, "panel_size is 5000; expected at most"),
        ({"population_size": 1}, {}, "population_size is 1: it must be >= 2"),
        ({"elite_size": 4}, {}, "elite_size is 4; expected at most 3"),
        ({"early_stop_level": 0.9}, {}, "early_stop_level is 0.9: it must be <= 0.5"),
    ],
)
def test_what_cannot_be_is_an_error_that_names_it(
    server: EmbeddedServer, settings_: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    with Dispatcher([server.host]) as dispatcher, pytest.raises(ValueError, match=says):
        EvolutionController(
            small(**settings_), dispatcher=dispatcher, **(MODELS | more)
        ).run_evolution()
