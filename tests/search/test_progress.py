"""How far a search is, on a terminal and elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from records.progress import EVERY_S
from search.progress import SearchProgress
from simulator.process import EmbeddedServer
from tests.ollama_utils.clock import Clock


def ask(dispatcher: Dispatcher, *questions: str) -> None:
    for question in questions:
        assert dispatcher.generate(Call(model="sim-solver", prompt=question)).error is None


@pytest.fixture
def dispatcher(simulator: EmbeddedServer) -> Iterator[Dispatcher]:
    with closing(Dispatcher([simulator.host])) as dispatcher:
        yield dispatcher


def told_by(progress: SearchProgress, clock: Clock, capsys: pytest.CaptureFixture[str]) -> str:
    """The plain line of a minute later."""
    capsys.readouterr()
    clock.now_s += EVERY_S
    progress.tick()
    (line,) = (
        line for line in capsys.readouterr().err.splitlines() if line.startswith("generations: ")
    )
    return line


def test_a_line_within_a_generation_tells_its_calls_so_far_and_the_time_that_is_left(
    dispatcher: Dispatcher, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    ask(dispatcher, "before the search")
    with SearchProgress(
        "generations", 3, dispatcher, lanes=1, calls_each=4, clock=clock
    ) as progress:
        assert "at most" not in told_by(progress, clock, capsys)
        ask(dispatcher, "one")
        assert "then 1 of at most 4 calls" in told_by(progress, clock, capsys)
        ask(dispatcher, "two")
        line = told_by(progress, clock, capsys)
        assert line.startswith(
            "generations: 0 of 3, about 10 min left, then 2 of at most 4 calls, "
        )
        progress.advance(1, best=0.5)
        assert "best 0.500" in told_by(progress, clock, capsys)
        ask(dispatcher, "three", "four", "five")
        assert "then 3 of at most 4 calls, best 0.500, " in told_by(progress, clock, capsys)


def test_where_calls_are_told_by_nobody_or_the_search_is_over_the_line_has_none(
    dispatcher: Dispatcher, capsys: pytest.CaptureFixture[str]
) -> None:
    for calls_each, done in ((0, 1), (4, 2)):
        clock = Clock()
        with SearchProgress(
            "generations", 2, dispatcher, lanes=1, calls_each=calls_each, clock=clock
        ) as progress:
            progress.advance(done)
            ask(dispatcher, "one")
            assert "at most" not in told_by(progress, clock, capsys)


@pytest.mark.parametrize("columns", ["80", "200"])
def test_on_a_terminal_the_bar_tells_them_too(
    dispatcher: Dispatcher,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", columns)
    with SearchProgress("generations", 101, dispatcher, lanes=1, calls_each=4) as progress:
        progress.advance(1, best=0.5)
        ask(dispatcher, "one", "two")
        progress.tick()
    told = re.sub("\x1b[^A-Za-z]*[A-Za-z]", "", capsys.readouterr().err)
    assert "  1/101" in told
    assert "then 2 of at most 4 calls" in told
    assert "best 0.500" in told


def test_what_the_calls_will_take_is_told_once_from_the_pace_of_the_first(
    dispatcher: Dispatcher, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    with SearchProgress("steps", 100, dispatcher, most_calls=1200, clock=clock) as progress:
        ask(dispatcher, "the model is loaded")
        progress.tick()
        ask(dispatcher, *(f"question {k}" for k in range(20)))
        clock.now_s += 10
        progress.tick()
        progress.tick()
    says = "at the 2 calls/s of the first calls, at most 1,179 more take 10 min\n"
    assert capsys.readouterr().err.count(says) == 1
