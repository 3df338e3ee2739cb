"""A server and its clients in virtual time: lanes in a closed loop through a limit, for minutes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from statistics import mean, median
from typing import Any, NamedTuple

from ollama_utils.limits import Limit
from ollama_utils.types import Usage

SERVICE_S = 0.2
"""The mean of a reply."""


class Reply(NamedTuple):
    """When a client had a reply, what the server reported, the client's limit and slots then."""

    at_s: float
    usage: Usage
    limit: int
    slots: int | None


def play(  # noqa: C901 - of the life of a call each step is a function
    slots: int,
    *limits: Limit,
    until_s: float,
    lanes: int = 64,
    travel_s: float = 0.0005,
    sigma: float = 1.0,
    seed: int = 0,
    resized: Mapping[float, int] | None = None,
) -> list[Reply]:
    """The replies that clients get of a server that serves calls in the order of their arrival.

    Args:
        slots: calls that it serves at once.
        limits: one a client, which keeps it.
        until_s: when it ends.
        lanes: of each client; each sends its next call when its last is back, if the limit lets it.
        travel_s: from a client to the server, and as long back.
        sigma: of the log of a service's length, whose mean is SERVICE_S.
        seed: of these lengths.
        resized: how many slots there are, from a moment on.
    """
    draw, numbers = random.Random(seed), count()
    agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
    queue: deque[tuple[Limit, float, float]] = deque()
    server = {"slots": slots, "busy": 0}
    replies: list[Reply] = []

    def at(moment_s: float, action: Callable[..., None], *arguments: Any) -> None:
        heappush(agenda, (moment_s, next(numbers), action, arguments))

    def fill(now_s: float, limit: Limit) -> None:
        while limit.in_flight < min(limit.value, lanes):
            limit.in_flight += 1
            limit.send(now_s)
            at(now_s + travel_s, arrive, limit, now_s)

    def arrive(now_s: float, limit: Limit, sent_s: float) -> None:
        queue.append((limit, sent_s, now_s))
        admit(now_s)

    def admit(now_s: float) -> None:
        while queue and server["busy"] < server["slots"]:
            limit, sent_s, arrived_s = queue.popleft()
            server["busy"] += 1
            service_s = SERVICE_S * draw.lognormvariate(-(sigma**2) / 2, sigma)
            usage = Usage(decode_s=service_s, total_s=now_s + service_s - arrived_s)
            at(now_s + service_s, end, limit, sent_s, usage)

    def end(now_s: float, limit: Limit, sent_s: float, usage: Usage) -> None:
        server["busy"] -= 1
        admit(now_s)
        at(now_s + travel_s, back, limit, sent_s, usage)

    def back(now_s: float, limit: Limit, sent_s: float, usage: Usage) -> None:
        limit.answer(sent_s, now_s, usage)
        limit.in_flight -= 1
        replies.append(Reply(now_s, usage, limit.value, limit.slots))
        fill(now_s, limit)

    def resize(now_s: float, slots: int) -> None:
        server["slots"] = slots
        admit(now_s)

    for limit in limits:
        at(0.0, fill, limit)
    for moment_s, number in (resized or {}).items():
        at(moment_s, resize, number)
    while agenda and agenda[0][0] <= until_s:
        now_s, _, action, arguments = heappop(agenda)
        action(now_s, *arguments)
    return replies


def rate(replies: Sequence[Reply], begin_s: float) -> float:
    """Seconds of service a second, from a moment on."""
    later = [each for each in replies if each.at_s >= begin_s]
    return sum(each.usage.decode_s for each in later) / (later[-1].at_s - begin_s)


def wait(replies: Sequence[Reply], begin_s: float) -> float:
    """The median wait at the server, from a moment on, in mean service times."""
    usages = [each.usage for each in replies if each.at_s >= begin_s]
    return median(usage.queue_s for usage in usages) / mean(usage.decode_s for usage in usages)
