"""What a call costs: calls a second and CPU time, by client and calls in flight.

python -m benchmarks.calls

The server is the simulator on this machine, whose every reply takes 50 ms, so that N calls in flight can be
no more than 20 N calls a second. It takes CPU time too, which is not counted here but bounds the calls a
second.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import ollama

from benchmarks.reporting import Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.ollama import OllamaClient
from ollama_utils.parallel import ParallelError, map_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call, Completion
from simulator.process import EmbeddedServer
from simulator.settings import Settings

Client = Callable[[Call], object]

IN_FLIGHT = (1, 16, 64, 256)
REPLY_S = 0.05
"""What a reply takes: the simulator's 48 ms for 12 tokens, stretched."""
ROUNDS = 16
"""Replies that a measurement waits for, one after another: so many times the calls in flight are made ..."""
MOST_CALLS = 1024
"""... but no more than this."""
CHOICE = """\
Calls are written and read by the official `ollama.Client`, on threads, and sent by `http.client`. Most of
what the client costs as it comes is httpx's transport (httpcore's pool and h11), then httpx's client, which
joins URL, headers and cookies anew for each request; the package's own types cost next to nothing. An async
engine would have to hand every call over to it and back, for every lane, search and judge is a plain thread.
Nothing is built per call: threads and the TLS context are shared, and as many connections stay open as there
were calls at once."""

_PATIENCE_S = 5.0  # as it comes, the official client waits for ever for a reply that is lost
_MODEL = "sim-target"
_SETTINGS = Settings(slots=max(IN_FLIGHT), reply_tokens="12", time_scale=50 / 48)


class _Figures(NamedTuple):
    """What calls cost in one run."""

    calls_per_s: float
    cpu_s_per_1000_calls: float
    failed: int


def sections(*, quick: bool) -> Iterator[Section]:
    """What a call costs."""
    runs = 1 if quick else 3
    rows = measure(runs=runs)
    (through_dispatcher,) = (
        row
        for row in rows
        if (row["client"], row["in flight"]) == ("OllamaClient through a Dispatcher", 64)
    )
    yield Section(
        title="What a call costs",
        about=(
            f"Replies take {REPLY_S * 1000:.0f} ms. Medians of {runs} runs; the simulator's own CPU time is "
            f"not counted, but has to come from the same machine.\n\n{CHOICE}"
        ),
        rows=rows,
        checks=[
            at_least(
                "calls/s through a Dispatcher, 64 in flight", 900, through_dispatcher["calls/s"]
            ),
            at_most("CPU s per 1,000 of them", 0.8, through_dispatcher["CPU s per 1,000"]),
        ],
    )


def measure(*, in_flight: Sequence[int] = IN_FLIGHT, runs: int) -> list[dict[str, Any]]:
    """One row for each client and number of calls in flight: medians over the runs, which take turns.

    Calls a second beside the most that the server's time allows, CPU seconds of this process per 1,000 calls,
    and in `failed` how many calls of all runs had no reply (httpx's pool may close a connection that it has
    just lent).
    """
    measured: dict[tuple[str, int], list[_Figures]] = {}
    numbers = itertools.count()
    with EmbeddedServer(_SETTINGS) as server, _clients(server.host) as clients:
        for _ in range(runs):
            for at_once, (name, client) in itertools.product(in_flight, clients.items()):
                _make_calls(
                    client, numbers, at_once, at_once
                )  # connections and threads are there afterwards
                figures = _make_calls(client, numbers, at_once, min(ROUNDS * at_once, MOST_CALLS))
                measured.setdefault((name, at_once), []).append(figures)
    return [_row(name, at_once, figures) for (name, at_once), figures in measured.items()]


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


def _make_calls(client: Client, numbers: Iterator[int], at_once: int, count: int) -> _Figures:
    """What so many calls cost; no two calls are equal, so each one goes out."""
    options = {"temperature": 0, "seed": 1}
    prompts = [f"How do I boil {next(numbers)} eggs?" for _ in range(count)]
    calls = [Call(model=_MODEL, prompt=prompt, options=options) for prompt in prompts]
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    try:
        replies, failures = map_parallel(client, calls, at_once), {}
    except ParallelError as error:
        replies, failures = error.results, error.failures
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    failed = len(failures) + sum(
        isinstance(reply, Completion) and bool(reply.error) for reply in replies
    )
    return _Figures(
        calls_per_s=count / wall_s, cpu_s_per_1000_calls=1000 * cpu_s / count, failed=failed
    )


def _row(name: str, at_once: int, figures: Sequence[_Figures]) -> dict[str, Any]:
    return {
        "client": name,
        "in flight": at_once,
        "calls/s": round(median(each.calls_per_s for each in figures), 1),
        "at most": round(at_once / REPLY_S, 1),
        "CPU s per 1,000": round(median(each.cpu_s_per_1000_calls for each in figures), 3),
        "failed": sum(each.failed for each in figures),
    }


if __name__ == "__main__":
    sys.exit(run("calls", "performance.md"))
