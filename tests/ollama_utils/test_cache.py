"""The reply cache: equal questions are one call, and nobody waits for nothing."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.errors import BadRequestError, CallCancelledError, ServerBusyError
from ollama_utils.reply_log import question_of
from ollama_utils.single_flight import ReplyCache, key_of
from ollama_utils.types import Call, Completion
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

YES = Completion(text="Yes.")


def ask(
    cache: ReplyCache,
    key: bytes,
    answer: Callable[[], Completion],
    cancelled: threading.Event | None = None,
) -> Completion:
    """What a question gets, which is answered so where nobody asked it before."""
    with cache.asking(key, cancelled or threading.Event()) as question:
        if question.reply is None:
            question.reply = answer()
        return question.reply


def never() -> Completion:
    raise AssertionError("this question was asked already")


def test_a_known_reply_is_given_again_marked_as_cached() -> None:
    cache = ReplyCache(8)
    assert ask(cache, b"q", lambda: YES) is YES
    assert ask(cache, b"q", never) == replace(YES, cached=True, attempts=0)


def test_the_reply_unused_for_longest_is_forgotten_first() -> None:
    cache = ReplyCache(2)
    for key in (b"a", b"b", b"a", b"c"):
        ask(cache, key, lambda: YES)
    assert ask(cache, b"a", never).cached
    assert not ask(cache, b"b", lambda: YES).cached


def remembered(cache: ReplyCache, replies: Sequence[Completion]) -> list[int]:
    """Which of so many replies, asked for in turn, are still known."""
    for place, reply in enumerate(replies):
        ask(cache, b"%d" % place, functools.partial(lambda reply: reply, reply))
    return [place for place in range(len(replies)) if cache.known(b"%d" % place) is not None]


@pytest.mark.parametrize("size", [1, 2, 7, 50])
@pytest.mark.parametrize("most_bytes", [1, 1000, 2**28 - 1, 2**28])
def test_as_many_short_replies_are_kept_as_the_size_says(size: int, most_bytes: int) -> None:
    """Down to a memory of nothing, where one is: the call that was just paid for."""
    known = remembered(ReplyCache(size, most_bytes=most_bytes), [YES] * 60)
    assert known == list(range(60 - (size if most_bytes > 2**27 else 1), 60))


def test_long_replies_are_forgotten_before_they_fill_the_memory() -> None:
    cache = ReplyCache(1000, most_bytes=2**20)
    long = [Completion(text="\N{GRINNING FACE}" * 2**14) for _ in range(60)]  # 4 bytes a character
    assert len(remembered(cache, long)) == 2**20 // (2**16 + 2**11)
    assert len(remembered(cache, [YES] * 1000)) > 900


def test_one_reply_longer_than_all_the_memory_is_kept_alone() -> None:
    cache = ReplyCache(10, most_bytes=2**20)
    assert remembered(cache, [YES, YES, Completion(text="x" * 2**21)]) == [2]
    assert remembered(cache, [YES] * 5) == list(range(5))


class SlowQuestion:
    """A question under way that others share, until it is settled."""

    def __init__(self, outcome: Completion | BaseException) -> None:
        self.cache = ReplyCache(8)
        self.asked = threading.Event()
        self.settle = threading.Event()
        self.cancelled = threading.Event()
        """Set once those who wait are stopped."""
        self.outcome = outcome
        self.leader = start(lambda: ask(self.cache, b"q", self._ask))
        assert self.asked.wait(PATIENCE_S)
        self.followers = [start(lambda: ask(self.cache, b"q", never, self.cancelled)) for _ in range(3)]
        wait_until(lambda: self.cache.waiting == len(self.followers))

    def _ask(self) -> Completion:
        self.asked.set()
        assert self.settle.wait(PATIENCE_S)
        if isinstance(self.outcome, Completion):
            return self.outcome
        raise self.outcome


@pytest.mark.parametrize("outcome", [YES, Completion(text="", error=ServerBusyError("full"), attempts=4)])
def test_those_who_ask_at_the_same_time_share_the_outcome(outcome: Completion) -> None:
    question = SlowQuestion(outcome)
    question.settle.set()
    assert question.leader.result(PATIENCE_S) is outcome
    for follower in question.followers:
        assert follower.result(PATIENCE_S) == replace(outcome, cached=outcome.error is None, attempts=0)


def test_an_error_is_not_kept() -> None:
    cache = ReplyCache(8)
    ask(cache, b"q", lambda: Completion(text="", error=ServerBusyError("full")))
    assert ask(cache, b"q", lambda: YES) is YES


def test_a_cancelled_wait_ends_while_the_question_itself_goes_on() -> None:
    question = SlowQuestion(YES)
    question.cancelled.set()
    question.cache.cancel()
    for follower in question.followers:
        assert isinstance(follower.result(PATIENCE_S).error, CallCancelledError)
    question.settle.set()
    assert question.leader.result(PATIENCE_S) is YES
    assert ask(question.cache, b"q", never).text == "Yes."


def test_questions_may_be_cancelled_at_the_moment_when_they_are_answered() -> None:
    at_once = threading.Barrier(33)

    def answer() -> Completion:
        at_once.wait(PATIENCE_S)
        return YES

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            cache = ReplyCache(64)
            keys = [bytes([key]) for key in range(at_once.parties - 1)]
            asking = [start(functools.partial(ask, cache, key, answer)) for key in keys]
            at_once.wait(PATIENCE_S)
            cache.cancel()
            assert [question.result(PATIENCE_S) for question in asking] == [YES] * len(keys)
    finally:
        sys.setswitchinterval(interval_s)


def test_an_unexpected_exception_reaches_those_who_wait_and_blocks_nobody_later() -> None:
    question = SlowQuestion(ZeroDivisionError("a bug"))
    question.settle.set()
    for asker in (question.leader, *question.followers):
        assert isinstance(asker.exception(PATIENCE_S), ZeroDivisionError)
    assert ask(question.cache, b"q", lambda: YES) is YES


def test_a_ctrl_c_met_by_the_one_who_asks_is_a_stopped_run_to_the_others() -> None:
    question = SlowQuestion(KeyboardInterrupt())
    question.cancelled.set()
    question.settle.set()
    assert isinstance(question.leader.exception(PATIENCE_S), KeyboardInterrupt)
    for follower in question.followers:
        assert isinstance(follower.result(PATIENCE_S).error, CallCancelledError)


def test_one_who_is_stopped_stops_no_other() -> None:
    cache, asked, settle = ReplyCache(8), threading.Event(), threading.Event()

    def stopped() -> Completion:
        asked.set()
        assert settle.wait(PATIENCE_S)
        return Completion(text="", error=CallCancelledError("its own cap was closed"))

    leader = start(lambda: ask(cache, b"q", stopped))
    assert asked.wait(PATIENCE_S)
    follower = start(lambda: ask(cache, b"q", lambda: YES))
    wait_until(lambda: cache.waiting == 1)
    settle.set()
    assert isinstance(leader.result(PATIENCE_S).error, CallCancelledError)
    assert follower.result(PATIENCE_S) is YES


FIELDS: dict[str, Any] = {
    "prompt": "another",
    "system": "Be brief.",
    "format": {"type": "object"},
    "options": {"temperature": 0.5},
    "think": False,
    "model": "other",
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_call_decides_its_key(field: str) -> None:
    call = Call(model="m", prompt="p", options={"temperature": 0})
    assert key_of(question_of(replace(call, **{field: FIELDS[field]}))) != key_of(question_of(call))


def test_the_tag_latest_does_not_change_the_key() -> None:
    call = Call(model="m", prompt="p", options={"seed": 1})
    assert key_of(question_of(call)) == key_of(question_of(replace(call, model="m:latest")))


@given(st.none() | st.floats(0, 2), st.none() | st.integers(-1, 5))
def test_a_call_is_repeatable_when_it_is_greedy_or_seeded(
    temperature: float | None, seed: int | None
) -> None:
    given_options = {"temperature": temperature, "seed": seed}
    options = {name: value for name, value in given_options.items() if value is not None}
    seeded = seed is not None and seed >= 0
    assert Call(model="m", prompt="p", options=options).repeatable == (seeded or temperature == 0)


@given(st.sampled_from([[0], {}, "0", np.int64(0), np.zeros(2)]))
def test_an_option_that_is_no_number_makes_no_call_repeatable(odd: object) -> None:
    assert not Call(model="m", prompt="p", options={"temperature": odd, "seed": odd}).repeatable


@pytest.mark.parametrize("odd", [np.int64(3), {1, 2}, float("nan")])
def test_a_call_that_json_cannot_hold_has_no_key(odd: object) -> None:
    with pytest.raises(BadRequestError, match="'m' cannot be written as JSON"):
        question_of(Call(model="m", prompt="p", options={"top_k": odd}))
