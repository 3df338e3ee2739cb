"""The worker that encodes what many ask for: who shares a pass, who comes first, and what goes wrong."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.encoders import CachedEncoder, EncodingWorker, HashingEncoder, Job
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallCancelledError,
    EncodingError,
)
from ollama_utils.parallel import map_parallel
from tests.ollama_utils.threads import PATIENCE_S, interrupted_once, start, wait_until


class GroupingEncoder(HashingEncoder):
    """Four texts of one length share a pass; remembers the passes; has no row for what begins with `!`."""

    pass_size = 4

    def __init__(self) -> None:
        super().__init__(16)
        self.name = f"grouping-{id(self)}"
        self.passes: list[list[str]] = []
        self.error: BaseException | None = None
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.passes.append(list(texts))
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        rows = super().encode(texts)
        bad = [place for place, text in enumerate(texts) if text.startswith("!")]
        if bad:
            raise EncodingError(rows, {place: BadReplyError(texts[place]) for place in bad})
        return rows

    def shapes(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]


@pytest.fixture
def grouping() -> Iterator[GroupingEncoder]:
    """An encoder whose first pass goes on only when told."""
    encoder = GroupingEncoder()
    encoder.go_on.clear()
    yield encoder
    encoder.go_on.set()


def queued_behind_a_pass(
    grouping: GroupingEncoder, texts: Sequence[str], *, prefetched: Sequence[str] = ()
) -> tuple[EncodingWorker, dict[str, Job]]:
    """A worker in the pass of `first`, and the jobs that wait for their turn, prefetched ones first."""
    worker = EncodingWorker(grouping)
    jobs = {text: Job(text, is_awaited=text not in prefetched) for text in (*prefetched, *texts)}
    worker.add([Job("first", is_awaited=True)])
    assert grouping.begun.wait(PATIENCE_S)
    for job in jobs.values():
        worker.add([job])
    return worker, jobs


def finish(grouping: GroupingEncoder, jobs: dict[str, Job]) -> list[list[str]]:
    """The passes that the jobs were encoded in."""
    grouping.go_on.set()
    for job in jobs.values():
        outcome(job)
    return grouping.passes[1:]


def outcome(job: Job) -> object:
    """A job's row, or why it has none, once that is known."""
    return start(job.row).exception(PATIENCE_S) or job.row()


def told(encoder: CachedEncoder, text: str) -> object:
    """A text's row, or the kind and words of its error."""
    try:
        return tuple(encoder.encode([text])[0])
    except EncodingError as error:
        return type(error.failures[0]), str(error.failures[0])


WRITTEN = st.text("ab!", max_size=3)


@settings(max_examples=50)
@given(st.lists(st.lists(WRITTEN, max_size=5), max_size=8))
def test_each_text_gets_the_row_or_the_error_that_it_gets_alone_whoever_else_asks(
    lanes: list[list[str]],
) -> None:
    grouping = GroupingEncoder()
    shared = CachedEncoder(grouping)
    outcomes = map_parallel(lambda texts: [told(shared, text) for text in texts], lanes)
    alone = CachedEncoder(GroupingEncoder())
    assert outcomes == [[told(alone, text) for text in texts] for texts in lanes]
    assert all(len(texts) <= 4 and len(set(map(len, texts))) == 1 for texts in grouping.passes)
    rows = [text for texts in grouping.passes for text in texts if not text.startswith("!")]
    assert len(rows) == len(set(rows))


def test_texts_of_one_shape_share_a_pass_in_the_order_in_which_they_came(
    grouping: GroupingEncoder,
) -> None:
    _, jobs = queued_behind_a_pass(grouping, ["a", "b", "cc", "d", "ee", "f", "g", "h"])
    assert finish(grouping, jobs) == [["a", "b", "d", "f"], ["cc", "ee"], ["g", "h"]]


def test_what_somebody_waits_for_goes_first_and_what_is_prefetched_fills_its_passes(
    grouping: GroupingEncoder,
) -> None:
    prefetched = ["p", "q", "rr", "s", "t"]
    _, jobs = queued_behind_a_pass(grouping, ["a", "b", "ccc"], prefetched=prefetched)
    assert finish(grouping, jobs) == [["a", "b", "p", "q"], ["ccc"], ["rr"], ["s", "t"]]


def test_a_prefetched_text_that_somebody_asks_for_waits_no_longer_for_the_others(
    grouping: GroupingEncoder,
) -> None:
    cached = CachedEncoder(grouping)
    cached.prefetch(["first"])
    assert grouping.begun.wait(PATIENCE_S)
    cached.prefetch(["a", "bb", "ccc"])
    asked = start(lambda: cached.encode(["ccc"]))
    wait_until(lambda: cached.hits == 1)
    grouping.go_on.set()
    asked.result(PATIENCE_S)
    cached.encode(["a", "bb"])
    assert grouping.passes == [["first"], ["ccc"], ["a"], ["bb"]]


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)])
def test_a_pass_that_breaks_is_told_to_those_in_it_and_to_nobody_else(
    grouping: GroupingEncoder, error: BaseException
) -> None:
    grouping.error = error
    cached = CachedEncoder(grouping)
    failed = [start(lambda: cached.encode(["a"])), start(lambda: cached.encode(["a"]))]
    wait_until(lambda: cached.hits == 1)
    grouping.go_on.set()
    for one in failed:
        seen = one.exception(PATIENCE_S)
        if isinstance(error, RuntimeError):
            assert seen is error
        else:
            assert isinstance(seen, EncodingError)
            assert isinstance(seen.failures[0], CallCancelledError)
    grouping.error = None
    np.testing.assert_array_equal(cached.encode(["a", "b"]), HashingEncoder(16).encode(["a", "b"]))


def test_a_text_that_cannot_be_written_fails_alone(grouping: GroupingEncoder) -> None:
    _, jobs = queued_behind_a_pass(grouping, ["a", "\ud83d", "b"])
    assert finish(grouping, jobs) == [["a", "b"]]
    assert isinstance(outcome(jobs["\ud83d"]), BadRequestError)
    np.testing.assert_array_equal(jobs["b"].row(), HashingEncoder(16).encode(["b"])[0])


def test_texts_that_cannot_be_measured_leave_no_one_waiting() -> None:
    class Unmeasured(GroupingEncoder):
        def shapes(self, texts: Sequence[str]) -> list[int]:
            return super().shapes(texts)[1:]

    cached = CachedEncoder(Unmeasured())
    for _ in range(2):
        assert isinstance(
            start(lambda: cached.encode(["a", "b"])).exception(PATIENCE_S), ValueError
        )


def test_a_worker_that_is_stopped_leaves_no_one_waiting(grouping: GroupingEncoder) -> None:
    worker, jobs = queued_behind_a_pass(grouping, ["a"], prefetched=["b"])
    worker.stop()
    late = Job("late")
    worker.add([late])
    assert finish(grouping, jobs) == []
    for job in (*jobs.values(), late):
        assert isinstance(outcome(job), CallCancelledError)


def test_the_thread_starts_with_the_first_text_and_ends_with_the_encoder() -> None:
    def lives() -> bool:
        return any(thread.name == f"encoding-{name}" for thread in threading.enumerate())

    cached = CachedEncoder(GroupingEncoder())
    name = cached.name
    assert not lives()
    cached.encode(["a"])
    assert lives()
    del cached
    gc.collect()
    wait_until(lambda: not lives())


def test_an_interrupted_caller_leaves_no_one_waiting(grouping: GroupingEncoder) -> None:
    cached = CachedEncoder(grouping)
    with interrupted_once(grouping.begun.wait):
        cached.encode(["a"])
    others = [start(lambda: cached.encode(["a", "b"])) for _ in range(2)]
    grouping.go_on.set()
    for other in others:
        assert other.result(PATIENCE_S).shape == (2, 16)
    assert sorted(grouping.passes) == [["a"], ["b"]]


def test_a_prefetched_text_is_encoded_once_before_anyone_asks() -> None:
    grouping = GroupingEncoder()
    cached = CachedEncoder(grouping)
    cached.prefetch(["a", "b"])
    cached.prefetch(["b"])
    wait_until(lambda: grouping.passes == [["a", "b"]])
    assert cached.hits == 0
    np.testing.assert_array_equal(cached.encode(["a", "b"]), HashingEncoder(16).encode(["a", "b"]))
    assert grouping.passes == [["a", "b"]]
    assert cached.hits == 2


def test_a_prefetch_that_fails_raises_nothing_and_is_not_remembered() -> None:
    grouping = GroupingEncoder()
    cached = CachedEncoder(grouping)
    grouping.error = RuntimeError("broken")
    cached.prefetch(["a", "\ud83d"])
    wait_until(lambda: grouping.passes == [["a"]])
    with pytest.raises(RuntimeError):  # one after another: by now the first pass is over
        cached.encode(["bb"])
    grouping.error = None
    assert cached.encode(["a"]).shape == (1, 16)


def test_an_encoder_without_passes_encodes_when_it_is_asked_on_the_thread_that_asks() -> None:
    threads: list[threading.Thread] = []

    class Noting(HashingEncoder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            threads.append(threading.current_thread())
            return super().encode(texts)

    cached = CachedEncoder(Noting(16))
    cached.prefetch(["a"])
    cached.encode(["a"])
    assert threads == [threading.current_thread()]


FORK = """
import os, sys, threading
from tests.ollama_utils.test_encoding import GroupingEncoder
from ollama_utils.encoders import CachedEncoder

grouping = GroupingEncoder()
cached = CachedEncoder(grouping)
grouping.go_on.clear()
cached.prefetch(["under way"])
grouping.begun.wait()
child = os.fork()
if child == 0:  # its parent's worker may hold the locks of these
    grouping.begun, grouping.go_on = threading.Event(), threading.Event()
grouping.go_on.set()
rows = cached.encode(["under way", "new"])
if child == 0:
    sys.exit(0 if rows.shape == (2, 16) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_encodes_what_its_parent_was_at_and_both_come_to_their_end() -> None:
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, check=False, timeout=PATIENCE_S, stderr=subprocess.PIPE)  # noqa: S603 - our own interpreter and code
    assert done.returncode == 0, done.stderr
