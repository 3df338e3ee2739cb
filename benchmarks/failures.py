"""What failing calls do to the rates of an evaluation, as `mutagym eval` counts them and as was done before.

    python -m benchmarks.failures

One team is evaluated on a server on which every call succeeds, and on one on which a tenth of them fail for
good. From the steps of the latter the schemes of earlier systems are counted, too: a failed call is taken for
a refusal, so that its step counts and the episode goes on; or an episode in which a call fails is dropped.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import read_lines, run_mutagym
from benchmarks.reporting import Check, Section, at_least, at_most, run
from scorers.comparison import Comparison, compare
from scorers.statistics import rate_interval
from simulator.process import EmbeddedServer
from simulator.settings import Settings

RATE = 0.1
"""Of the calls that fail, each for good: there is one attempt."""
POLICY = "random"
"""It tries something else in each step, so that long episodes may succeed as well as short ones."""
AGENTS, MAX_STEPS = 4, 5
SLOTS = 16
NONE = "no call fails"
OURS = "did not happen"
REFUSAL = "counts as a refusal"
DROPPED = "episode dropped"
WHY = """\
A step of which a call failed did not happen: it is made again, and what failed is counted apart.
That is for the rates' sake; earlier systems counted a failed call as a refusal, or dropped its
episode."""
Attempts = Sequence[Mapping[str, Any]]
"""An agent's lines of transitions.jsonl in one episode, those of failed steps among them."""
Trials = Mapping[str, Sequence[bool]]
"""By query, whether each agent's episode succeeded."""


def sections(*, quick: bool) -> Iterator[Section]:
    """The same team with and without failing calls, and what earlier schemes would have counted."""
    seeds, queries = (1, 10) if quick else (5, 120)
    sound, faulty = (
        [attempts for seed in range(seeds) for attempts in _play(seed, queries, rate)]
        for rate in (0.0, RATE)
    )
    truth = did_not_happen(sound)
    schemes = {
        OURS: did_not_happen(faulty),
        REFUSAL: counted_as_refusal(faulty),
        DROPPED: without_failures(faulty),
    }
    rows = [
        _row(NONE, truth, truth, sound),
        *(_row(name, t, truth, faulty) for name, t in schemes.items()),
    ]
    yield Section(
        title="Calls that fail",
        about=(
            f"{WHY}\n\n`mutagym eval -p {POLICY}` with {AGENTS} agents on {queries} held-out queries, "
            f"seeds 0 to {seeds - 1}, on a server that answers every call and on one where {RATE:.0%} of "
            "them fail after their only attempt (`--max-unscored 0.5`). *Did not happen* is what mutagym "
            "does: the step is made again, and what failed is counted apart. The last two rows are "
            "counted from the same steps as earlier systems did. *Off by* is the difference to the server "
            "without failures, paired by query."
        ),
        rows=rows,
        checks=_checks({name: _difference(trials, truth) for name, trials in schemes.items()}),
    )


def did_not_happen(episodes: Sequence[Attempts]) -> Trials:
    """An episode is its scored steps; one that could not be finished is in no rate."""
    return _by_query(episodes, lambda attempts: _ended([a for a in attempts if not a["unscored"]]))


def counted_as_refusal(episodes: Sequence[Attempts]) -> Trials:
    """A failed step is a step that was refused: the limit of steps is met sooner."""
    return _by_query(episodes, lambda attempts: any(a["success"] for a in attempts[:MAX_STEPS]))


def without_failures(episodes: Sequence[Attempts]) -> Trials:
    """Only the episodes in which no call failed; the longer one is, the sooner one does."""
    return _by_query(
        episodes,
        lambda attempts: None if any(a["unscored"] for a in attempts) else _ended(attempts),
    )


def _by_query(episodes: Sequence[Attempts], succeeded: Callable[[Attempts], bool | None]) -> Trials:
    """Whether each episode succeeded, by its query; None leaves it out."""
    trials: dict[str, list[bool]] = defaultdict(list)
    for attempts in episodes:
        outcome = succeeded(attempts)
        if outcome is not None:
            trials[attempts[0]["original_query"]].append(outcome)
    return trials


def _ended(steps: Attempts) -> bool | None:
    """Whether the last step succeeded; None where the episode has no end."""
    last = steps[-1] if steps else {"terminated": False, "truncated": False}
    return bool(last["success"]) if last["terminated"] or last["truncated"] else None


def _difference(trials: Trials, truth: Trials) -> Comparison:
    """How far a scheme is off, paired by query."""
    return compare(*([by_query.get(query, ()) for query in truth] for by_query in (trials, truth)))


def _row(name: str, trials: Trials, truth: Trials, episodes: Sequence[Attempts]) -> dict[str, Any]:
    steps = [step for attempts in episodes for step in attempts]
    failed = sum(step["unscored"] for step in steps)
    refused = sum(step["outcome"] == "refused" for step in steps)
    counts = [(sum(outcomes), len(outcomes)) for outcomes in trials.values()]
    count = sum(n for _, n in counts)
    off = None if name == NONE else _difference(trials, truth)
    share_refused = (
        (refused + failed) / len(steps) if name == REFUSAL else refused / (len(steps) - failed)
    )
    return {
        "a failed call": name,
        "success": sum(happened for happened, _ in counts) / count,
        "95 % interval": _interval(*rate_interval(counts)[1:]),
        "off by": off and off.difference,
        "95 % interval of that": off and _interval(off.low, off.high),
        "refused steps": share_refused,
        "agents' episodes": count,
        "failed apart": failed if name == OURS else None,
        "share of all steps": failed / len(steps) if name == OURS else None,
    }


def _interval(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _checks(off: Mapping[str, Comparison]) -> list[Check]:
    ours = off[OURS]
    return [
        at_most("success is off by, where failed steps did not happen", 0.02, abs(ours.difference)),
        at_most("the lower end of its interval", 0.0, ours.low),
        at_least("the upper end of its interval", 0.0, ours.high),
    ]


def _play(seed: int, queries: int, rate: float) -> list[Attempts]:
    """Evaluate once: the attempts of every agent in every episode."""
    with (
        EmbeddedServer(Settings(slots=SLOTS, time_scale=0.0)) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        server.set_faults([{"kind": "status", "rate": rate}] if rate else [])
        flags = {
            "--ollama-host": server.host,
            "--target-model": "sim-target",
            "--mutator-model": "sim-mutator",
            "--encoder": "hashing",
            "--intent-threshold": 0.2,
            "--policy": POLICY,
            "--baselines": "",
            "--agents": AGENTS,
            "--episodes": queries,
            "--max-steps": MAX_STEPS,
            "--call-attempts": 1,
            "--max-unscored": 0.5,
            "--seed": seed,
            "--run-dir": folder,
        }
        run_mutagym("eval", flags, "--save-transitions")
        steps = read_lines(Path(folder) / "transitions.jsonl")
    found: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for step in steps:
        found[step["episode_number"], step["agent"]].append(step)
    return list(found.values())


if __name__ == "__main__":
    sys.exit(run("failures", "statistics.md"))
