"""How busy searches keep a server: candidates, a critic's batches, an evolving population, a selection.

python -m benchmarks.search_speed

All counts are the server's own (`GET /simulator/stats`). A window that leaves the last calls aside ends when
the last call goes out: from then on there is nothing to put into a slot that falls free.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from benchmarks.commands import LOGNORMAL
from benchmarks.reporting import Check, Section, at_least, at_most, run
from benchmarks.selection import AS_THEY_ARE, CHOICES, DELTA, WORLDS, Contestant
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call, Completion
from scorers.critic import LLMCritic
from search import (
    AsyncEvaluationPipeline,
    AsyncEvolutionConfig,
    AsyncEvolutionController,
    PerformanceBenchmark,
    generate_candidates,
    generate_candidates_parallel,
    make_selector,
    score_batch_parallel,
)
from search.call_pool import CallPool
from search.evolution import Generation, Genome
from search.selectors.combination import Combination
from search.selectors.task_evaluation import TaskEvaluation
from search.task import Task, bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODEL, JUDGE = "sim-solver", "sim-judge"
POPULATION, PANEL, CAP = 30, 50, 10
"""Genomes, problems and calls in flight of the evolutions."""
SIZES_TIME_SCALE = 0.2
"""Of the largest populations: one call at a time they would take a quarter of an hour."""
CLAIMED = (4.3, 5.0)
"""How many times faster the first system's document says 50 x 100 and 100 x 100 are."""
WORKERS = (1, 4, 8, 16)
"""Scores that a critic is asked for at once."""
_LOOK_EVERY = 25
"""Calls between two looks at the server's counts."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How thoroughly is measured."""

    runs: int = 3
    """Of each case whose median is shown."""
    time_scale: float = 1.0
    sizes: Sequence[tuple[int, int]] = ((50, 100), (100, 100))
    """Genomes and problems of the largest populations."""
    batches: Sequence[int] = (16, 64, 256)
    """Replies that a critic scores."""


def sections(*, quick: bool) -> Iterator[Section]:
    """All tables, in the order of the document."""
    small = Scale(runs=1, time_scale=0.05, sizes=((5, 10), (10, 10)), batches=(16, 32))
    scale = small if quick else Scale()
    yield time_candidates(scale)
    yield time_critic(scale)
    yield time_equal_replies(scale)
    yield time_population(scale)
    yield time_sizes(scale)
    yield time_generations(scale)
    yield time_selection(scale)
    yield time_selectors(scale)


@contextmanager
def serving(
    scale: Scale, slots: int, reply_tokens: str, seed: int = 0
) -> Iterator[tuple[EmbeddedServer, Dispatcher]]:
    """A simulator, and a dispatcher that knows its slots, with its connections open."""
    settings = Settings(slots=slots, reply_tokens=reply_tokens, time_scale=scale.time_scale, seed=seed)
    with (
        EmbeddedServer(settings) as server,
        Dispatcher([server.host], max_in_flight=slots, memory_bytes=0) as dispatcher,
    ):
        generate_candidates_parallel(
            dispatcher, "Warm up.", [str(k) for k in range(slots)], max_tokens=1, model=MODEL
        )
        yield server, dispatcher


class BusySlots:
    """The share of slots that were busy, in windows that leave the last calls aside.

    Args:
        server: where the calls go.
        slots: how many there are, and calls at once.
    """

    def __init__(self, server: EmbeddedServer, slots: int) -> None:
        self._server, self._slots = server, slots
        self._lock = threading.Lock()
        self._ended = 0
        self._looks: list[tuple[int, dict[str, Any]]] = []
        self._open_window()

    def tick(self) -> None:
        """A call ended."""
        with self._lock:
            self._ended += 1
            ended = self._ended
        if ended % _LOOK_EVERY == 0:
            self._looks.append((ended, self._server.stats()))

    def end_window(self) -> tuple[int, float | None]:
        """How many calls ended since the last window, and the share up to when the last of them went out.

        From then on nothing waits for a slot. The share is None where there were too few calls to say.
        """
        calls = self._ended - self._begun_at
        before_the_last = [look for look in self._looks if look[0] <= self._ended - self._slots]
        share = None
        if before_the_last and calls > 2 * self._slots:
            _, stats = max(before_the_last, key=lambda look: look[0])
            busy_s = stats["busy_slot_s"] - self._begun["busy_slot_s"]
            share = busy_s / (stats["window_s"] - self._begun["window_s"]) / self._slots
        self._open_window()
        return calls, share

    def _open_window(self) -> None:
        self._begun, self._begun_at = self._server.stats(), self._ended
        self._looks.clear()


class WatchedCalls:
    """Calls through a dispatcher that are seen as they end.

    Args:
        dispatcher: sends them.
        tick: is called as each ends.
    """

    def __init__(self, dispatcher: Dispatcher, tick: Callable[[], None] = lambda: None) -> None:
        self.served_s: list[float] = []
        """Seconds in a slot of each call."""
        self._dispatcher, self._tick = dispatcher, tick

    def generate(self, call: Call) -> Completion:
        """The reply to one call."""
        completion = self._dispatcher.generate(call)
        self._tick()
        if completion.usage is not None:
            self.served_s.append(completion.usage.prefill_s + completion.usage.decode_s)
        return completion


def time_candidates(scale: Scale) -> Section:
    """K candidates, one after another and all at once."""
    cases = (("250", "all equal, 1 s"), ("lognormal:mean=250,sigma=1.0", "lognormal, mean 1 s"))
    rows = [_candidates(scale, tokens, shown) for tokens, shown in cases]
    return Section(
        title="Candidates: K = 16 replies to one query",
        about=(
            "`generate_candidates` and `generate_candidates_parallel` for the same 16 system prompts on 16 "
            "slots. *Bound*: the seconds in a slot of all 16 over those of the longest, which no order can "
            f"beat. Medians of {scale.runs} runs."
        ),
        rows=rows,
        checks=[
            at_least("K = 16 at once, equal replies, times faster", 15, rows[0]["times faster"]),
            at_least("K = 16 at once, lognormal, of the bound", 0.95, rows[1]["of the bound"]),
        ],
    )


def _candidates(scale: Scale, tokens: str, shown: str) -> dict[str, Any]:
    prompts = [f"Answer in the manner of guide {k}." for k in range(16)]
    runs = []
    for seed in range(scale.runs):
        with serving(scale, len(prompts), tokens, seed=seed) as (_, dispatcher):
            watched = WatchedCalls(dispatcher)
            began_s = time.perf_counter()
            alone = generate_candidates(watched, "What is 17 times 6?", prompts, model=MODEL)
            between_s = time.perf_counter()
            together = generate_candidates_parallel(dispatcher, "What is 17 times 6?", prompts, model=MODEL)
            ended_s = time.perf_counter()
        sequential_s, parallel_s = between_s - began_s, ended_s - between_s
        runs.append(
            {
                "one after another, s": sequential_s,
                "at once, s": parallel_s,
                "times faster": sequential_s / parallel_s,
                "bound": sum(watched.served_s) / max(watched.served_s),
                "of the bound": max(watched.served_s) / parallel_s,
                "same replies": alone == together,
            }
        )
    medians = {heading: median(each[heading] for each in runs) for heading in runs[0]}
    return {"replies": shown, **medians, "same replies": all(each["same replies"] for each in runs)}


def time_critic(scale: Scale) -> Section:
    """A critic's batches, one score after another and several at once."""
    rows = [row for batch in scale.batches for row in _critic(scale, batch)]
    largest = {row["max_workers"]: row for row in rows if row["batch"] == max(scale.batches)}
    return Section(
        title="Critic: batches of replies to score",
        about=(
            "`score_batch_parallel(critic.score, items, max_workers)` with an `LLMCritic`, "
            f"{max(WORKERS)} slots, replies of 25 tokens (0.1 s) each. *Times faster*: than one score after "
            "another, which is measured, too; *of the most*: that over `max_workers`. Medians of "
            f"{scale.runs} runs."
        ),
        rows=rows,
        checks=[
            *(
                at_least(f"largest batch, {workers} at once, of the most", 0.93, each["of the most"])
                for workers, each in largest.items()
                if workers > 1
            ),
            at_most("batches with other scores", 0, sum(not row["same scores"] for row in rows)),
        ],
    )


def _critic(scale: Scale, batch: int) -> list[dict[str, Any]]:
    """A row for each number of workers."""
    problems = bundled_task().problems
    items = [
        (f"Answer in the manner of guide {k}.", problems[k % len(problems)].question, f"Answer: {k}")
        for k in range(batch)
    ]
    runs = []
    for seed in range(scale.runs):
        with serving(scale, max(WORKERS), "25", seed=seed) as (_, dispatcher):
            LLMCritic(dispatcher, JUDGE).score("Answer.", "What is 2 + 2?", "Answer: 4")
            runs.append([_scored(dispatcher, items, workers) for workers in WORKERS])
    alone = median(run[0][0] for run in runs)
    rows = []
    for place, workers in enumerate(WORKERS):
        seconds = median(run[place][0] for run in runs)
        rows.append(
            {
                "batch": batch,
                "max_workers": workers,
                "seconds": seconds,
                "scores/s": batch / seconds,
                "times faster": alone / seconds,
                "of the most": alone / seconds / workers,
                "same scores": all(run[place][1] == run[0][1] for run in runs),
            }
        )
    return rows


def _scored(
    dispatcher: Dispatcher, items: Sequence[tuple[str, str, str]], workers: int
) -> tuple[float, list[float]]:
    """The seconds that the scores took, and the scores."""
    critic = LLMCritic(dispatcher, JUDGE)
    began_s = time.perf_counter()
    scores = score_batch_parallel(critic.score, items, max_workers=workers)
    return time.perf_counter() - began_s, scores


def time_equal_replies(scale: Scale) -> Section:
    """A population on a panel whose replies all take as long: what is lost is lost between the calls."""
    title = f"Evolution: {POPULATION} genomes on {PANEL} problems, equal replies"
    return _population_section(replace(scale, runs=1), title, "25", "of 25 tokens (0.1 s) each")


def time_population(scale: Scale) -> Section:
    """The same with replies of which some take long, and may be the last."""
    tokens = "lognormal:mean=25,sigma=1.0"
    title = f"Evolution: {POPULATION} genomes on {PANEL} problems"
    section = _population_section(scale, title, tokens, f"of `{tokens}` tokens (0.1 s on the mean)")
    busy = median(row["slots busy"] for row in section.rows if row["max_concurrent_requests"] != 1)
    return replace(section, checks=[*section.checks, at_least("slots busy, median", 0.93, busy)])


def _population_section(scale: Scale, title: str, tokens: str, shown: str) -> Section:
    """A population on a panel, one call at a time and ten at once."""
    genomes = [Genome(f"Answer the question in the manner of guide {k}.") for k in range(POPULATION)]
    everyday = bundled_task()
    task = Task(name=everyday.name, problems=everyday.problems[:PANEL], scorer=everyday.scorer)
    fast, slow = (
        [_population(scale, genomes, task, tokens, cap, seed) for seed in range(scale.runs)]
        for cap in (CAP, 1)
    )
    for together, alone in zip(fast, slow, strict=True):
        together["times faster"] = alone["seconds"] / together["seconds"]
    faster = median(row["times faster"] for row in fast)
    return Section(
        title=title,
        about=(
            f"`AsyncEvaluationPipeline` on {CAP} slots, replies {shown}, early stopping off, so that all "
            f"{POPULATION * PANEL:,} calls are made; `max_concurrent_requests={CAP}`, and the same with one "
            "call at a time. *Slots busy* leaves the last calls aside; *seconds* do not, and how long the "
            "last replies are depends on the seed."
        ),
        rows=[*fast, *slow],
        checks=[
            at_least("times faster than one at a time, median", 9.5, faster),
            at_least("most in flight", CAP, min(row["most in flight"] for row in fast)),
            at_most("most in flight", CAP, max(row["most in flight"] for row in fast)),
        ],
    )


def _population(
    scale: Scale, genomes: Sequence[Genome], task: Task, tokens: str, cap: int, seed: int
) -> dict[str, Any]:
    with serving(scale, CAP, tokens, seed=seed) as (server, dispatcher):
        server.reset_stats()
        busy = BusySlots(server, cap)
        config = AsyncEvolutionConfig(
            max_concurrent_requests=cap,
            population_size=len(genomes),
            early_stop_level=None,
            rate_limit_per_minute=None,
        )
        pool = CallPool(dispatcher, cap)
        pipeline = AsyncEvaluationPipeline(pool, task, model=MODEL, config=config, tick=busy.tick)
        began_s = time.perf_counter()
        pipeline.evaluate(genomes)
        wall_s = time.perf_counter() - began_s
        (calls, share), most = busy.end_window(), server.stats()["max_in_flight"]
    return {
        "max_concurrent_requests": cap,
        "seed": seed,
        "calls": calls,
        "seconds": wall_s,
        "calls/s": calls / wall_s,
        "times faster": 1.0,  # than one call at a time: known when both were timed
        "most in flight": most,
        "slots busy": share,
    }


def time_sizes(scale: Scale) -> Section:
    """The first generations of large populations, one call at a time and ten at once, both measured."""
    rows = [asyncio.run(_size(scale, *size)) for size in scale.sizes]
    return Section(
        title="Evolution: the first generation of large populations",
        about=(
            "`PerformanceBenchmark`: the prompts of the first population are reworded by model and scored on "
            f"all problems, with one call at a time and with {CAP}, each on a fresh server of {CAP} slots; a "
            "rewording that is nothing new is not scored. "
            f"Replies of 25 tokens, {100 * SIZES_TIME_SCALE:.0f} ms each: a fifth of the time of the other "
            "sections, so what the client does between the calls weighs five times as much. The targets are "
            "the times that the first system's document claims."
        ),
        rows=rows,
        checks=[
            *(
                at_least(f"times faster, {row['genomes']} x {row['problems']}", claimed, row["times faster"])
                for row, claimed in zip(rows, CLAIMED, strict=True)
            ),
            at_most("sizes with another result", 0, sum(not row["same result"] for row in rows)),
        ],
    )


async def _size(scale: Scale, genomes: int, problems: int) -> dict[str, Any]:
    benchmark = PerformanceBenchmark(
        {
            "population_size": genomes,
            "num_problems": problems,
            "reply_tokens": "25",
            "max_concurrent_requests": CAP,
            "rate_limit_per_minute": None,
            "time_scale": scale.time_scale * SIZES_TIME_SCALE,
        }
    )
    found = await benchmark.run_comprehensive_benchmark()
    alone, together = found["sequential"], found["async"]
    return {
        "genomes": genomes,
        "problems": problems,
        "calls": together["calls"],
        "one at a time, s": alone["time_s"],
        "at once, s": together["time_s"],
        "calls/s, one at a time": alone["calls_per_s"],
        "calls/s, at once": together["calls_per_s"],
        "times faster": found["speedup"],
        "most in flight": together["max_in_flight"],
        "slots busy": together["utilisation"],
        "same result": found["same_result"],
    }


def time_generations(scale: Scale) -> Section:
    """A whole evolution, rewordings by model and early stopping included."""
    with serving(scale, CAP, LOGNORMAL) as (server, dispatcher):
        config = AsyncEvolutionConfig(
            population_size=POPULATION,
            max_generations=4,
            panel_size=PANEL,
            max_concurrent_requests=CAP,
            rate_limit_per_minute=None,
        )
        server.reset_stats()
        busy = BusySlots(server, CAP)
        rows = []

        def end_generation(record: Generation) -> None:
            calls, share = busy.end_window()
            if share is not None:
                rows.append({"generation": record.generation, "calls": calls, "slots busy": share})

        AsyncEvolutionController(
            config,
            dispatcher=dispatcher,
            model=MODEL,
            mutator_model="sim-mutator",
            on_generation=end_generation,
            on_progress=lambda _: busy.tick(),
        ).run_evolution()
        most = server.stats()["max_in_flight"]
    return Section(
        title="Evolution: slots busy, generation by generation",
        about=(
            f"`AsyncEvolutionController`, {POPULATION} genomes on {PANEL} problems, cap {CAP}, with "
            "rewording calls and early stopping, replies lognormal (0.2 s on the mean); the last calls of "
            "each generation aside."
        ),
        rows=rows,
        checks=[
            at_least("slots busy, median", 0.93, median(row["slots busy"] for row in rows)),
            at_most("most in flight", CAP, most),
        ],
    )


def time_selection(scale: Scale) -> Section:
    """Combinations of prompts on datapoints, under several caps and batches."""
    cases = (
        ("equal", 50, 9, 100),
        ("lognormal", 50, 9, 100),
        *(("lognormal", 20, 440 // batch, batch) for batch in (11, 7, 3)),
    )
    rows = [_selection(scale, *case) for case in cases]
    return Section(
        title="Selection: `select_best(parallel=True, max_concurrent=...)`",
        about=(
            "Brute force over prompts on the bundled task's questions, on as many slots as the cap. A batch "
            "is the dataset, which every combination is evaluated on; `plan_concurrency` splits the cap, and "
            "what the split leaves over goes to the combinations that come next. *Busy* is the slots that "
            "were busy on average, the last calls aside; replies have 250 tokens (1 s) on the mean, with "
            "sigma 1.0 where they are lognormal."
        ),
        rows=rows,
        checks=[
            at_least("cap 50: most in flight", 50, rows[0]["most in flight"]),
            at_most("cap 50: most in flight", 50, rows[0]["most in flight"]),
            *(at_least(f"cap 20, batch {row['batch']}: busy", 19.5, row["busy"]) for row in rows[2:]),
            at_least("slots busy, least of all", 0.93, min(row["of the cap"] for row in rows)),
        ],
    )


def _selection(scale: Scale, replies: str, cap: int, combinations: int, batch: int) -> dict[str, Any]:
    everyday = bundled_task()
    tokens = "250" if replies == "equal" else "lognormal:mean=250,sigma=1.0"
    choices = {"prompt": [f"Answer the question in the manner of guide {k}." for k in range(combinations)]}
    with serving(scale, cap, tokens) as (server, dispatcher):
        server.reset_stats()
        busy = BusySlots(server, cap)
        evaluate = TaskEvaluation(WatchedCalls(dispatcher, busy.tick), everyday, model=MODEL)
        selector = make_selector("brute_force", choices, everyday.problems[:batch], evaluate)
        began_s = time.perf_counter()
        results = selector.select_best(parallel=True, max_concurrent=cap)
        wall_s = time.perf_counter() - began_s
        (calls, share), most = busy.end_window(), server.stats()["max_in_flight"]
    return {
        "replies": replies,
        "max_concurrent": cap,
        "batch": batch,
        "plan_concurrency": "{} x {}".format(*(results.rounds[0].plan or ())),
        "combinations": combinations,
        "calls": calls,
        "seconds": wall_s,
        "most in flight": most,
        "busy": share and share * cap,
        "of the cap": share,
    }


SELECTORS_CAP, SELECTORS_DATAPOINTS = 20, 100
"""Slots, which are the cap, and datapoints on which all selectors are timed."""


def time_selectors(scale: Scale) -> Section:
    """Every selector on the same nine arms: the seconds that it takes, beside brute force's."""
    rows = [
        _selector_row(contestant, [_selector(scale, contestant, seed) for seed in range(scale.runs)])
        for contestant in AS_THEY_ARE
    ]
    _compare(rows, "s", "of brute force's")
    _compare(rows, "lognormal, s", "lognormal, of brute force's")
    return Section(
        title=f"Seconds of every selector: 9 arms, {SELECTORS_DATAPOINTS} datapoints, 50 ms a call",
        about=(
            f"`select_best(parallel=True, max_concurrent={SELECTORS_CAP})` on {SELECTORS_CAP} slots, the "
            "selectors of the sections below, with their default settings. Each evaluation is one call of 50 "
            "ms, or of lognormal length with this mean and sigma 1.0; its score stands in a table, drawn as "
            f"for nine independent arms below. *In flight*: calls on the mean, the last {SELECTORS_CAP} "
            f"aside; *s* are all seconds. Medians of {scale.runs} tables; *saved* is the mean share of brute "
            "force's evaluations. A selector waits for what came of calls in the order in which it asked for "
            "them: where some take six times as long as the mean, slots idle meanwhile."
        ),
        rows=rows,
        checks=list(_selector_checks(rows)),
    )


def _selector(scale: Scale, contestant: Contestant, seed: int) -> dict[str, Any]:
    """What one table takes, with equal replies and lognormal ones."""
    table = WORLDS["independent"].table(seed)[:, :SELECTORS_DATAPOINTS]
    half = replace(scale, time_scale=scale.time_scale / 2)  # 25 tokens in 50 ms
    found: dict[str, Any] = {}
    for prefix, tokens in (("", "25"), ("lognormal, ", "lognormal:mean=25,sigma=1.0")):
        with serving(half, SELECTORS_CAP, tokens, seed=seed) as (server, dispatcher):
            server.reset_stats()
            busy = BusySlots(server, SELECTORS_CAP)
            calls = WatchedCalls(dispatcher, busy.tick)

            def evaluate(arm: Combination, datapoint: int, calls: WatchedCalls = calls) -> float:
                prompt = f"What is {datapoint} times {arm['model']}{arm['prompt']}?"
                reply = calls.generate(Call(model=MODEL, prompt=prompt, options={"temperature": 0}))
                if reply.error is not None:
                    raise reply.error
                return float(table[3 * arm["model"] + arm["prompt"], datapoint])

            selector = make_selector(
                contestant.selector,
                CHOICES,
                range(SELECTORS_DATAPOINTS),
                evaluate,
                seed=seed,
                delta=DELTA,
                **contestant.settings,
            )
            began_s = time.perf_counter()
            results = selector.select_best(parallel=True, max_concurrent=SELECTORS_CAP)
            found[f"{prefix}s"] = time.perf_counter() - began_s
            (found["calls"], share), most = busy.end_window(), server.stats()["max_in_flight"]
        found[f"{prefix}in flight"] = share and share * SELECTORS_CAP
        found[f"{prefix}most"] = most
        found["saved"] = results.savings
    return found


def _selector_row(contestant: Contestant, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def middle(what: str) -> float:
        return float(median(each[what] for each in runs))

    return {
        "selector": contestant.label,
        "calls": middle("calls"),
        "saved": fmean(each["saved"] for each in runs),
        "s": middle("s"),
        "of brute force's": None,
        "in flight": middle("in flight"),
        "most in flight": max(each["most"] for each in runs),
        "lognormal, s": middle("lognormal, s"),
        "lognormal, of brute force's": None,
        "lognormal, in flight": middle("lognormal, in flight"),
    }


def _compare(rows: Sequence[dict[str, Any]], seconds: str, of_the_first: str) -> None:
    for row in rows:
        row[of_the_first] = row[seconds] / rows[0][seconds]


def _selector_checks(rows: Sequence[dict[str, Any]]) -> Iterator[Check]:
    slowest = max(row["of brute force's"] for row in rows)
    # Three climbs ask for all that brute force asks for: what is above 1 is the noise of two timings.
    yield at_most("seconds of brute force's, most of all", 1.03, slowest)
    yield at_least("in flight, least of all", 0.9 * SELECTORS_CAP, min(row["in flight"] for row in rows))
    yield at_most("most in flight", SELECTORS_CAP, max(row["most in flight"] for row in rows))


if __name__ == "__main__":
    sys.exit(run("search_speed", "search.md"))
