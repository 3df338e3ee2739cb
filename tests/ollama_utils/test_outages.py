"""An outage is a state of a server: calls wait or move, none is lost; a word ends it, or it ends the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    BrokenReplyError,
    CallTimeoutError,
    ModelChangedError,
    OutageError,
    ServerBusyError,
    ServerFaultError,
    ServerUnreachableError,
)
from ollama_utils.health import Health
from ollama_utils.parallel import map_parallel
from ollama_utils.reply_log import ReplyLog, question_of
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.hostile import RawServer, http
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

CALLS = [
    Call(model="sim-target", prompt=f"Why {number}?", options={"seed": number})
    for number in range(24)
]
ABSENCES = (ServerUnreachableError("gone"), CallTimeoutError("late"), BrokenReplyError("cut"))


@pytest.fixture
def own() -> Iterator[EmbeddedServer]:
    """A simulator of the test's own, which takes a tenth of a second a reply."""
    with EmbeddedServer(Settings(slots=4, reply_tokens="25")) as server:
        yield server


def texts(dispatcher: Dispatcher) -> list[str]:
    """What comes of the calls, none of which fails."""
    completions = map_parallel(dispatcher.generate, CALLS)
    assert [completion.error for completion in completions] == [None] * len(CALLS)
    return [completion.text for completion in completions]


@pytest.mark.parametrize("at", ["calls", "all"])
@pytest.mark.parametrize("mode", ["hang", "drop"])
def test_calls_outlast_an_outage_and_get_the_replies_that_they_would_have_had(
    own: EmbeddedServer, mode: str, at: str
) -> None:
    with Dispatcher([own.host]) as dispatcher:
        expected = texts(dispatcher)
    lines: list[str] = []
    with Dispatcher([own.host], timeout_s=1.0, backoff_s=0.01, report=lines.append) as dispatcher:
        found = start(lambda: texts(dispatcher))
        wait_until(lambda: dispatcher.accounts() != {})
        own.set_outage(mode, at=at)  # type: ignore[arg-type]  # one of those it takes
        wait_until(lambda: len(lines) == 1)
        own.end_outage()
        assert found.result(PATIENCE_S) == expected
    assert "is away" in lines[0]
    assert "(--max-outage)" in lines[0]
    assert "answers again" in lines[1]


def test_an_outage_that_is_too_long_ends_all_calls_and_all_later_ones(own: EmbeddedServer) -> None:
    own.kill()
    with Dispatcher(
        [own.host], max_outage_s=0.5, backoff_s=0.01, report=lambda _line: None
    ) as dispatcher:
        for call in CALLS[:2]:
            with pytest.raises(
                OutageError, match=r"no server was there for 0.5 s \(--max-outage\)"
            ):
                dispatcher.generate(call)


def test_of_several_servers_one_that_hangs_gives_its_calls_to_the_others(
    own: EmbeddedServer,
) -> None:
    with EmbeddedServer(Settings(slots=4, reply_tokens="25")) as other:
        lines: list[str] = []
        hosts = [own.host, other.host]
        with Dispatcher(hosts, cache_size=0, timeout_s=1.0, report=lines.append) as dispatcher:
            texts(dispatcher)
            own.set_outage("hang", at="all")
            texts(dispatcher)
            wait_until(lambda: len(lines) == 1)
            own.end_outage()
            wait_until(lambda: len(lines) == 2)
        assert "its calls go to the other servers" in lines[0]


def test_a_model_that_is_another_one_after_an_outage_ends_the_run_and_its_replies_are_not_found(
    own: EmbeddedServer, tmp_path: Path
) -> None:
    with (
        closing(ReplyLog(tmp_path / "replies.sqlite", digests={})) as log,
        Dispatcher(
            [own.host], timeout_s=0.3, backoff_s=0.01, report=lambda _line: None
        ) as dispatcher,
    ):
        dispatcher.keep_in(log)
        dispatcher.models()
        texts(dispatcher)
        own.kill()
        late = start(lambda: dispatcher.generate(Call(model="sim-target", prompt="And now?")))
        wait_until(lambda: dispatcher._fleet._servers[own.host].health.is_away)
        with EmbeddedServer(replace(own.settings, seed=1, port=int(own.host.rpartition(":")[2]))):
            with pytest.raises(ModelChangedError, match="its digest changed"):
                late.result(PATIENCE_S)
            wait_until(lambda: log.find(question_of(CALLS[0])) is None)


def test_hosts_join_and_leave_while_calls_are_under_way(own: EmbeddedServer) -> None:
    with EmbeddedServer(Settings(slots=4, reply_tokens="25")) as other:
        hosts, lines = [own.host], list[str]()
        with Dispatcher(
            hosts, cache_size=0, hosts_now=lambda: list(hosts), report=lines.append
        ) as dispatcher:
            texts(dispatcher)
            hosts.append(other.host)
            wait_until(lambda: f"{other.host} joins" in lines)
            wait_until(
                lambda: bool(texts(dispatcher)) and other.stats()["calls"] > 0
            )  # calls may come one by one
            del hosts[0]
            wait_until(lambda: f"{own.host} leaves" in lines)
            own.reset_stats()
            texts(dispatcher)
            assert own.stats()["calls"] == 0
            hosts[:] = [other.host, "http://127.0.0.1:1"]
            wait_until(lambda: any("cannot join" in line for line in lines))
            texts(dispatcher)


def test_a_busy_server_is_not_asked_again_before_it_wants_to_be() -> None:
    busy = http("503 Busy", b'{"error": "busy"}', Retry_After="60")
    with (
        RawServer(busy) as server,
        Dispatcher([server.host], backoff_s=0.001, deadline_s=30.0) as dispatcher,
    ):
        completion = dispatcher.generate(Call(model="m", prompt="p"))
    assert completion.attempts == 1
    assert isinstance(completion.error, ServerBusyError)


def ended(health: Health, error: Exception | None) -> bool:
    """One call that ends so; whether the server is away by that."""
    health.sent()
    return health.over(error)


@pytest.mark.parametrize("error", ABSENCES)
def test_a_few_absences_in_a_row_make_an_outage_and_an_answer_between_them_none(
    error: Exception,
) -> None:
    health = Health()
    assert [ended(health, each) for each in (error, error, None, error, error)] == [False] * 5
    assert [ended(health, each) for each in (ServerFaultError("failed"), error, error)] == [
        False
    ] * 3
    assert ended(health, error)
    assert health.is_away
    assert health.why == str(error)
    assert not ended(health, error), "it is told once"
    health.back()
    assert not health.is_away


def test_a_server_that_is_busy_is_there_unless_it_was_absent_just_before() -> None:
    health, busy = Health(), ServerBusyError("loading model")
    assert [ended(health, each) for each in (busy, busy, busy, busy, ABSENCES[0], busy)] == [
        False
    ] * 6
    assert ended(health, busy)
