"""What a user may change, from what `mutagym doctor` found: a gain stands beside what was measured, alone.

Each piece of advice says what to do, and what that brought here. What cannot be tried on a server as it runs
(more slots, more memory, a model that is not called) is said to be not measured, and comes without a number
for the gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ollama_utils.monitor import ADVISED_SLOTS

NOTABLE, NOTABLE_OF_FEW = 1.1, 1.5
"""A gain is told from here on: two short rollouts of the same kind may differ by some per cent, and of few
steps by more."""
FEW = 64
"""Steps under which these are few."""
_LARGE_SHARE = 0.25
"""Of the time of a step's calls."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to do."""

    do: str
    """A flag or a command."""
    why: str
    gain: float | None
    """How many times as many env steps a second, as measured; None: not measured."""

    def __str__(self) -> str:
        brings = (
            "what it brings was not measured" if self.gain is None else f"x{self.gain:.2f}, measured here"
        )
        return f"{self.do}: {brings}; {self.why}"


def advise(report: Mapping[str, Any], *, schedule: str, slots_setting: str) -> list[Advice]:
    """All that may be changed, what was measured first.

    Args:
        report: as `mutagym doctor --json` writes it.
        schedule: the user's.
        slots_setting: what gives the server more slots, up to their number.
    """
    forecast = report["forecast"]
    now = next(row for row in forecast if row["schedule"] == schedule)
    found = [
        *_faster(forecast, now),
        *_residency(report),
        *_slots(report, now["num_processes"] if schedule != "sequential" else 1, slots_setting),
        *_mutator(report),
    ]
    return sorted(found, key=lambda each: -(each.gain or 0))


def _faster(forecast: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> Iterator[Advice]:
    """Another schedule, or more lanes."""
    together = [row for row in forecast if row["schedule"] != "sequential"]
    usual = min((row["num_processes"] for row in together), default=0)
    for row in together:
        gain = row["env_steps_per_s"] / now["env_steps_per_s"]
        best = all(row["env_steps_per_s"] >= other["env_steps_per_s"] for other in forecast)
        is_few = min(row["env_steps"], now["env_steps"]) < FEW
        if gain < (NOTABLE_OF_FEW if is_few else NOTABLE) or not best:
            continue
        flags = [f"--num-processes {row['num_processes']}"] if row["num_processes"] > usual else []
        flags += [f"--schedule {row['schedule']}"] if row["schedule"] != now["schedule"] else []
        why = f"{row['env_steps_per_s']:.3g} env steps/s against {now['env_steps_per_s']:.3g}"
        yield Advice(do=" ".join(flags), gain=round(gain, 3), why=why)


def _residency(report: Mapping[str, Any]) -> Iterator[Advice]:
    displaced = report["residency"]["displaced"]
    if displaced:
        number = len(report["residency"]["models"])
        yield Advice(
            do=f"OLLAMA_MAX_LOADED_MODELS={number} ollama serve, or one model in all roles",
            gain=None,
            why=f"{', '.join(displaced)} had to leave the memory for the others; there must be room for all",
        )


def _slots(report: Mapping[str, Any], lanes: int, setting: str) -> Iterator[Advice]:
    """More slots than the server has; not where those that it has make no run faster."""
    lanes = math.ceil(lanes / max(1, len(report["slots"])))  # of each server
    wanted = min(lanes, ADVISED_SLOTS)
    few = [each for each in report["slots"] if each["slots"] and each["slots"] < wanted]
    if not few:
        return
    slots = few[0]["slots"]
    gain = _gain_over_sequential(report["forecast"])
    if slots > 1 and gain is not None and gain < NOTABLE:
        return
    full, alone = (report["burst"][f"tokens_per_s_{each}"] for each in ("full", "alone"))
    brought = (
        f"with these, calls at once get {full / alone:.2g} times the tokens/s of one call alone"
        if slots > 1 and full and alone
        else "what slots bring depends on the machine, much on most GPUs and little on a CPU"
    )
    serve = " ollama serve" if setting.startswith("OLLAMA") else ""
    yield Advice(
        do=f"{setting}{wanted}{serve}",
        gain=None,
        why=f"{few[0]['model']} has {slots} {'slot' if slots == 1 else 'slots'} for {lanes} lanes; {brought}"
        ": start it so, and run doctor again",
    )


def _gain_over_sequential(forecast: Sequence[Mapping[str, Any]]) -> float | None:
    """How many times as fast as one call after another the best schedule is; None: not both were played."""
    paces = [(row["schedule"] == "sequential", row["env_steps_per_s"]) for row in forecast]
    alone = [pace for is_alone, pace in paces if is_alone]
    together = [pace for is_alone, pace in paces if not is_alone]
    return max(together) / alone[0] if alone and together else None


def _mutator(report: Mapping[str, Any]) -> Iterator[Advice]:
    """A smaller model for rewordings, where the target writes them, too."""
    roles = {row["role"]: row for row in report["alone"]}
    if "mutator" not in roles or roles["mutator"]["model"] != roles["target"]["model"]:
        return
    step_s = {role: row["call_s"] * row["per_step"] for role, row in roles.items()}
    share = step_s["mutator"] / sum(step_s.values())
    if share >= _LARGE_SHARE:
        yield Advice(
            do="a smaller --mutator-model",
            gain=None,
            why=f"rewordings by {roles['mutator']['model']} take {100 * share:.0f} % of the time of a step's "
            "calls: run doctor with it, to see that both stay in memory",
        )
