"""Who waits for whom: the same plans driven one call after another, or phase by phase.

A schedule decides when requests are served, never what they are, so every schedule gives the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, cast

from envs.episode import Plan, Reply, Request

Schedule = Literal["sequential", "phased"]
SCHEDULES: tuple[Schedule, ...] = ("sequential", "phased")

T = TypeVar("T")
Answer = Callable[[Sequence[Request]], Sequence[Reply]]


def run_plan(plan: Plan[T], answer: Answer) -> T:
    """Drive one plan to its end, one request after another."""
    replies: tuple[Reply, ...] | None = None
    while True:
        try:
            requests = plan.send(cast("tuple[Reply, ...]", replies))
        except StopIteration as end:
            return cast("T", end.value)
        replies = tuple(answer([request])[0] for request in requests)


def run_sequential(plans: Sequence[Plan[T]], answer: Answer) -> list[T]:
    """One plan after another, one request after another: never more than one call in flight."""
    return [run_plan(plan, answer) for plan in plans]


def run_phased(plans: Sequence[Plan[T]], answer: Answer) -> list[T]:
    """All plans side by side: in each phase the requests of all of them are served together."""
    results: dict[int, T] = {}
    replies: dict[int, tuple[Reply, ...] | None] = dict.fromkeys(range(len(plans)))
    while replies:
        waiting: dict[int, tuple[Request, ...]] = {}
        for k, sent in replies.items():
            try:
                waiting[k] = plans[k].send(cast("tuple[Reply, ...]", sent))
            except StopIteration as end:
                results[k] = cast("T", end.value)
        answers = iter(answer([request for requests in waiting.values() for request in requests]))
        replies = {k: tuple(next(answers) for _ in requests) for k, requests in waiting.items()}
    return [results[k] for k in range(len(plans))]
