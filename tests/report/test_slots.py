"""The lanes of a server, from a log of replies that may be written at the same time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.on_ray import task_log
from ollama_utils.reply_log import Question, ReplyLog, as_json
from ollama_utils.types import Completion, Usage
from report.slots import MOST_LANES, slots_chart

Call = tuple[float, float, str]
"""When its reply was written down, how long its server worked on it, and the server."""
WRITER = """
import sys
from itertools import count
from pathlib import Path
from tests.report.test_slots import write_one
from ollama_utils.reply_log import ReplyLog
with ReplyLog(Path(sys.argv[1]) / "replies.sqlite", digests={}) as log:
    for number in count():
        write_one(log, number, 1e-4)
        if number == 20: print("begun", flush=True)
"""


def write_one(log: ReplyLog, number: int, worked_s: float = 1.0, server: str = "s") -> None:
    reply = as_json(Completion(text="Yes.", usage=Usage(decode_s=worked_s, total_s=worked_s)))
    question = Question(endpoint="generate", model="m", request=str(number))
    log.write(question, reply=reply, server=server, attempts=1)


def change(folder: Path, statement: str, rows: Sequence[tuple[Any, ...]] = ((),)) -> None:
    """Change a log as anybody can."""
    with closing(sqlite3.connect(folder / "replies.sqlite")) as database, database:
        database.executemany(statement, rows)


def chart(folder: Path, calls: Sequence[Call]) -> dict[str, Any]:
    """What is drawn of a log of these calls."""
    with ReplyLog(folder / "replies.sqlite", digests={}) as log:
        for number, (_, worked_s, server) in enumerate(calls):
            write_one(log, number, worked_s, server)
    at_s = [(call[0], str(number)) for number, call in enumerate(calls)]
    change(folder, "UPDATE replies SET at_s = ? WHERE request = ?", at_s)
    found = slots_chart(folder)
    assert found is not None
    return found


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 50.0), st.floats(0.01, 5.0), st.sampled_from("ab")),
        min_size=1,
        max_size=30,
    )
)
def test_each_call_is_in_one_lane_of_its_server_and_no_two_overlap(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Call]
) -> None:
    shifted = [(1e9 + at_s, worked, server) for at_s, worked, server in calls]
    found = chart(tmp_path_factory.mktemp("run"), shifted)
    assert sum(map(len, found["calls"])) == len(calls)
    for lane, (_, _, busy), shares in zip(
        found["calls"], found["rows"], found["busy"], strict=True
    ):
        for (begin, lasted), (after, _) in pairwise(lane):
            assert begin + lasted <= after + 2e-4
        assert all(0 <= share <= 1 for share in shares)
        assert busy * found["span_s"] == pytest.approx(sum(lasted for _, lasted in lane), abs=0.02)


def test_a_long_pause_is_cut_out_and_what_has_no_lane_is_counted(tmp_path: Path) -> None:
    found = chart(tmp_path, [(10.0, 1.0, "a"), (5000.0, 1.0, "a")])
    assert found["calls"] == [[[0.0, 1.0], [1.0, 1.0]]]
    assert "1 longer pauses are cut out" in found["says"]
    many = chart(tmp_path, [(10.0 + k, 0.5, f"s{k}") for k in range(MOST_LANES + 38)])
    assert len(many["rows"]) == MOST_LANES
    assert "more calls are left out: no lane was free" in many["says"]


def test_what_no_server_was_asked_or_timed_is_no_call(tmp_path: Path) -> None:
    chart(tmp_path, [(100.0, 2.0, "a")] * 4)
    change(tmp_path, "UPDATE replies SET attempts = 0 WHERE rowid = 1")
    change(tmp_path, "UPDATE replies SET error = 'x', reply = '' WHERE rowid = 2")
    change(tmp_path, """UPDATE replies SET reply = '{"usage": null}' WHERE rowid = 3""")
    assert count_of(tmp_path) == 1
    change(tmp_path, """UPDATE replies SET reply = '{"usage": null}'""")
    assert count_of(tmp_path) == 0


def test_the_logs_of_ray_tasks_are_read_too(tmp_path: Path) -> None:
    for path in (tmp_path / "replies.sqlite", task_log(tmp_path, 0), task_log(tmp_path, 1)):
        with ReplyLog(path, digests={}) as log:
            write_one(log, 0, 2.0)
    assert count_of(tmp_path) == 3


def contents(folder: Path) -> dict[str, str]:
    return {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if not path.name.endswith("-shm")  # where SQLite marks who reads
    }


def count_of(folder: Path) -> int:
    found = slots_chart(folder)
    return int(found["says"].split()[0].replace(",", "")) if found else 0


def test_a_log_is_read_while_a_process_writes_it_and_after_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:  # noqa: S603 - ours
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"begun\n"
            first = last = count_of(tmp_path)
            while last == first:
                assert writer.poll() is None
                last = count_of(tmp_path)
        finally:
            writer.kill()
    assert 21 <= first < last
    before = contents(tmp_path)
    assert count_of(tmp_path) >= last
    assert contents(tmp_path) == before
    assert "replies.sqlite-wal" in before
