"""When a search stops for failing calls: a broken server is told from failures that merely end last."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cli.searching import FailedLimit
from ollama_utils.errors import ModelMissingError
from ollama_utils.reply_log import CallOutcome, ReplyLog, question_of
from ollama_utils.types import Call
from records.errors import RunStoppedError

GOOD, BAD, SPARED = None, "ServerFaultError: down", "ModelMissingError: no such model"
UNDER_WAY = 10
WINDOW = 4 * UNDER_WAY


def stopped_after(folder: Path, ends: Iterable[str | None], *, most: float = 0.5, known: int = 0) -> int:
    """How many calls came to an end, in this order, before the search is stopped; all where it is not."""
    with ReplyLog(folder / "replies.sqlite", digests={}) as log:
        limit = FailedLimit(log, most, lambda: known * log.last(), UNDER_WAY, (ModelMissingError,))
        for number, error in enumerate(ends):
            call = Call(model="m", prompt=str(number), options={"temperature": 0})
            log.write(question_of(call), CallOutcome(reply="" if error else "{}", error=error, attempts=4))
            try:
                limit.check()
            except RunStoppedError as told:
                return number + 1 if f"(--max-failed {most:g}); last error: {BAD}" in str(told) else -1
        return log.last()


def test_a_server_that_gives_no_reply_any_more_is_told_by_one_call_more_than_were_under_way(
    tmp_path: Path,
) -> None:
    ends = [GOOD] * 100 + [BAD] * 100
    assert stopped_after(tmp_path, ends) == 100 + UNDER_WAY + 1


def test_failures_that_all_end_last_as_they_were_tried_again_stop_nothing(tmp_path: Path) -> None:
    ends = [GOOD] * 170 + [BAD] * UNDER_WAY
    assert stopped_after(tmp_path, 3 * ends) == 3 * len(ends)


def test_more_than_the_share_over_the_window_stops(tmp_path: Path) -> None:
    for folder in ("many", "few"):
        (tmp_path / folder).mkdir()
    assert stopped_after(tmp_path / "many", [BAD, BAD, GOOD] * 100) == WINDOW
    assert stopped_after(tmp_path / "few", [BAD, GOOD, GOOD] * 100) == 300


@pytest.mark.parametrize(("most", "known"), [(1.0, 0), (0.5, 3)])
def test_neither_where_all_may_fail_nor_beside_as_many_known_replies(
    tmp_path: Path, most: float, known: int
) -> None:
    assert stopped_after(tmp_path, [BAD] * 200, most=most, known=known) == 200


def test_errors_that_a_search_reckons_with_do_not_count(tmp_path: Path) -> None:
    assert stopped_after(tmp_path, [SPARED] * 200) == 200
