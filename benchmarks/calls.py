"""What a call costs by client and calls in flight, and how good the limit is that `auto` finds."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from typing import Any

import httpx
import ollama

from benchmarks.results import LOGNORMAL, Check, Table, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.ollama import OllamaClient
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings

ABOUT = """\
Simulated: the server is the embedded simulator on the same machine. The first table counts the CPU
time of this process for calls whose replies take 50 ms, unstreamed, each on a thread, with so many
in flight; the server's own CPU time is not counted. No two calls are equal, so each goes out.

The second table is about servers whose number of slots is not known. More threads ask than any
limit admits; replies take 200 ms on average (lognormal, sigma 1). `auto` finds the number of slots
from the replies: it counts the calls in service in the middle of another call's wait. *Busy slots*,
which is throughput, and *most in flight* are the server's figures: what is in flight beyond its
slots waits there, and nobody else is served."""
IN_FLIGHT = (1, 16, 128)
MOST_CALLS = 1024
SLOTS = (2, 8, 32)
MODEL = "sim-target"
OPTIONS = {"temperature": 0, "seed": 1}
Ask = Callable[[str], object]
"""Asks one prompt; raises where there is no reply."""
numbers = itertools.count()


def measure(*, quick: bool) -> Iterator[Table | Check]:
    """Both tables."""
    yield from time_clients(runs=1 if quick else 3, rounds=2 if quick else 16)
    yield from time_limits(*((1.0, 0.5) if quick else (8.0, 3.0)))


def time_clients(runs: int, rounds: int) -> Iterator[Table | Check]:
    """CPU time of a call; the clients take turns."""
    cpu_ms: dict[tuple[str, int], list[float]] = {}
    settings = Settings(slots=max(IN_FLIGHT), reply_tokens="12")
    with EmbeddedServer(settings) as server, clients(server.host) as asks:
        for _, at_once, (name, ask) in itertools.product(range(runs), IN_FLIGHT, asks.items()):
            spend_ms(ask, at_once, at_once)  # opens connections and threads
            spent = spend_ms(ask, at_once, min(rounds * at_once, MOST_CALLS))
            cpu_ms.setdefault((name, at_once), []).append(spent)
    found = {key: median(each) for key, each in cpu_ms.items()}
    yield Table(
        title="CPU time of a call",
        about=f"CPU milliseconds a call, medians of {runs} runs.",
        rows=[
            {"client": name} | {f"{n} in flight": found[name, n] for n in IN_FLIGHT}
            for name in asks
        ],
    )
    for at_once in IN_FLIGHT[1:]:
        ours, official = found["Dispatcher", at_once], found["ollama.Client", at_once]
        yield at_most(f"CPU of the Dispatcher over ollama.Client, {at_once}", 1.0, ours / official)


@contextmanager
def clients(host: str) -> Iterator[Mapping[str, Ask]]:
    """What is compared, by name; each is shared by all threads."""
    with ExitStack() as stack:
        plain = stack.enter_context(httpx.Client(base_url=host, timeout=60))
        official = stack.enter_context(ollama.Client(host=host, timeout=60))
        ours = stack.enter_context(closing(OllamaClient(host)))
        dispatcher = stack.enter_context(Dispatcher([host], max_in_flight=max(IN_FLIGHT)))

        def post(prompt: str) -> Any:  # noqa: ANN401 - the reply's JSON
            body = {"model": MODEL, "prompt": prompt, "options": OPTIONS, "stream": False}
            return plain.post("/api/generate", json=body).raise_for_status().json()

        def dispatch(prompt: str) -> None:
            if error := dispatcher.generate(as_call(prompt)).error:
                raise error

        yield {
            "httpx.Client": post,
            "ollama.Client": lambda prompt: official.generate(MODEL, prompt, options=OPTIONS),
            "our client": lambda prompt: ours.generate(as_call(prompt)),
            "Dispatcher": dispatch,
        }


def as_call(prompt: str) -> Call:
    """A prompt as our clients take it."""
    return Call(model=MODEL, prompt=prompt, options=OPTIONS)


def spend_ms(ask: Ask, at_once: int, count: int) -> float:
    """CPU milliseconds a call."""
    prompts = [f"How do I boil {next(numbers)} eggs?" for _ in range(count)]

    def ask_surely(prompt: str) -> object:
        try:
            return ask(prompt)
        except httpx.TransportError:  # httpcore's pool loses a reply in some thousands
            return ask(prompt)

    with ThreadPoolExecutor(at_once) as pool:
        began_s = time.process_time()
        list(pool.map(ask_surely, prompts))
        return 1000 * (time.process_time() - began_s) / count


def time_limits(seconds: float, warm_up_s: float) -> Iterator[Table | Check]:
    """The limit that `auto` finds beside fixed ones."""
    rows = []
    for slots in SLOTS:
        limits = (max(1, slots // 2), slots, 2 * slots, None)
        with EmbeddedServer(Settings(slots=slots, reply_tokens=LOGNORMAL)) as server:
            stats = [load(server, limit, seconds, warm_up_s) for limit in limits]
        busy = [each["busy_slot_s"] / each["window_s"] for each in stats]
        rows += [
            {
                "slots": slots,
                "limit": limit or "auto",
                "busy slots": slots_busy,
                "of the best fixed limit": slots_busy / max(busy[:-1]),
                "most in flight": each["max_in_flight"],
            }
            for limit, slots_busy, each in zip(limits, busy, stats, strict=True)
        ]
    yield Table(
        title="The limit on calls in flight",
        about=f"{seconds:g} s a row, after {warm_up_s:g} s to settle.",
        rows=rows,
    )
    for row in rows:
        if row["limit"] == "auto":
            what = f"auto on {row['slots']} slots, of the best fixed limit"
            yield at_least(what, 0.95, row["of the best fixed limit"])


def load(
    server: EmbeddedServer, limit: int | None, seconds: float, warm_up_s: float
) -> dict[str, Any]:
    """What the server counts under more threads than the limit admits."""
    over, threads = threading.Event(), 2 * server.settings.slots + 8

    def keep_asking() -> None:
        while not over.is_set():
            dispatcher.generate(as_call(f"question {next(numbers)}"))

    with (
        Dispatcher([server.host], max_in_flight=limit, report=lambda _line: None) as dispatcher,
        ThreadPoolExecutor(threads) as pool,
    ):
        for _ in range(threads):
            pool.submit(keep_asking)
        time.sleep(warm_up_s)
        server.reset_stats()
        time.sleep(seconds)
        stats = server.stats()
        over.set()
        dispatcher.cancel()  # calls that wait for their turn are not needed
    return stats


if __name__ == "__main__":
    sys.exit(run("calls", ABOUT, measure))
