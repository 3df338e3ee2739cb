"""Whether the rate limit holds: requests that the server counts in a window from the first call on.

python -m benchmarks.rate

More calls than the limit allows wait all the time, retries among them. The bucket starts empty when the first
call comes, so that the window holds no burst: rate times seconds is what is allowed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from benchmarks.reporting import Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings

PER_MINUTE = 600.0
FAULTS: Mapping[str, Sequence[dict[str, Any]]] = {
    "none": (),
    "bursts of 503": ({"kind": "status", "status": 503, "rate": 0.15, "first": 3},),
}
"""What the server does to the calls, by name; a burst strikes the first attempts of a call in a row."""

_SETTINGS = Settings(slots=64, reply_tokens="lognormal:mean=64,sigma=1.0")
_THREADS = 64
_ATTEMPTS = 30


def sections(*, quick: bool) -> Iterator[Section]:
    """The rate limit, from the first call on."""
    seconds = 3.0 if quick else 30.0
    rows = [measure(name, seconds, PER_MINUTE) for name in FAULTS]
    shares = [
        (f"requests, faults {row['faults']}, of what is allowed", row["of what is allowed"])
        for row in rows
    ]
    yield Section(
        title=f"Rate limit: {PER_MINUTE:.0f} requests a minute",
        about=(
            f"Requests that the server counted in {seconds:g} s from the first call on, beside those that "
            f"the limit allows. {_THREADS} threads ask all the time; a repeated attempt is a request like "
            "any other."
        ),
        rows=rows,
        checks=[
            *(at_least(what, 0.98, share) for what, share in shares),
            *(at_most(what, 1.02, share) for what, share in shares),
            at_most("calls lost", 0, sum(row["calls lost"] for row in rows)),
        ],
    )


def measure(
    faults: str, seconds: float, per_minute: float, time_scale: float = 1.0
) -> dict[str, Any]:
    """One row: the requests that the server counted, and the calls that came back without a reply."""
    over = threading.Event()
    with EmbeddedServer(replace(_SETTINGS, time_scale=time_scale)) as server:
        server.set_faults(FAULTS[faults])
        began_s = time.monotonic()
        with (
            Dispatcher(
                [server.host], attempts=_ATTEMPTS, rate_limit_per_minute=per_minute
            ) as dispatcher,
            ThreadPoolExecutor(_THREADS) as threads,
        ):
            lost = [threads.submit(_keep_asking, dispatcher, k, over) for k in range(_THREADS)]
            time.sleep(max(0.0, began_s + seconds - time.monotonic()))
            stats = server.stats()
            window_s = time.monotonic() - began_s
            over.set()
            dispatcher.cancel()
            accounts = dispatcher.accounts()
            lost_calls = sum(each.result() for each in lost)
    allowed = window_s * per_minute / 60
    return {
        "faults": faults,
        "seconds": window_s,
        "allowed": allowed,
        "requests": stats["calls"],
        "of what is allowed": stats["calls"] / allowed,
        "of them repeated": sum(account.retries for account in accounts.values()),
        "calls lost": lost_calls,
    }


def _keep_asking(dispatcher: Dispatcher, lane: int, over: threading.Event) -> int:
    """Ask one thing after another; returns how many calls had no reply before all were stopped."""
    lost = number = 0
    while not over.is_set():
        number += 1
        call = Call(model="sim-target", prompt=f"{lane} {number}", options={"temperature": 0})
        error = dispatcher.generate(call).error
        lost += error is not None and not isinstance(error, CallCancelledError)
    return lost


if __name__ == "__main__":
    sys.exit(run("rate", "search.md"))
