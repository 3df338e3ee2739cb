"""Who waits for whom: the same plans driven one call after another, phase by phase, or each by its lane.

A schedule decides when requests are served, never what they are, so every schedule gives the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, cast

from envs.episode import Plan, Reply, Request

Schedule = Literal["sequential", "phased", "lanes"]
SCHEDULES: tuple[Schedule, ...] = ("sequential", "phased", "lanes")

T = TypeVar("T")
Answer = Callable[[Sequence[Request]], Sequence[Reply]]


def run_plan(plan: Plan[T], answer: Answer) -> T:
    """Drive one plan to its end."""
    replies: tuple[Reply, ...] | None = None
    while True:
        try:
            requests = plan.send(cast("tuple[Reply, ...]", replies))
        except StopIteration as end:
            return cast("T", end.value)
        replies = tuple(answer(requests))


def run_phased(plans: Sequence[Plan[T]], answer: Answer) -> list[T | Exception]:
    """All plans side by side: in each phase the requests of all of them are served together.

    Returns:
        What each plan returned, in their order, or the error that it raised.
    """
    results: dict[int, T | Exception] = {}
    replies: dict[int, tuple[Reply, ...] | None] = dict.fromkeys(range(len(plans)))
    while replies:
        waiting: dict[int, tuple[Request, ...]] = {}
        for k, sent in replies.items():
            try:
                waiting[k] = plans[k].send(cast("tuple[Reply, ...]", sent))
            except StopIteration as end:
                results[k] = cast("T", end.value)
            except Exception as error:  # noqa: BLE001 - it ends this plan and no other
                results[k] = error
        try:
            answers = iter(answer([request for requests in waiting.values() for request in requests]))
        except Exception as error:  # noqa: BLE001 - it ends every plan that waits for this phase
            return [results.get(k, error) for k in range(len(plans))]
        replies = {k: tuple(next(answers) for _ in requests) for k, requests in waiting.items()}
    return [results[k] for k in range(len(plans))]
