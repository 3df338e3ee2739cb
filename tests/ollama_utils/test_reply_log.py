"""The log of replies: written before it is given out, found bit for bit, and safe to open."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import ReplyLogError, ServerFaultError
from ollama_utils.parallel import map_parallel
from ollama_utils.reply_log import (
    ReplyLog,
    as_json,
    from_json,
    open_readonly,
    question_of,
)
from ollama_utils.types import Call, Completion, Usage
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, SlowServer, start, wait_until

FIXED = {"temperature": 0}
REPLY = as_json(Completion(text="Yes."))
FORK = multiprocessing.get_context("fork")
texts = st.text(st.characters(exclude_categories=["Cs"]))
seconds = st.floats(0, 1e6)
usages = st.builds(Usage, prompt_tokens=st.integers(0, 9**9), load_s=seconds, total_s=seconds)


def ask(prompt: object = "Why?", model: str = "sim-target", **options: Any) -> Call:
    return Call(model=model, prompt=str(prompt), options={"num_predict": 99} | (options or FIXED))


def log(folder: Path, digest: str = "d", scope: str = "") -> ReplyLog:
    return ReplyLog(folder / "replies.sqlite", digests={"sim-target": digest}, scope=scope)


def sql(path: Path, statement: str, *values: object) -> None:
    """Change a file as anybody can, its schema included."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute(statement, values)


@given(st.builds(Completion, text=texts, truncated=st.booleans(), usage=st.none() | usages))
def test_a_reply_is_read_as_it_was_written(completion: Completion) -> None:
    read = from_json(as_json(completion))
    assert read == replace(completion, cached=True, attempts=0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 12))
def test_equal_questions_are_sent_and_written_once_by_all_dispatchers(
    simulator: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
    prompts: list[int],
    workers: int,
) -> None:
    folder, simulated = tmp_path_factory.mktemp("log"), simulator.stats()["calls"]
    calls, kinds = [ask(prompt) for prompt in prompts], len(set(prompts))
    with Dispatcher([simulator.host], memory_bytes=0) as dispatcher:
        texts = [dispatcher.generate(call).text for call in calls]
    simulated += len(calls)
    for paid in (kinds, 0):
        with log(folder) as kept, Dispatcher([simulator.host]) as dispatcher:
            dispatcher.keep_in(kept)
            replies = map_parallel(dispatcher.generate, calls, workers)
            assert (kept.totals()["calls"], kept.last()) == (kinds, kinds)
            spent = dispatcher.totals()
        assert [reply.text for reply in replies] == texts
        assert [reply.attempts for reply in replies] == [int(not r.cached) for r in replies]
        assert (spent["calls"], spent["cache_hits"]) == (paid, len(calls) - paid)
    assert simulator.stats()["calls"] - simulated == kinds


def _ask_until_killed(folder: Path, host: str, returned: Connection) -> None:
    with log(folder) as kept, Dispatcher([host]) as dispatcher:
        dispatcher.keep_in(kept)
        map_parallel(
            lambda k: returned.send((k, dispatcher.generate(ask(k)).text)), range(10**4), 4
        )


def test_a_reply_that_was_returned_survives_a_kill(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    receiver, sender = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_ask_until_killed, args=(tmp_path, simulator.host, sender))
    child.start()
    sender.close()
    returned = [receiver.recv() for _ in range(25)]
    child.kill()
    with suppress(EOFError, OSError):
        while True:
            returned.append(receiver.recv())
    child.join()
    with log(tmp_path) as kept:
        for k, text in returned:
            assert from_json(kept.find(question_of(ask(k))) or "").text == text


def _write_many(folder: Path, writer: int, ready: Barrier) -> None:
    ready.wait(PATIENCE_S)
    with log(folder) as kept:
        for k in range(100):  # every second question is that of the other writers, too
            asked = ask(f"{writer if k % 2 else 'both'} {k}")
            kept.write(question_of(asked), reply=REPLY, attempts=1)


def test_processes_make_and_write_one_cache_and_the_first_reply_stays(tmp_path: Path) -> None:
    ready = FORK.Barrier(3)
    writers = [FORK.Process(target=_write_many, args=(tmp_path, k, ready)) for k in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with log(tmp_path) as kept:
        assert kept.totals()["calls"] == 50 + 3 * 50


def test_a_reply_that_cannot_be_written_is_not_given_out(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    kept = log(tmp_path)
    with Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        kept.close()
        with pytest.raises(ReplyLogError, match="closed database"):
            dispatcher.generate(ask())


def test_a_call_under_way_when_the_run_is_stopped_is_written_before_the_log_is_closed(
    tmp_path: Path,
) -> None:
    with SlowServer() as server, log(tmp_path) as kept:
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(kept)
            start(lambda: dispatcher.generate(ask()))
            wait_until(lambda: len(server.bodies) == 1)
            dispatcher.cancel()
            server.go_on.set()
            dispatcher.drain(PATIENCE_S)
        assert kept.find(question_of(ask())) is not None


@pytest.mark.parametrize(
    "other",
    [
        ask("Why not?"),
        ask(temperature=0, num_predict=7),
        ask(model="sim-mutator"),
        replace(ask(), system="Be brief."),
        replace(ask(), think=False),
        replace(ask(), format={"type": "object"}),
        replace(ask(), examples=(("What is rain?", "Water."),)),
    ],
)
def test_another_question_is_not_found(tmp_path: Path, other: Call) -> None:
    with log(tmp_path) as kept:
        kept.write(question_of(ask()), reply=REPLY)
        assert kept.find(question_of(ask(model="sim-target:latest"))) == REPLY
        assert kept.find(question_of(other)) is None
    for digest, scope in (("e", ""), ("d", "http://other:1")):
        with log(tmp_path, digest, scope) as kept:
            assert kept.find(question_of(ask())) is None


@pytest.mark.parametrize("temperature", [None, 0, 0.0, 0.7, "0", np.zeros(2)])
@pytest.mark.parametrize("seed", [None, -1, 0, 5, "5", [0]])
def test_a_call_is_repeatable_when_it_is_greedy_or_seeded(temperature: Any, seed: Any) -> None:
    options = {"temperature": temperature, "seed": seed}
    expected = seed in (0, 5) or (isinstance(temperature, int | float) and temperature == 0)
    assert Call(model="m", prompt="p", options=options).repeatable == expected


def test_a_call_without_a_seed_is_written_and_never_found(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    call = ask(temperature=0.8)
    with log(tmp_path) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        assert not any(dispatcher.generate(call).cached for _ in range(3))
        assert kept.find(question_of(call)) is None
        assert kept.totals()["calls"] == 3


def test_a_failure_is_counted_with_its_attempts_and_is_no_reply(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    server.set_faults([{"kind": "status", "rate": 1.0}])
    with log(tmp_path) as kept, Dispatcher([server.host], backoff_s=0, attempts=3) as dispatcher:
        dispatcher.keep_in(kept)
        assert dispatcher.generate(ask()).error
        assert kept.find(question_of(ask())) is None
        spent = {name: count for name, count in kept.totals().items() if count}
        assert spent == {"calls": 3, "retries": 2, "failures": 1}
        server.set_faults([])
        assert not dispatcher.generate(ask()).error
        assert (kept.totals()["calls"], kept.totals()["completion_tokens"]) == (4, 64)
        latest = [error.partition(":")[0] for error in kept.latest(9)]
        assert latest == ["", "ServerFaultError"]
        assert kept.latest(9, since=kept.last()) == []


def test_a_cache_and_two_runs_on_the_same_servers_have_whole_logs(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    calls = [ask(k) for k in range(6)]
    before = simulator.stats()["calls"]
    with Dispatcher([simulator.host]) as dispatcher:
        runs = [dispatcher.for_another_run() for _ in range(2)]
        for name, run in zip("ab", runs, strict=True):
            (tmp_path / name).mkdir()
            run.keep_in(log(tmp_path / name), log(tmp_path, scope="s"))
        replies = map_parallel(lambda k: runs[k % 2].generate(calls[k // 2]).text, range(12))
    paid = 0
    for name in "ab":
        with log(tmp_path / name) as kept, Dispatcher([simulator.host]) as alone:
            alone.keep_in(kept)
            paid += kept.totals()["calls"]
            assert [alone.generate(call).text for call in calls] == replies[::2] == replies[1::2]
    (tmp_path / "c").mkdir()
    with Dispatcher([simulator.host]) as later, log(tmp_path / "c") as kept:
        later.keep_in(kept, log(tmp_path, scope="s"))
        assert [later.generate(call).text for call in calls] == replies[::2]
        assert (kept.last(), kept.totals()["calls"]) == (6, 0)
    assert simulator.stats()["calls"] - before == paid == 6


def test_embeddings_are_found_bit_for_bit_and_only_new_texts_are_sent(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with log(tmp_path) as kept, Dispatcher([server.host], attempts=1) as dispatcher:
        dispatcher.keep_in(kept)
        first = dispatcher.embed("sim-embed", ["a cat", "a dog"])
        rows = dispatcher.embed("sim-embed", ["a dog", "a hen", "a cat", "a hen"])
        assert np.array_equal(rows[[2, 0]], first)
        assert np.array_equal(rows[1], rows[3])
        assert kept.totals()["calls"] == server.stats()["calls"] == 2
        server.set_faults([{"kind": "status", "rate": 1.0}])
        assert np.array_equal(dispatcher.embed("sim-embed", ["a cat"]), first[:1])
        with pytest.raises(ServerFaultError):  # whether it answers is asked of the server
            dispatcher.embed("sim-embed", ["a cat"], fresh=True)


def test_a_text_that_was_embedded_twice_at_once_has_the_row_that_the_log_holds(
    tmp_path: Path,
) -> None:
    """The server embeds it otherwise each time: a run that is replayed knows the one row alone."""
    together = threading.Barrier(2)
    numbers = iter(range(1, 3))

    def drifts(body: dict[str, Any]) -> tuple[int, object]:
        number = next(numbers)
        together.wait(PATIENCE_S)  # neither reply is there before both are asked for
        return 200, {"model": "m", "embeddings": [[1.0, number] for _ in body["input"]]}

    with ScriptedServer(drifts) as server, log(tmp_path) as kept:
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(kept)
            rows = map_parallel(lambda text: dispatcher.embed("m", [text]), ["a cat", "a cat"])
            assert np.array_equal(rows[0], rows[1])
            assert np.array_equal(rows[0], dispatcher.embed("m", ["a cat"]))


def test_a_reply_that_is_damaged_is_one_clear_error(dispatcher: Dispatcher, tmp_path: Path) -> None:
    with log(tmp_path) as kept:
        dispatcher.keep_in(kept)
        dispatcher.generate(ask())
        dispatcher.embed("sim-embed", ["a cat"])
        sql(tmp_path / "replies.sqlite", "UPDATE replies SET reply = ?", '{"text": 5}')
        with Dispatcher(dispatcher.hosts) as other:
            other.keep_in(kept)
            with pytest.raises(ReplyLogError, match="reply that cannot be read"):
                other.generate(ask())
            with pytest.raises(ReplyLogError, match="reply that cannot be read"):
                other.embed("sim-embed", ["a cat"])


SCHEMAS: list[tuple[str, ...]] = [
    ("CREATE TRIGGER t AFTER INSERT ON replies BEGIN DELETE FROM replies; END",),
    ("CREATE VIEW v AS SELECT * FROM replies",),
    (
        "UPDATE sqlite_master SET sql = replace(sql, 'at_s REAL', ?) WHERE type = 'table'",
        "at_s REAL, big AS (replace(hex(zeroblob(300000)), '0', reply))",
    ),
    ("DELETE FROM sqlite_master WHERE type = 'index'",),
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_whose_schema_is_not_ours_is_refused_and_stays_as_it_is(
    tmp_path: Path, schema: tuple[str, ...]
) -> None:
    log(tmp_path).close()
    path = tmp_path / "replies.sqlite"
    sql(path, *schema)
    before = path.read_bytes()
    for open_it in (partial(ReplyLog, digests={}), open_readonly):
        with pytest.raises(ReplyLogError) as caught, open_it(path):
            pass
        assert str(caught.value) == (
            f"the log of replies {str(path)!r} cannot be used: it is not a log of replies; "
            "move it away, and what is in it is asked for again"
        )
    assert path.read_bytes() == before


def test_a_text_in_the_place_of_a_log_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    path.write_text("no database, but long enough to look like one" * 99)
    for open_it in (partial(ReplyLog, digests={}), open_readonly):
        with pytest.raises(ReplyLogError, match="file is not a database; move it away") as caught:
            open_it(path).__enter__()
        assert len(str(caught.value).splitlines()) == 1


def test_a_link_and_an_empty_file_become_a_log(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "replies.sqlite").symlink_to(tmp_path / "replies.sqlite")
    (tmp_path / "replies.sqlite").touch()
    with log(tmp_path / "link") as kept:
        kept.write(question_of(ask()), reply=REPLY)
        with log(tmp_path) as same, open_readonly(tmp_path / "link" / "replies.sqlite") as read:
            assert same.find(question_of(ask())) == REPLY
            assert read.execute("SELECT count(*) FROM replies").fetchone() == (1,)


def test_replies_in_memory_are_the_latest_and_no_errors() -> None:
    statuses = iter([500])

    def answer(_: dict[str, Any]) -> tuple[int, object]:
        return next(statuses, 200), SAID

    with ScriptedServer(answer) as server:
        with Dispatcher([server.host], attempts=1, memory_bytes=3000) as dispatcher:
            errors = [dispatcher.generate(ask(prompt)).error for prompt in "aabacab"]
        assert [error is None for error in errors] == [False] + [True] * 6
        assert "".join(body["prompt"] for body in server.bodies) == "aabcb"
