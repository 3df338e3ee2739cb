"""What a call costs: calls a second and CPU time, by client and calls in flight.

    python -m benchmarks.calls
    python -m benchmarks.calls --json calls.json

The server is the simulator on this machine, whose every reply takes 50 ms, so that N calls in flight can be
no more than 20 N calls a second. It takes CPU time too, which is not counted here but bounds the calls a
second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ollama_utils.client import OllamaClient
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.official import ollama
from ollama_utils.parallel import ParallelError, map_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call, Completion
from records.run_folder import check_writable
from simulator.process import EmbeddedServer
from simulator.settings import Settings

Client = Callable[[Call], object]

IN_FLIGHT = (1, 16, 64, 256)
RUNS = 3
REPLY_S = 0.05
"""What a reply takes: the simulator's 48 ms for 12 tokens, stretched."""
ROUNDS = 16
"""Replies that a measurement waits for, one after another: so many times the calls in flight are made ..."""
MOST_CALLS = 1024
"""... but no more than this."""

_PATIENCE_S = 5.0  # as it comes, the official client waits for ever for a reply that is lost
_MODEL = "sim-target"
_SETTINGS = Settings(slots=max(IN_FLIGHT), profile="ideal", reply_tokens="12", time_scale=50 / 48)


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """What calls cost in one run."""

    calls_per_s: float
    cpu_s_per_1000_calls: float
    failed: int


def rows(*, in_flight: Sequence[int] = IN_FLIGHT, runs: int = RUNS) -> list[dict[str, Any]]:
    """One row for each client and number of calls in flight: medians over the runs, which take turns.

    `calls_per_s` beside the `most_calls_per_s` that the server's time allows, `cpu_s_per_1000_calls` of this
    process, and in `failed` how many calls of all runs had no reply (httpx's pool may close a connection that
    it has just lent).
    """
    measured: dict[tuple[str, int], list[_Figures]] = {}
    numbers = itertools.count()
    with EmbeddedServer(_SETTINGS) as server, _clients(server.host) as clients:
        for _ in range(runs):
            for at_once, (name, client) in itertools.product(in_flight, clients.items()):
                _measure(client, numbers, at_once, at_once)  # connections and threads are there afterwards
                figures = _measure(client, numbers, at_once, min(ROUNDS * at_once, MOST_CALLS))
                measured.setdefault((name, at_once), []).append(figures)
    return [_row(name, at_once, figures) for (name, at_once), figures in measured.items()]


def main(argv: Sequence[str] | None = None) -> int:
    """Print what calls cost; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, help="a file for the rows")
    given = parser.parse_args(argv)
    check_writable(given.json)
    found = rows()
    print(f"{'client':<44}{'in flight':>10}{'calls/s':>9}{'at most':>9}{'CPU s per 1,000':>17}{'failed':>8}")
    for row in found:
        rates = f"{row['calls_per_s']:>9.0f}{row['most_calls_per_s']:>9.0f}"
        spent = f"{row['cpu_s_per_1000_calls']:>17.2f}{row['failed']:>8}"
        print(f"{row['client']:<44}{row['in_flight']:>10}{rates}{spent}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


@contextmanager
def _clients(host: str) -> Iterator[Mapping[str, Client]]:
    """What is compared, by name; each is shared by all threads."""
    most = max(IN_FLIGHT)
    with ExitStack() as stack:
        official = stack.enter_context(ollama.Client(host=host, timeout=_PATIENCE_S))
        ours = stack.enter_context(closing(OllamaClient(host)))
        plain = stack.enter_context(Dispatcher([host], max_in_flight=most))
        logged = stack.enter_context(Dispatcher([host], max_in_flight=most))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logged.keep_in(stack.enter_context(ReplyLog(folder / "replies.sqlite", digests={})))
        yield {
            "ollama.Client as it comes": lambda call: official.generate(
                model=call.model, prompt=call.prompt, options=call.options
            ),
            "OllamaClient": ours.generate,
            "OllamaClient through a Dispatcher": plain.generate,
            "OllamaClient through a Dispatcher with a log": logged.generate,
        }


def _measure(client: Client, numbers: Iterator[int], at_once: int, calls: int) -> _Figures:
    """What so many calls cost; no two calls are equal, so each one goes out."""
    options = {"temperature": 0, "seed": 1}
    prompts = [f"How do I boil {next(numbers)} eggs?" for _ in range(calls)]
    asked = [Call(model=_MODEL, prompt=prompt, options=options) for prompt in prompts]
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    try:
        replies, failures = map_parallel(client, asked, at_once), {}
    except ParallelError as error:
        replies, failures = error.results, error.failures
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    failed = len(failures) + sum(isinstance(reply, Completion) and bool(reply.error) for reply in replies)
    return _Figures(calls_per_s=calls / wall_s, cpu_s_per_1000_calls=1000 * cpu_s / calls, failed=failed)


def _row(name: str, at_once: int, figures: Sequence[_Figures]) -> dict[str, Any]:
    return {
        "client": name,
        "in_flight": at_once,
        "calls_per_s": round(statistics.median(each.calls_per_s for each in figures), 1),
        "most_calls_per_s": round(at_once / REPLY_S, 1),
        "cpu_s_per_1000_calls": round(statistics.median(each.cpu_s_per_1000_calls for each in figures), 3),
        "failed": sum(each.failed for each in figures),
    }


if __name__ == "__main__":
    sys.exit(main())
