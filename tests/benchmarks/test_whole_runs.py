"""The timing of whole training runs: what is timed once, and the calls that a plain client sends again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.whole_runs import requests_of, timed
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call
from simulator.process import EmbeddedServer

CALLS = (
    Call(
        model="sim-target",
        prompt="What is a comet?",
        system="Be brief.",
        options={"num_predict": 5, "seed": 1},
    ),
    Call(
        model="sim-target", prompt="And a star?", examples=(("a?", "b."), ("c?", "d.")), think=False
    ),
)


def test_the_calls_of_a_run_are_read_back_from_its_replies(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    file = tmp_path / "replies.sqlite"
    with ReplyLog(file, digests={}) as log, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(log)
        for call in (*CALLS, CALLS[0]):  # the last is answered from memory
            dispatcher.generate(call)
        assert requests_of(file) == list(map(dispatcher.with_defaults, CALLS))


def test_what_was_timed_is_not_done_again_and_what_was_killed_begins_anew(tmp_path: Path) -> None:
    done: list[int] = []

    def work(folder: Path, number: int) -> None:
        assert not folder.exists()
        folder.mkdir()
        done.append(number)

    killed = tmp_path / "run"
    killed.mkdir()
    (killed / "config.toml").touch()
    first = timed(killed, work, 1)
    assert first > 0
    assert timed(killed, work, 2) == first
    assert done == [1]
