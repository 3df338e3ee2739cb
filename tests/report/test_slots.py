"""The lanes of a server: bars that overlap lie apart, and what is drawn is what was called."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.errors import ReplyLogError
from ollama_utils.reply_log import CallOutcome, Question, ReplyLog, as_json
from ollama_utils.types import Completion, Usage
from report.slots import MOST_LANES_IN_ALL, SLACK, Slots, read_slots

Call = tuple[float, float, str]
"""When its reply came, how long its server worked on it, and the server."""


def write(folder: Path, calls: Sequence[Call]) -> None:
    """Write a log of calls."""
    with ReplyLog(folder / "replies.sqlite", digests={}) as log:
        for number, (_, worked_s, server) in enumerate(calls):
            reply = as_json(Completion(text="Yes.", usage=Usage(decode_s=worked_s, total_s=worked_s)))
            question = Question(endpoint="generate", model="m", request=str(number))
            log.write(question, CallOutcome(reply=reply, server=server, attempts=1))
    change(
        folder, "UPDATE replies SET at_s = ? WHERE request = ?", [(c[0], str(n)) for n, c in enumerate(calls)]
    )


def change(folder: Path, statement: str, rows: Sequence[tuple[Any, ...]] = ((),)) -> None:
    """Change a log as anybody can."""
    with closing(sqlite3.connect(folder / "replies.sqlite")) as database, database:
        database.executemany(statement, rows)


def slots_of(folder: Path, calls: Sequence[Call]) -> Slots:
    """The lanes of a log of calls."""
    write(folder, calls)
    slots = read_slots(folder)
    assert slots is not None
    return slots


@given(
    st.lists(
        st.tuples(st.floats(0.0, 50.0), st.floats(0.01, 5.0), st.sampled_from("ab")), min_size=1, max_size=40
    )
)
def test_each_call_is_in_one_lane_of_its_server_and_no_two_overlap(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Call]
) -> None:
    slots = slots_of(
        tmp_path_factory.mktemp("run"), [(1e9 + came, worked, server) for came, worked, server in calls]
    )
    assert sum(len(lane["calls"]) for lane in slots.lanes) == len(calls) == slots.count
    for lane in slots.lanes:
        ends = [begin + lasted for begin, lasted in lane["calls"]]
        begins = [begin for begin, _ in lane["calls"]]
        assert all(end <= begin + 2e-4 for end, begin in zip(ends, begins[1:], strict=False))
        assert all(0 <= share <= 1 for share in lane["busy"])
    assert 0 < slots.busy <= 1


def test_calls_at_once_need_as_many_lanes(tmp_path: Path) -> None:
    assert len(slots_of(tmp_path, [(10.0, 4.0, "a"), (10.1, 4.0, "a"), (10.2, 4.0, "a")]).lanes) == 3


def test_calls_in_turn_need_one_lane(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, [(10.0, 4.0, "a"), (14.0, 4.0 + SLACK, "a"), (18.0, 4.0, "a")])
    assert len(slots.lanes) == 1
    assert slots.busy == pytest.approx(1.0, abs=0.02)


def test_a_long_pause_is_cut_out(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, [(10.0, 1.0, "a"), (5000.0, 1.0, "a")])
    assert (slots.pauses, slots.span_s) == (1, 2.0)
    assert slots.lanes[0]["calls"] == [[0.0, 1.0], [1.0, 1.0]]


def test_many_servers_have_some_lanes_and_the_rest_is_counted(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, [(10.0 + k, 0.5, f"s{k}") for k in range(1000)])
    assert len(slots.lanes) == MOST_LANES_IN_ALL
    assert slots.count + slots.left_out == 1000


def test_what_is_no_reply_of_a_server_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, [(100.0, 2.0, "a")] * 9)
    usage = {"prefill_s": 0.5, "decode_s": 1.5, "total_s": 9.0}
    good = json.dumps({"usage": usage})
    change(
        tmp_path,
        "UPDATE replies SET reply = ?, attempts = ?, at_s = ?, server = ? WHERE rowid = ?",
        [
            (good, 1, 100.0, "s", 1),
            (good, 0, 101.0, "s", 2),
            ("no json", 1, 102.0, "s", 3),
            (json.dumps({"usage": None}), 1, 103.0, "s", 4),
            (json.dumps({"usage": usage | {"decode_s": "x"}}), 1, 104.0, "s", 5),
            (json.dumps({"usage": {"total_s": 9.0}}), 1, 105.0, None, 6),
            (good, 1, None, "s", 7),
            (good, 1, "soon", b"\xff", 8),
            (b"\xff\xfe", 1, 106.0, "s", 9),
        ],
    )
    slots = read_slots(tmp_path)
    assert slots is not None
    assert (slots.count, slots.untimed, slots.span_s) == (1, 2, 2.0)


def test_a_log_that_is_being_written_is_read_with_its_write_ahead_log(tmp_path: Path) -> None:
    with ReplyLog(tmp_path / "replies.sqlite", digests={}) as log:
        reply = as_json(Completion(text="yes", usage=Usage(decode_s=1.0, total_s=1.0)))
        for k in range(3):
            question = Question(endpoint="generate", model="m", request=str(k))
            log.write(question, CallOutcome(reply=reply, server="s", attempts=1))
        slots = read_slots(tmp_path)
    assert slots is not None
    assert slots.count == 3


def test_nothing_is_written_beside_a_log_of_a_run_that_ended(tmp_path: Path) -> None:
    write(tmp_path, [(10.0, 1.0, "a")])
    (tmp_path / "replies.sqlite").chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert read_slots(tmp_path) is not None
    finally:
        tmp_path.chmod(0o700)
    assert [file.name for file in tmp_path.iterdir()] == ["replies.sqlite"]


def test_a_log_without_timed_replies_has_no_lanes(tmp_path: Path) -> None:
    write(tmp_path, [(10.0, 0.0, "a")])
    assert read_slots(tmp_path) is None


def test_a_file_that_is_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_slots(tmp_path)
    (tmp_path / "replies.sqlite").touch()
    with pytest.raises(ReplyLogError, match="not a log of replies"):
        read_slots(tmp_path)
    change(tmp_path, "CREATE VIEW replies AS SELECT 's' AS server, 'm' AS model, 1 AS at_s, '{}' AS reply")
    with pytest.raises(ReplyLogError, match="not a log of replies"):
        read_slots(tmp_path)
