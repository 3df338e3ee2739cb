"""Evolution on the real simulator: it improves prompts, repeats itself, loses nothing to a bad server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.reply_log import ReplyLog
from search.call_pool import CallPool
from search.evolution import (
    AsyncEvaluationPipeline,
    AsyncEvolutionController,
    EvolutionConfig,
    EvolutionController,
    EvolutionProgress,
    Generation,
    Genome,
    NothingScoredError,
)
from search.task import SEED_INSTRUCTIONS, Problem, bundled_task, exact_answer
from simulator.process import EmbeddedServer
from tests.ollama_utils.threads import PATIENCE_S, start
from tests.search.evolutions import MODELS, evolved, small, timeless


@pytest.fixture(scope="module")
def told() -> list[Generation]:
    """The generations of the undisturbed evolution, as they were told."""
    return []


@pytest.fixture(scope="module")
def undisturbed(simulator: EmbeddedServer, told: list[Generation]) -> dict[str, Any]:
    """What a short evolution comes to, under a seed by which its few prompts gain enough to be sure of."""
    return evolved(simulator, small(max_generations=2, seed=9), on_generation=told.append)


BRIEF = {"max_generations": 2, "panel_size": 10, "held_out": 0.1}
"""Of an evolution that is played again and again: as many generations, on fewer problems."""


@pytest.fixture(scope="module")
def brief(simulator: EmbeddedServer) -> dict[str, Any]:
    """What it comes to, undisturbed."""
    return evolved(simulator, small(**BRIEF))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_generations": 2},
        pytest.param(
            {"max_generations": 4, "panel_size": 40, "async_batch_size": 10}, marks=pytest.mark.soak
        ),
    ],
)
def test_evolution_improves_on_the_seed_prompt_on_problems_it_never_saw(
    server: EmbeddedServer, undisturbed: dict[str, Any], settings: dict[str, Any]
) -> None:
    results = evolved(server, small(**settings)) if "panel_size" in settings else undisturbed
    held_out = results["held_out"]
    assert results["best_fitness"] > results["seed_fitness"]
    assert held_out["low"] > 0
    assert held_out["best"] - held_out["seed"] == pytest.approx(held_out["difference"])
    assert held_out["left_out"] == 0


@pytest.mark.parametrize(
    "settings",
    [
        BRIEF,
        *(pytest.param({"selection": each}, marks=pytest.mark.soak) for each in ("rank", "roulette")),
    ],
)
def test_the_result_is_the_same_whatever_the_concurrency(
    server: EmbeddedServer, brief: dict[str, Any], settings: dict[str, Any]
) -> None:
    one = evolved(server, small(**settings, enable_async_evaluation=False))
    ten = evolved(server, small(**settings)) if "selection" in settings else brief
    few = evolved(
        server, small(**settings, max_concurrent_requests=7, genome_batch_size=2, max_concurrent_genomes=1)
    )
    assert timeless(one) == timeless(ten) == timeless(few)
    assert one["metrics"]["max_in_flight"] == 1
    assert 1 < ten["metrics"]["max_in_flight"] <= 10


@pytest.mark.parametrize("controller", [EvolutionController, AsyncEvolutionController])
def test_the_plain_config_asks_one_call_at_a_time(
    server: EmbeddedServer, controller: type[EvolutionController]
) -> None:
    server.reset_stats()
    config = EvolutionConfig(population_size=2, max_generations=1, panel_size=5, held_out=0.0)
    with Dispatcher([server.host]) as dispatcher:
        controller(config, dispatcher=dispatcher, **MODELS).run_evolution()
    assert server.stats()["max_in_flight"] == 1


def test_another_seed_is_another_search(server: EmbeddedServer, brief: dict[str, Any]) -> None:
    other = evolved(server, small(**BRIEF, seed=1))
    assert other["seed"] == 1
    assert other["history"] != brief["history"]


def test_each_generation_is_told_and_the_best_never_gets_worse(
    undisturbed: dict[str, Any], told: list[Generation]
) -> None:
    assert [record.generation for record in told] == [0, 1, 2]
    assert undisturbed["history"] == [record.to_json() for record in told]
    best = [record.best_fitness for record in told]
    assert best == sorted(best, key=lambda fitness: fitness or 0)
    assert all(record.size == 8 for record in told)
    assert undisturbed["generations"] == 3


def test_the_first_population_is_made_of_different_prompts(server: EmbeddedServer) -> None:
    results = evolved(server, small(max_generations=0, population_size=16, panel_size=5, held_out=0.0))
    (first,) = results["history"]
    assert (first["children"], first["duplicates"]) == (16, 0)
    assert results["genomes"] == 16


FAULTS = {
    "busy": {"kind": "status", "status": 503, "rate": 0.2, "first": 3},
    "malformed": {"kind": "garbage", "rate": 0.1, "first": 1},
    "mistyped": {"kind": "garbage", "what": "wrong_type", "rate": 0.1, "first": 1},
    "dropped": {"kind": "drop", "rate": 0.1, "first": 1, "at": "body"},
    "timeout": {"kind": "hang", "rate": 0.02, "first": 1},
}


@pytest.mark.parametrize(
    "names", [["busy", "timeout"], *(pytest.param([name], marks=pytest.mark.soak) for name in FAULTS)]
)
def test_faults_that_pass_change_no_result(
    server: EmbeddedServer, brief: dict[str, Any], names: list[str]
) -> None:
    server.set_faults([FAULTS[name] for name in names])
    faulty = evolved(server, small(**BRIEF))
    assert faulty["metrics"]["retries"] > 0
    assert sum(record["unscored"] for record in faulty["history"]) == 0
    assert timeless(faulty) == timeless(brief)


def test_a_call_that_never_gets_a_reply_costs_its_genome_no_point(server: EmbeddedServer) -> None:
    task = bundled_task()
    genome = Genome(SEED_INSTRUCTIONS)
    server.set_faults([{"kind": "status", "status": 503, "rate": 0.6}])
    with Dispatcher([server.host], attempts=1, memory_bytes=0) as dispatcher:
        pool = CallPool(dispatcher, 8)
        config = small(max_unscored=0.9)
        (broken,) = AsyncEvaluationPipeline(pool, task, model="sim-solver", config=config).evaluate([genome])
    server.set_faults([])
    with Dispatcher([server.host]) as dispatcher:
        pool = CallPool(dispatcher, 8)
        pipeline = AsyncEvaluationPipeline(pool, task, model="sim-solver", config=small())
        (whole,) = asyncio.run(pipeline.evaluate_population([genome]))
    assert 0 < broken.unscored < len(task.problems)
    assert all(seen is None or seen == score for seen, score in zip(broken.scores, whole.scores, strict=True))
    scored = [score for score in broken.scores if score is not None]
    assert broken.fitness == pytest.approx(sum(scored) / len(scored))


def test_a_scorer_that_takes_its_time_holds_up_no_other_reply(server: EmbeddedServer) -> None:
    """Each scoring waits until another one is under way too: none would end where they took turns."""
    two, inside = threading.Event(), itertools.count(1)

    def score(problem: Problem, reply: str) -> float:
        if next(inside) >= 2:
            two.set()
        assert two.wait(timeout=30), "no two replies were scored at once"
        return exact_answer(problem, reply)

    task = bundled_task()
    with Dispatcher([server.host]) as dispatcher:
        fitness = [
            AsyncEvaluationPipeline(CallPool(dispatcher, 4), each, model="sim-solver", config=small())
            .evaluate([Genome(SEED_INSTRUCTIONS)])[0]
            .fitness
            for each in (task, replace(task, scorer=score))
        ]
    assert fitness[0] == fitness[1] is not None


def test_where_nothing_can_be_scored_the_search_ends_and_says_so(server: EmbeddedServer) -> None:
    server.set_faults([{"kind": "status", "status": 503, "rate": 1.0}])
    with (
        Dispatcher([server.host], attempts=1) as dispatcher,
        pytest.raises(
            NothingScoredError, match=r"generation 0 could be scored: .* no reply, the last as .*busy"
        ),
    ):
        EvolutionController(small(), dispatcher=dispatcher, **MODELS).run_evolution()


def test_a_server_that_breaks_later_ends_the_search_with_what_was_found(server: EmbeddedServer) -> None:
    def break_it(record: Generation) -> None:
        if record.generation == 1:
            server.set_faults([{"kind": "status", "status": 503, "rate": 1.0}])

    with Dispatcher([server.host], attempts=1) as dispatcher:
        results = EvolutionController(
            small(), dispatcher=dispatcher, on_generation=break_it, **MODELS
        ).run_evolution()
    assert results["interrupted"]
    assert "generation 2" in results["reason"]
    assert results["best_fitness"] is not None
    assert results["held_out"] is None


def test_a_run_that_was_stopped_ends_as_if_it_had_not_been_and_pays_for_no_reply_twice(
    server: EmbeddedServer, brief: dict[str, Any], tmp_path: Path
) -> None:
    whole, config = brief, small(**BRIEF)
    server.reset_stats()
    with ReplyLog(tmp_path / "replies.sqlite", digests={}) as log:
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(log)
            calls = itertools.count(1)

            def stop_in_the_middle(_: EvolutionProgress) -> None:
                if next(calls) == 100:
                    controller.stop()

            controller = EvolutionController(
                config, dispatcher=dispatcher, on_progress=stop_in_the_middle, **MODELS
            )
            stopped = controller.run_evolution()
        assert stopped["interrupted"]
        assert log.totals()["calls"] == server.stats()["calls"] < whole["metrics"]["calls"]
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(log)
            again = EvolutionController(config, dispatcher=dispatcher, **MODELS).run_evolution()
        paid, counted = log.totals()["calls"], server.stats()["calls"]
    assert timeless(again) == timeless(whole)
    assert paid == counted
    # What the uninterrupted run paid for, and not a call more.
    assert counted == whole["metrics"]["calls"] - whole["metrics"]["saved"]


def test_how_far_it_is_is_told_after_each_call(server: EmbeddedServer) -> None:
    told: list[EvolutionProgress] = []
    results = evolved(server, small(**BRIEF), on_progress=told.append)
    assert [each.calls for each in told] == sorted(each.calls for each in told)
    assert told[-1].calls == len(told) == results["metrics"]["calls"]
    assert {(each.generations, each.best_fitness) for each in told} == {
        (0, None),
        *((place + 1, record["best_fitness"]) for place, record in enumerate(results["history"])),
    }
    assert {each.of for each in told} == {3}


def test_it_shows_how_far_it_is_where_that_is_asked_for(
    server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    evolved(server, small(**BRIEF))
    assert capsys.readouterr().err == ""
    results = evolved(server, small(**BRIEF), show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"generations: 3 of 3, best {results['best_fitness']:.3f}, ")


def interrupt_in_generation(number: int) -> Callable[[EvolutionProgress], None]:
    """Ctrl-C, once, a few calls after so many generations."""
    calls = itertools.count(1)

    def look(progress: EvolutionProgress) -> None:
        if progress.generations == number and next(calls) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    return look


def test_ctrl_c_leaves_what_was_found_and_the_rest_can_be_played_later(
    server: EmbeddedServer, brief: dict[str, Any], tmp_path: Path
) -> None:
    with ReplyLog(tmp_path / "replies.sqlite", digests={}) as log:
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(log)
            controller = EvolutionController(
                small(**BRIEF), dispatcher=dispatcher, on_progress=interrupt_in_generation(2), **MODELS
            )
            assert controller.results == {}
            with pytest.raises(KeyboardInterrupt):
                controller.run_evolution()
        found = controller.results
        assert found["interrupted"]
        assert found["history"] == brief["history"][:2]
        assert found["best_fitness"] == found["history"][-1]["best_fitness"]
        assert found["best_prompt"] == found["history"][-1]["best_prompt"]
        assert len(found["population"]) == 8
        assert found["population"][0]["fitness"] >= found["best_fitness"]
        assert 0 < found["metrics"]["calls"] < brief["metrics"]["calls"]
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(log)
            again = EvolutionController(small(**BRIEF), dispatcher=dispatcher, **MODELS)
            assert timeless(again.run_evolution()) == timeless(brief)
            assert again.results["reason"] is None


def test_ctrl_c_beside_an_event_loop_leaves_it_too(server: EmbeddedServer, brief: dict[str, Any]) -> None:
    with Dispatcher([server.host]) as dispatcher:
        controller = AsyncEvolutionController(
            small(**BRIEF), dispatcher=dispatcher, on_progress=interrupt_in_generation(1), **MODELS
        )
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(controller.run_evolution_async())
    assert controller.results["interrupted"]
    assert controller.results["history"] == brief["history"][:1]


def test_an_error_of_a_users_own_leaves_it_too(server: EmbeddedServer, brief: dict[str, Any]) -> None:
    def fail(record: Generation) -> None:
        raise RuntimeError(f"the plot of generation {record.generation} failed")

    with Dispatcher([server.host]) as dispatcher:
        controller = EvolutionController(small(**BRIEF), dispatcher=dispatcher, on_generation=fail, **MODELS)
        with pytest.raises(RuntimeError, match="generation 0"):
            controller.run_evolution()
    assert controller.results["history"] == brief["history"][:1]


def test_the_async_face_leaves_the_loop_free_and_cancelling_it_stops_the_run(server: EmbeddedServer) -> None:
    async def run() -> tuple[int, bool]:
        with Dispatcher([server.host]) as dispatcher:
            controller = AsyncEvolutionController(
                small(max_generations=100, population_size=20), dispatcher=dispatcher, **MODELS
            )
            running = asyncio.create_task(controller.run_evolution_async())
            beats = 0
            while controller.metrics.get("calls", 0) < 50:
                beats += 1
                await asyncio.sleep(0.001)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            calls = controller.metrics["calls"]
            await asyncio.sleep(0.05)
            return beats, controller.metrics["calls"] == calls

    beats, still = asyncio.run(run())
    assert beats > 1
    assert still


def test_a_rate_limit_holds_for_the_run_and_is_given_back(server: EmbeddedServer) -> None:
    seen: list[float | None] = []
    with Dispatcher([server.host], rate_limit_per_minute=50_000) as dispatcher:
        for limit in (20_000, 90_000, None):
            EvolutionController(
                small(max_generations=0, population_size=2, rate_limit_per_minute=limit),
                dispatcher=dispatcher,
                on_progress=lambda _: seen.append(dispatcher.rate.per_minute),
                **MODELS,
            ).run_evolution()
            assert dispatcher.rate.per_minute == 50_000
    assert set(seen) == {20_000, 50_000}


def test_the_end_of_one_evolution_leaves_the_limit_of_another(server: EmbeddedServer) -> None:
    began = {limit: threading.Event() for limit in (1_000_000, 900_000)}
    may_end = {limit: threading.Event() for limit in began}
    with Dispatcher([server.host]) as dispatcher:

        def run(limit: int) -> Future[dict[str, Any]]:
            def hold(_: EvolutionProgress) -> None:
                began[limit].set()
                may_end[limit].wait(PATIENCE_S)

            config = small(max_generations=0, population_size=2, rate_limit_per_minute=limit)
            controller = EvolutionController(config, dispatcher=dispatcher, on_progress=hold, **MODELS)
            running = start(controller.run_evolution)
            assert began[limit].wait(PATIENCE_S)
            return running

        running = {limit: run(limit) for limit in began}
        for limit, left in ((1_000_000, 900_000), (900_000, None)):
            assert dispatcher.rate.per_minute == 900_000
            may_end[limit].set()
            running[limit].result(PATIENCE_S)
            assert dispatcher.rate.per_minute == left


def test_what_a_user_forgets_is_named(server: EmbeddedServer) -> None:
    with Dispatcher([server.host]) as dispatcher:
        with pytest.raises(ValueError, match="no model named"):
            EvolutionController(dispatcher=dispatcher)
        with pytest.raises(ValueError, match="panel_size is 5000; expected at most"):
            EvolutionController(small(panel_size=5000), dispatcher=dispatcher, **MODELS).run_evolution()
        with pytest.raises(ValueError, match="instructions are ' '"):
            EvolutionController(small(), seed_prompts=[" "])
