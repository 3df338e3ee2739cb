"""The lanes of a server: bars that overlap lie apart, and what is drawn is what was called."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.reply_log import CallOutcome, Question, ReplyLog, as_json
from ollama_utils.types import Completion, Usage
from report.slots import MOST_LANES_IN_ALL, SLACK, Bar, LoggedCall, _laid_out, _without_pauses, read_slots

SECONDS = st.floats(0.01, 5.0)


def call(came_s: float, worked_s: float, server: str = "a", model: str = "m") -> LoggedCall:
    return LoggedCall(server, model, came_s, worked_s)


@given(st.lists(st.tuples(st.floats(0.0, 50.0), SECONDS, st.sampled_from("ab")), min_size=1, max_size=40))
def test_each_call_is_in_one_lane_of_its_server_and_no_two_overlap(
    calls: list[tuple[float, float, str]],
) -> None:
    slots = _laid_out([call(1e9 + came, worked, server) for came, worked, server in calls])
    assert sum(len(lane["calls"]) for lane in slots.lanes) == len(calls) == slots.count
    for lane in slots.lanes:
        ends = [begin + lasted for begin, lasted in lane["calls"]]
        begins = [begin for begin, _ in lane["calls"]]
        assert all(end <= begin + 2e-4 for end, begin in zip(ends, begins[1:], strict=False))
        assert all(0 <= share <= 1 for share in lane["busy"])
    assert 0 < slots.busy <= 1


def test_calls_at_once_need_as_many_lanes_and_calls_in_turn_need_one() -> None:
    at_once = _laid_out([call(10.0, 4.0), call(10.1, 4.0), call(10.2, 4.0)])
    in_turn = _laid_out([call(10.0, 4.0), call(14.0, 4.0 + SLACK), call(18.0, 4.0)])
    assert len(at_once.lanes) == 3
    assert len(in_turn.lanes) == 1
    assert in_turn.busy == pytest.approx(1.0, abs=0.02)


def test_a_long_pause_is_cut_out() -> None:
    bars, pauses = _without_pauses([call(10.0, 1.0), call(5000.0, 1.0)])
    assert pauses == 1
    assert [bar for _, bar in bars] == [Bar(0.0, 1.0), Bar(1.0, 2.0)]


def test_what_is_no_reply_of_a_server_is_left_out(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "replies.sqlite") as database:
        database.execute(
            "CREATE TABLE replies (key BLOB, scope TEXT, server TEXT, model TEXT, digest TEXT, endpoint TEXT,"
            " request TEXT, reply TEXT, attempts INTEGER, error TEXT, at_s REAL)"
        )
        usage = {"prefill_s": 0.5, "decode_s": 1.5, "total_s": 9.0}
        good = json.dumps({"usage": usage})
        for reply, attempts, at_s in (
            (good, 1, 100.0),
            (good, 0, 101.0),
            ("no json", 1, 102.0),
            (json.dumps({"usage": None}), 1, 103.0),
            (json.dumps({"usage": usage | {"decode_s": "x"}}), 1, 104.0),
            (json.dumps({"usage": {"total_s": 9.0}}), 1, 105.0),
            (good, 1, None),
        ):
            row = ("", "", "s", "m", "", "generate", "", reply, attempts, None, at_s)
            database.execute("INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    database.close()
    slots = read_slots(tmp_path)
    assert slots is not None
    assert (slots.count, slots.untimed) == (1, 1)
    assert slots.span_s == 2.0


def test_a_log_with_a_trigger_or_a_view_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "replies.sqlite") as database:
        database.execute(
            "CREATE VIEW replies AS WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t) "
            "SELECT 's' AS server, 'm' AS model, n AS at_s, '{}' AS reply, 1 AS attempts, NULL AS error, "
            "'generate' AS endpoint FROM t"
        )
    database.close()
    with pytest.raises(ValueError, match="trigger or a view"):
        read_slots(tmp_path)


def test_many_servers_have_some_lanes_and_the_rest_is_told() -> None:
    slots = _laid_out([call(10.0 + k, 0.5, server=f"s{k}") for k in range(1000)])
    assert len(slots.lanes) == MOST_LANES_IN_ALL
    assert slots.count + slots.left_out == 1000


def test_a_log_that_is_being_written_is_read_with_its_write_ahead_log(tmp_path: Path) -> None:
    with ReplyLog(tmp_path / "replies.sqlite", digests={}) as log:
        usage = Usage(decode_s=1.0, total_s=1.0)
        reply = as_json(Completion(text="yes", usage=usage))
        for k in range(3):
            question = Question(endpoint="generate", model="m", request=str(k))
            log.write(question, CallOutcome(reply=reply, server="s", attempts=1))
        slots = read_slots(tmp_path)
    assert slots is not None
    assert slots.count == 3


def test_a_log_without_timed_replies_has_no_lanes(tmp_path: Path) -> None:
    (tmp_path / "replies.sqlite").write_bytes(b"")
    with pytest.raises(ValueError, match="not a log"):
        read_slots(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_slots(tmp_path / "no")
