"""Files of JSON that anybody may have written, or a kill may have torn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import RunStoppedError, UserError
from records.json_lines import (
    MOST_BYTES,
    JsonLines,
    LinesHash,
    differing,
    read_json_object,
    read_lines,
)

RECORDS = [{"n": n, "text": "é\u2028" * n, "not_hashed": {"s": n / 3}} for n in range(8)]
ROW = 2


def written(path: Path) -> bytes:
    path.unlink(missing_ok=True)
    lines = JsonLines(path)
    for record in RECORDS:
        lines.write(record)
    lines.close()
    return path.read_bytes()


@given(cut=st.integers(0, 400), done=st.integers(0, 4))
def test_a_run_killed_at_any_byte_goes_on_to_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, cut: int, done: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    whole = written(path)
    path.write_bytes(whole[:cut])
    left = list(read_lines(path))
    assert left == RECORDS[: whole[:cut].count(b"\n")]
    if len(left) < done * ROW:
        expected = rf"{len(left)} whole lines; expected at least {done * ROW}"
        with pytest.raises(UserError, match=expected):
            JsonLines(path, done=done * ROW, row=ROW)
        return
    lines = JsonLines(path, done=done * ROW, row=ROW)
    assert lines.count == done * ROW
    assert len(lines.ahead) == len(left) // ROW * ROW - lines.count
    for record in RECORDS[lines.count :]:
        lines.write(record | {"not_hashed": "of another moment"} if lines.ahead else record)
    assert list(lines.read()) == RECORDS
    lines.close()
    assert (path.read_bytes(), lines.sha256) == (whole, LinesHash(RECORDS).hexdigest())


def test_lines_behind_those_that_are_done_are_cut_off_where_nothing_is_played_again(
    tmp_path: Path,
) -> None:
    written(tmp_path / "a.jsonl")
    JsonLines(tmp_path / "a.jsonl", done=3).close()
    assert list(read_lines(tmp_path / "a.jsonl")) == RECORDS[:3]


def test_a_row_that_differs_from_the_one_that_was_written_stops_the_run(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl")
    lines = JsonLines(tmp_path / "a.jsonl", row=ROW)
    with pytest.raises(RunStoppedError, match=r"line 1 of .* come out as it did: text changed"):
        lines.write(RECORDS[0] | {"text": "other"})
    lines.close()
    assert differing({"a": 1, "b": 2}, {"b": 2, "a": 1}) == ["the order of the keys"]


@pytest.mark.parametrize("line", ["[" * 10**6, "{", "{" + " " * MOST_BYTES + "}", '{"n": 9}'])
def test_a_damaged_line_is_named_where_it_is_needed(tmp_path: Path, line: str) -> None:
    def check(record: Mapping[str, Any]) -> None:
        if "text" not in record:
            raise ValueError("'text' is missing")

    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": ""}}\n{line}\n{{"text": ""}}\n')
    expected = r"line 2 of .*a\.jsonl.* is not one that a run writes"
    with pytest.raises(UserError, match=expected):
        JsonLines(path, done=2, row=1, check=check)
    with pytest.raises(ValueError, match=expected):
        list(read_lines(path, check))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 10**6, "too deep"),
        (b"[]", "expected a JSON object, got a list"),
        (b"{", "Expecting"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "digits"),
        (b"\xff\xfe{\0}\0", "UTF-8"),
        (b" " * (MOST_BYTES + 1), "over 16777216 bytes"),
    ],
)
def test_json_that_is_no_object_within_bounds_is_refused(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        read_json_object(tmp_path / "a.json")
