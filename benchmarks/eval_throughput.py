"""How busy an evaluation keeps the server: its pace over that of a schedule of the same calls at no cost.

    python -m benchmarks.eval_throughput

The schedule is computed from the times that the server reported for the very calls of the evaluation: its
steps, in the same order, with the same barriers, on as many slots, each begun the moment a slot is free.
"""

from __future__ import annotations

import heapq
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import LOGNORMAL, read_json, read_lines, run_mutagym
from benchmarks.reporting import Section, at_least, run
from cli.bench import MODEL
from mutators.registry import model_mutators
from simulator.process import EmbeddedServer
from simulator.settings import Settings

SLOTS = 32
TARGET = 0.95


@dataclass(frozen=True, kw_only=True)
class Case:
    """An evaluation to be timed."""

    missions: int = 1
    episodes: int = 1
    agents: int = 1
    max_in_flight: str = str(SLOTS)


ALL = Case(missions=4, episodes=8, agents=4)
CASES = (
    ALL,
    replace(ALL, max_in_flight="auto"),
    Case(missions=4),
    Case(episodes=8),
    Case(agents=4),
)
"""All three levels at once, with the server's slots told and found; then each level alone."""
Steps = Sequence[Sequence[float]]
"""Of an episode: for each step, the seconds that the calls of each agent in it took the server."""


def sections(*, quick: bool) -> Iterator[Section]:
    """Evaluations of several shapes, beside the schedule at no cost."""
    seeds, time_scale = (1, 0.1) if quick else (3, 1.0)
    rows = [_medians(case, seeds, time_scale) for case in CASES]
    yield Section(
        title="Evaluation: missions, episodes and agents side by side",
        about=(
            f"`mutagym eval` with a random policy, {SLOTS} slots and jobs, replies of `{LOGNORMAL}` tokens, "
            "mutators by model, a target at temperature 0.7 so that no two calls are equal. A step "
            "gathers the actions of all agents of its episode before any goes on. *At no cost* is the "
            "schedule of the same steps in the same order, with the same barriers, where each begins the "
            "moment a slot is free (not the shortest there is: steps that come in another order may end a "
            "little sooner); *one at a time* the sum of their times. With `--max-in-flight auto` the "
            "slots have to be found first, in some round trips of fewer calls. The wall time is the "
            "command's, from the first call to the last result, with every reply written down."
        ),
        rows=rows,
        checks=[
            at_least(
                "pace of 4 x 8 x 4, of that at no cost, median over seeds",
                TARGET,
                rows[0]["of that pace"],
            )
        ],
    )


def zero_overhead_s(episodes: Sequence[Steps], jobs: int) -> float:
    """The seconds that list scheduling takes, where whatever may begin does so at once.

    Args:
        episodes: in the order in which they are opened; at most `jobs` are open at once.
        jobs: plans at work at once, and no more than the server has slots.
    """
    ready: deque[tuple[int, float]] = deque()
    left: dict[int, int] = {}
    steps = [iter(episode) for episode in episodes]
    to_open = iter(range(len(episodes)))
    working: list[tuple[float, int]] = []
    now_s = 0.0

    def go_on(episode: int | None) -> None:
        """The next step of an episode; once it has none, the next episode."""
        while episode is not None and not (step := next(steps[episode], ())):
            episode = next(to_open, None)
        if episode is not None:
            left[episode] = len(step)
            ready.extend((episode, seconds) for seconds in step)

    for _ in range(jobs):
        go_on(next(to_open, None))
    while ready or working:
        while ready and len(working) < jobs:
            episode, seconds = ready.popleft()
            heapq.heappush(working, (now_s + seconds, episode))
        now_s, episode = heapq.heappop(working)
        left[episode] -= 1
        if not left[episode]:
            go_on(episode)
    return now_s


def _medians(case: Case, seeds: int, time_scale: float) -> dict[str, Any]:
    """One row: medians over seeds."""
    runs = [_evaluate(case, seed, time_scale) for seed in range(seeds)]
    return {
        "missions": case.missions,
        "episodes": case.episodes,
        "agents": case.agents,
        "in flight": case.max_in_flight,
        "seeds": seeds,
        **{heading: median(each[heading] for each in runs) for heading in runs[0]},
    }


def _evaluate(case: Case, seed: int, time_scale: float) -> dict[str, float]:
    """Evaluate once."""
    settings = Settings(slots=SLOTS, reply_tokens=LOGNORMAL, time_scale=time_scale)
    with EmbeddedServer(settings) as server, tempfile.TemporaryDirectory() as folder:
        flags = _flags(case, seed, server.host, folder)
        # The limit on tokens, which hardly a reply meets, makes the calls of each mission calls of its own.
        missions = [
            f"--mission=name=mission {m},split-seed={m},num-predict={500 + m}"
            for m in range(case.missions)
        ]
        run_mutagym("eval", flags, *missions, "--save-transitions")
        busy_s = server.stats()["busy_slot_s"]
        wall_s = read_json(Path(folder) / "summary.json")["wall_s"]
        episodes = _episodes(read_lines(Path(folder) / "transitions.jsonl"))
    alone_s = sum(seconds for episode in episodes for step in episode for seconds in step)
    best_s = zero_overhead_s(episodes, SLOTS)
    return {
        "steps": float(sum(len(step) for episode in episodes for step in episode)),
        "seconds": wall_s,
        "at no cost": best_s,
        "of that pace": best_s / wall_s,
        "slots busy": busy_s / wall_s / SLOTS,
        "times one at a time": alone_s / wall_s,
    }


def _flags(case: Case, seed: int, host: str, folder: str) -> dict[str, object]:
    return {
        "--ollama-host": host,
        "--target-model": MODEL,
        "--target-temperature": 0.7,
        "--mutators": ",".join(model_mutators()),
        "--encoder": "hashing",
        "--policy": "random",
        "--baselines": "",
        "--episodes": case.episodes,
        "--agents": case.agents,
        "--max-in-flight": case.max_in_flight,
        "--jobs": SLOTS,
        "--seed": seed,
        "--run-dir": folder,
    }


def _episodes(transitions: Iterable[Mapping[str, Any]]) -> list[Steps]:
    """The seconds of every step, by episode in the order in which they were opened."""
    found: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for t in transitions:
        times = t["not_hashed"]
        steps = found[t["episode_number"], t["mission"]]
        steps[t["row"]].append(times["total_s"] - times["queue_s"])
    return [[steps[row] for row in sorted(steps)] for steps in found.values()]


if __name__ == "__main__":
    sys.exit(run("eval_throughput", "performance.md"))
