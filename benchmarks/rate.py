"""Whether the rate limit holds: requests that the server counts in a window from the first call on.

    python -m benchmarks.rate
    python -m benchmarks.rate --seconds 30 --per-minute 600 --json rate.json

More calls than the limit allows wait all the time, retries among them. The bucket starts
empty when the first call comes, so that the window holds no burst: rate times seconds is what is allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Call
from records.run_folder import check_writable
from simulator.process import EmbeddedServer
from simulator.settings import Settings

PER_MINUTE = 600.0
SECONDS = 30.0
FAULTS: Mapping[str, Sequence[dict[str, Any]]] = {
    "none": (),
    "bursts of 503": ({"kind": "busy_503", "rate": 0.15, "burst": 3},),
}
"""What the server does to the calls, by name; a burst strikes the attempts of a call in a row."""

_SETTINGS = Settings(slots=64, reply_tokens="lognormal:mean=64,sigma=1.0")
_THREADS = 64
_ATTEMPTS = 30


def rows(*, seconds: float = SECONDS, per_minute: float = PER_MINUTE) -> list[dict[str, Any]]:
    """One row for each kind of faults: `requests` that the server counted beside those `allowed`.

    `share` is the one by the other, `retries` and `struck` say how many of the requests repeated one that
    had failed and how many met a fault, `lost` how many calls came back without a reply.
    """
    return [_row(name, faults, seconds, per_minute) for name, faults in FAULTS.items()]


def main(argv: Sequence[str] | None = None) -> int:
    """Print what the server counted; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rate", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the window")
    parser.add_argument("--per-minute", type=float, default=PER_MINUTE, help="the limit")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    given = parser.parse_args(argv)
    check_writable(given.json)
    found = rows(seconds=given.seconds, per_minute=given.per_minute)
    print(f"{'faults':<16}{'seconds':>9}{'allowed':>9}{'requests':>10}{'share':>8}{'retries':>9}{'lost':>6}")
    for row in found:
        counts = f"{row['allowed']:>9.1f}{row['requests']:>10}{row['share']:>8.4f}"
        print(f"{row['faults']:<16}{row['seconds']:>9.2f}{counts}{row['retries']:>9}{row['lost']:>6}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def _row(name: str, faults: Sequence[dict[str, Any]], seconds: float, per_minute: float) -> dict[str, Any]:
    """What came of one window."""
    over = threading.Event()
    with EmbeddedServer(_SETTINGS) as server:
        server.set_faults(faults)
        began_s = time.monotonic()
        with (
            Dispatcher([server.host], attempts=_ATTEMPTS, rate_limit_per_minute=per_minute) as dispatcher,
            ThreadPoolExecutor(_THREADS) as threads,
        ):
            lost = [threads.submit(_ask_on, dispatcher, k, over) for k in range(_THREADS)]
            time.sleep(max(0.0, began_s + seconds - time.monotonic()))
            stats = server.stats()
            window_s = time.monotonic() - began_s
            over.set()
            dispatcher.cancel()
            accounts = dispatcher.accounts()
            lost_calls = sum(each.result() for each in lost)
    allowed = window_s * per_minute / 60
    return {
        "faults": name,
        "seconds": window_s,
        "per_minute": per_minute,
        "allowed": allowed,
        "requests": stats["calls"],
        "share": stats["calls"] / allowed,
        "retries": sum(account.retries for account in accounts.values()),
        "struck": sum(stats["faults"].values()),
        "lost": lost_calls,
    }


def _ask_on(dispatcher: Dispatcher, lane: int, over: threading.Event) -> int:
    """Ask one thing after another; how many calls came back without a reply, before all were stopped."""
    lost = number = 0
    while not over.is_set():
        number += 1
        call = Call(model="sim-target", prompt=f"{lane} {number}", options={"temperature": 0})
        error = dispatcher.generate(call).error
        lost += error is not None and not isinstance(error, CallCancelledError)
    return lost


if __name__ == "__main__":
    sys.exit(main())
