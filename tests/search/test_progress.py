"""How far a search is, on a terminal and elsewhere."""

from __future__ import annotations

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
