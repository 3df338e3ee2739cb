"""The log of replies: written before it is given out, found again bit for bit, never where it must not be."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadReplyError, CallCancelledError, ReplyLogError, ServerFaultError
from ollama_utils.parallel import map_parallel
from ollama_utils.reply_log import (
    CallOutcome,
    LogTotals,
    ReplyLog,
    as_json,
    embed_question,
    from_json,
    question_of,
)
from ollama_utils.types import Call, Completion, Usage
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start

FIXED = {"temperature": 0}
REPLY = as_json(Completion(text="Yes."))
texts = st.text(st.characters(exclude_categories=["Cs"]))
seconds = st.floats(0, 1e6)
usages = st.builds(
    Usage, prompt_tokens=st.integers(0, 9**9), load_s=seconds, decode_s=seconds, total_s=seconds
)


def ask(prompt: object = "Why?", model: str = "sim-target", **options: Any) -> Call:  # noqa: ANN401 - an option
    return Call(model=model, prompt=str(prompt), options=options or FIXED)


def log(folder: Path, digest: str = "d", scope: str = "") -> ReplyLog:
    return ReplyLog(folder / "replies.sqlite", digests={"sim-target": digest}, scope=scope)


@given(st.builds(Completion, text=texts, truncated=st.booleans(), usage=st.none() | usages))
def test_a_reply_is_read_as_it_was_written(completion: Completion) -> None:
    read = from_json(as_json(completion))
    assert (read.text, read.truncated, read.usage) == (
        completion.text,
        completion.truncated,
        completion.usage,
    )
    assert (read.cached, read.attempts) == (True, 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_no_later_dispatcher_asks_what_an_earlier_one_wrote_down(
    simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory, prompts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    calls = [ask(prompt) for prompt in prompts]
    with closing(log(folder)) as kept, Dispatcher([simulator.host]) as first:
        first.keep_in(kept)
        replies = map_parallel(first.generate, calls)
        assert kept.totals().calls == len(set(prompts))
    simulator.reset_stats()
    with closing(log(folder)) as kept, Dispatcher([simulator.host]) as second:
        second.keep_in(kept)
        again = map_parallel(second.generate, calls)
        assert kept.totals().calls == len(set(prompts))
    assert simulator.stats()["calls"] == 0
    assert [reply.text for reply in again] == [reply.text for reply in replies]
    assert all(reply.cached and reply.attempts == 0 for reply in again)
    assert second.accounts()["sim-target"].cache_hits == len(calls)


def test_a_reply_is_on_disk_before_it_is_given_out(simulator: EmbeddedServer, tmp_path: Path) -> None:
    """Another connection sees it as soon as the call returns."""
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        said = dispatcher.generate(ask()).text
        with closing(log(tmp_path)) as other:
            found = other.find(question_of(ask()))
    assert found is not None
    assert from_json(found).text == said


def test_a_call_drawn_without_a_seed_is_written_down_and_never_found(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    call = ask(temperature=0.8)
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        for _ in range(3):
            assert not dispatcher.generate(call).cached
        assert kept.find(question_of(call)) is None
        assert kept.totals().calls == 3


@pytest.mark.parametrize(
    "other",
    [
        ask("Why not?"),
        ask(temperature=0, num_predict=7),
        ask(temperature=0.8, seed=1),
        ask(model="sim-mutator"),
        Call(model="sim-target", prompt="Why?", system="Be brief.", options=FIXED),
        Call(model="sim-target", prompt="Why?", think=False, options=FIXED),
        Call(model="sim-target", prompt="Why?", format={"type": "object"}, options=FIXED),
    ],
)
def test_another_question_is_not_found(tmp_path: Path, other: Call) -> None:
    with closing(log(tmp_path)) as kept:
        kept.write(question_of(ask()), CallOutcome(reply=REPLY))
        assert kept.find(question_of(ask())) == REPLY
        assert kept.find(question_of(other)) is None


def test_the_order_of_the_options_and_the_tag_latest_do_not_matter(tmp_path: Path) -> None:
    with closing(log(tmp_path)) as kept:
        kept.write(question_of(ask(temperature=0, seed=3)), CallOutcome(reply=REPLY))
        assert kept.find(question_of(ask(model="sim-target:latest", seed=3, temperature=0))) == REPLY


def test_another_version_of_the_model_or_another_server_is_another_cache(tmp_path: Path) -> None:
    question = question_of(ask())
    with closing(log(tmp_path, scope="http://a:1")) as kept:
        kept.write(question, CallOutcome(reply=REPLY))
        assert kept.find(question) == REPLY
    for digest, scope in (("e", "http://a:1"), ("d", "http://b:1")):
        with closing(log(tmp_path, digest, scope)) as other:
            assert other.find(question) is None


def test_a_failure_is_written_down_with_its_attempts_and_is_no_reply(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    simulator.set_faults([{"kind": "status", "rate": 1.0}])
    try:
        with (
            closing(log(tmp_path)) as kept,
            Dispatcher([simulator.host], backoff_s=0, attempts=3) as dispatcher,
        ):
            dispatcher.keep_in(kept)
            assert dispatcher.generate(ask()).error
            assert kept.find(question_of(ask())) is None
            assert kept.totals() == LogTotals(calls=3, retries=2, failures=1, completion_tokens=0)
            simulator.set_faults([])
            assert not dispatcher.generate(ask()).error
            assert (kept.totals().calls, kept.totals().completion_tokens) == (4, 64)
    finally:
        simulator.set_faults([])


def test_embeddings_are_found_again_bit_for_bit_and_only_new_texts_are_sent(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        first = dispatcher.embed("sim-embed", ["a cat", "a dog"])
        simulator.reset_stats()
        assert np.array_equal(dispatcher.embed("sim-embed", ["a dog", "a cat"]), first[::-1])
        assert simulator.stats()["calls"] == 0
        rows = dispatcher.embed("sim-embed", ["a cat", "a hen", "a hen"])
        assert simulator.stats()["calls"] == 1
        assert np.array_equal(rows[0], first[0])
        assert np.array_equal(rows[1], rows[2])
        assert kept.totals().calls == 2


def test_what_a_shared_cache_knows_is_written_in_the_runs_own_log_at_no_cost(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    for name in ("cache", "one", "two"):
        (tmp_path / name).mkdir()
    texts_of: dict[str, str] = {}
    for name in ("one", "two"):
        with closing(log(tmp_path / name)) as own, closing(log(tmp_path / "cache", scope="s")) as shared:
            with Dispatcher([simulator.host]) as dispatcher:
                dispatcher.keep_in(own, shared)
                texts_of[name] = dispatcher.generate(ask()).text
            assert own.totals().calls == (1 if name == "one" else 0)
            assert own.find(question_of(ask())) is not None
    assert texts_of["one"] == texts_of["two"]


def _write_many(folder: Path, writer: int) -> None:
    with closing(log(folder)) as kept:
        for k in range(200):  # every second question is that of the other writer, too
            asked = ask(f"{writer if k % 2 else 'both'} {k}")
            kept.write(question_of(asked), CallOutcome(reply=f'"{writer}"', attempts=1))


def test_several_processes_write_one_cache_and_the_first_reply_stays(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, writer)) for writer in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with closing(log(tmp_path)) as kept:
        assert kept.totals().calls == 100 + 2 * 100


def test_a_log_that_another_process_is_just_making_is_waited_for(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None)) as other:
        other.execute("CREATE TABLE of_another_process (x)")
        other.execute("BEGIN IMMEDIATE")  # SQLite itself does not wait for this when it opens a WAL
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(log, tmp_path)
            with pytest.raises(TimeoutError):
                opening.result(timeout=0.3)
            other.execute("COMMIT")
            opening.result(timeout=PATIENCE_S).close()


def test_a_file_that_is_no_log_and_a_folder_that_is_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "replies.sqlite").write_text("no database, but long enough to look like one" * 99)
    with pytest.raises(ReplyLogError, match=r"replies\.sqlite' cannot be used: .* not a database; delete it"):
        log(tmp_path)
    with pytest.raises(ReplyLogError, match="unable to open database file"):
        log(tmp_path / "nowhere")


def test_a_reply_that_cannot_be_written_down_is_not_given_out(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    kept = log(tmp_path)
    with Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        kept.close()
        with pytest.raises(ReplyLogError, match="closed database"):
            dispatcher.generate(ask())


def test_whether_a_server_answers_is_asked_of_the_server_and_not_of_the_log(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host], attempts=1) as dispatcher:
        dispatcher.keep_in(kept)
        dispatcher.embed("sim-embed", ["a cat"])
        simulator.set_faults([{"kind": "status", "rate": 1.0}])
        try:
            dispatcher.embed("sim-embed", ["a cat"])
            with pytest.raises(ServerFaultError):
                dispatcher.embed("sim-embed", ["a cat"], fresh=True)
        finally:
            simulator.set_faults([])


def test_a_text_that_was_embedded_twice_at_once_has_the_row_that_the_log_holds(tmp_path: Path) -> None:
    """The server embeds it otherwise each time: a run that is replayed knows the one row alone."""
    together = threading.Barrier(2)
    numbers = iter(range(1, 3))

    def drifts(body: dict[str, Any]) -> tuple[int, object]:
        number = next(numbers)
        together.wait(PATIENCE_S)  # neither reply is there before both are asked for
        return 200, {"model": "m", "embeddings": [[1.0, number] for _ in body["input"]]}

    with (
        ScriptedServer(drifts) as server,
        closing(log(tmp_path)) as kept,
        Dispatcher([server.host]) as dispatcher,
    ):
        dispatcher.keep_in(kept)
        first, second = map_parallel(lambda text: dispatcher.embed("m", [text]), ["a cat", "a cat"])
        assert np.array_equal(first, second)
        assert np.array_equal(first, dispatcher.embed("m", ["a cat"]))


def test_an_embedding_that_is_asked_for_afresh_is_the_servers(tmp_path: Path) -> None:
    numbers = iter(range(1, 3))

    def drifts(body: dict[str, Any]) -> tuple[int, object]:
        number = next(numbers)
        return 200, {"model": "m", "embeddings": [[1.0, number] for _ in body["input"]]}

    with (
        ScriptedServer(drifts) as server,
        closing(log(tmp_path)) as kept,
        Dispatcher([server.host]) as dispatcher,
    ):
        dispatcher.keep_in(kept)
        first = dispatcher.embed("m", ["a cat"])
        assert not np.array_equal(dispatcher.embed("m", ["a cat"], fresh=True), first)
        assert np.array_equal(dispatcher.embed("m", ["a cat"]), first)


def test_a_call_under_way_when_the_run_is_stopped_is_written_down_before_the_log_is_closed(
    tmp_path: Path,
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(_: dict[str, Any]) -> tuple[int, object]:
        asked.set()
        assert go_on.wait(PATIENCE_S)
        return 200, SAID

    with ScriptedServer(slow) as server, closing(log(tmp_path)) as kept:
        dispatcher = Dispatcher([server.host])
        dispatcher.keep_in(kept)
        start(lambda: dispatcher.generate(ask()))
        assert asked.wait(PATIENCE_S)
        dispatcher.cancel()
        go_on.set()
        dispatcher.drain(PATIENCE_S)
        assert kept.find(question_of(ask())) is not None
        dispatcher.close()


def test_the_log_is_a_plain_table_that_anybody_can_read(simulator: EmbeddedServer, tmp_path: Path) -> None:
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        dispatcher.generate(ask())
    with closing(sqlite3.connect(tmp_path / "replies.sqlite")) as database:
        database.row_factory = sqlite3.Row
        (row,) = map(dict, database.execute("SELECT * FROM replies"))
    assert row["server"] == simulator.host
    assert row["request"].startswith('{"prompt": "Why?"')
    assert (row["endpoint"], row["model"], row["digest"]) == ("generate", "sim-target", "d")
    assert (row["attempts"], row["error"]) == (1, None)


def test_a_call_without_examples_is_the_question_that_it_was_before_calls_had_any() -> None:
    without = question_of(ask())
    assert without.request == (
        '{"prompt": "Why?", "system": null, "format": null, "options": {"temperature": 0}, "think": null}'
    )
    shown = [question_of(replace(ask(), examples=(("a", reply),))) for reply in ("b", "c")]
    assert len({without, *shown}) == 3
    assert [question.endpoint for question in (without, *shown)] == ["generate", "chat", "chat"]


def test_a_reply_to_a_call_with_examples_is_kept_found_and_counted(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    call = replace(ask(), examples=(("What is rain?", "Water."),))
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        replies = [dispatcher.generate(each) for each in (call, call, ask())]
        usage = [reply.usage for reply in replies]
        assert [reply.error for reply in replies] == [None] * 3
        assert [reply.cached for reply in replies] == [False, True, False]
        assert kept.totals().completion_tokens == sum(each.completion_tokens for each in usage[1:] if each)


def test_the_latest_outcomes_are_told_newest_first_without_what_was_never_asked(tmp_path: Path) -> None:
    with log(tmp_path) as replies:
        for k, outcome in enumerate(
            (
                CallOutcome(reply=REPLY, attempts=1),
                CallOutcome(error="ServerFaultError: down", attempts=4),
                CallOutcome(reply=REPLY),  # from another log
                CallOutcome(reply=REPLY, attempts=2),
            )
        ):
            replies.write(question_of(ask(k)), outcome)
        assert replies.latest(9) == ["", "ServerFaultError: down", ""]
        assert replies.latest(1) == [""]
        assert replies.latest(9, since=replies.last()) == []
        assert replies.latest(9, since=3) == [""]


NO_COUNTS = [-1, 10**15, 10**400, float("nan"), float("inf"), True, "7", None, [7]]


@pytest.mark.parametrize("count", NO_COUNTS)
def test_a_usage_that_could_not_be_read_again_is_a_bad_reply_before_it_is_kept(count: Any) -> None:  # noqa: ANN401 - odd values
    with pytest.raises(BadReplyError, match="cannot be kept: expected counts"):
        as_json(Completion(text="Yes.", usage=Usage(completion_tokens=count)))


def test_so_is_a_text_that_utf_8_cannot_write() -> None:
    with pytest.raises(BadReplyError, match="cannot be kept: expected a text"):
        as_json(Completion(text="half \ud83d a pair"))


@pytest.mark.parametrize(
    "number", ["1e999", "-1", "1" + "0" * 400, "NaN", '"7"', "[]", "{}", "true", "9" * 5000]
)
def test_a_kept_usage_that_no_reply_has_is_not_read(number: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(REPLY.replace('"usage": null', f'"usage": {{"completion_tokens": {number}}}'))


def test_fields_that_a_later_version_adds_are_left_aside() -> None:
    kept = REPLY.replace('"usage": null', '"more": 1, "usage": {"completion_tokens": 3, "more_s": []}')
    assert from_json(kept).usage == Usage(completion_tokens=3)


DAMAGED: list[Any] = [
    "",
    "{}",
    "[]",
    "null",
    '{"text": 5, "truncated": false, "usage": null}',
    '{"text": "\\ud83d", "truncated": false, "usage": null}',
    '{"text": "Yes.", "truncated": 1, "usage": null}',
    '{"text": "Yes.", "truncated": false, "usage": []}',
    '{"text": "Yes.", "truncated": false, "usage": {"completion_tokens": 1e999}}',
    '{"text": "Yes.", "truncated": false, "usage": {"completion_tokens": ' + "9" * 5000 + "}}",
    '{"text": "Yes.", "truncated": false, "usage": {"completion_tokens": 9223372036854775807}}',
    "[" * 100_000,
    '{"text": "cut off',
    None,
    5,
    b"\xff\xfe",
]


@pytest.mark.parametrize("reply", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("as_text", [False, True])
def test_a_damaged_row_counts_as_absent_and_its_call_is_made_anew_once(
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reply: Any,  # noqa: ANN401 - odd values
    as_text: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    simulator.reset_stats()
    calls = [ask("one"), ask("two")]
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        said = [dispatcher.generate(call).text for call in calls]
    with closing(sqlite3.connect(tmp_path / "replies.sqlite")) as database, database:
        database.execute("UPDATE replies SET reply = iif(?, CAST(? AS TEXT), ?)", (as_text, reply, reply))
    for expected, notes in ((2, 1), (0, 0)):
        simulator.reset_stats()
        capsys.readouterr()
        with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
            dispatcher.keep_in(kept)
            assert kept.totals().calls == 4 - expected
            assert [dispatcher.generate(call).text for call in calls] == said
            assert kept.totals().completion_tokens == 128
        assert simulator.stats()["calls"] == expected
        told = capsys.readouterr().err
        assert told.count("\n") == notes
        assert notes == told.count("cannot be read back")


@pytest.mark.parametrize(
    "row", ["", "{}", "[]", "5", '["a"]', "[[1.0]]", "[NaN]", "[1e300]", "[" + "9" * 400 + "]", "[" * 100_000]
)
def test_a_damaged_embedding_is_asked_for_anew(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str
) -> None:
    with closing(log(tmp_path)) as kept, Dispatcher([simulator.host]) as dispatcher:
        dispatcher.keep_in(kept)
        kept.write(embed_question("sim-embed", "a cat"), CallOutcome(reply=row))
        rows = dispatcher.embed("sim-embed", ["a cat", "a dog"])
        assert np.array_equal(dispatcher.embed("sim-embed", ["a cat", "a dog"]), rows)
    assert capsys.readouterr().err.count("cannot be read back") == 1


def test_a_file_with_a_trigger_is_refused_and_no_trigger_is_run(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    ReplyLog(path, digests={}).close()
    without_end = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TRIGGER t AFTER INSERT ON replies BEGIN {without_end}; END")
    with pytest.raises(ReplyLogError, match=r"cannot be used: it has a trigger or a view; delete it"):
        ReplyLog(path, digests={})


def test_of_two_runs_on_the_same_servers_each_has_a_whole_log_and_its_own_account(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    calls = [ask(k) for k in range(6)]
    before = simulator.stats()["calls"]
    with Dispatcher([simulator.host]) as dispatcher:
        runs = [dispatcher.beside() for _ in range(2)]
        for name, run in zip("ab", runs, strict=True):
            (tmp_path / name).mkdir()
            run.keep_in(log(tmp_path / name))
        replies = map_parallel(lambda k: runs[k % 2].generate(calls[k // 2]).text, range(12))
        assert replies[::2] == replies[1::2]
        assert runs[0].known(ask("nobody asked this")) is None
    assert simulator.stats()["calls"] - before == 6
    accounts = [run.accounts()["sim-target"] for run in runs]
    assert [account.calls + account.cache_hits for account in accounts] == [6, 6]
    assert sum(account.calls for account in accounts) == 6
    assert not dispatcher.accounts()
    for name, account in zip("ab", accounts, strict=True):
        with log(tmp_path / name) as kept:
            assert kept.totals().calls == account.calls
            assert all(kept.find(question_of(call)) for call in calls)
        with Dispatcher([simulator.host]) as alone, log(tmp_path / name) as kept:
            alone.keep_in(kept)
            assert [alone.generate(call).text for call in calls] == replies[::2]
    assert simulator.stats()["calls"] - before == 6


def test_to_cancel_one_run_ends_all_on_the_same_servers(simulator: EmbeddedServer) -> None:
    with Dispatcher([simulator.host]) as dispatcher:
        first, second = dispatcher.beside(), dispatcher.beside()
        first.cancel()
        assert isinstance(second.generate(ask()).error, CallCancelledError)
