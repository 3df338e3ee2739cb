"""Which rows bench makes: lanes, schedules, workers and seeds, one row for each combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from train.errors import UserError
from train.settings import MOST_LANES

SCHEDULES = {
    "sequential": "sequential",
    "phased": "phased",
    "phased8": "phased",
    "lanes": "lanes",
    "gym-async": "gym-async",
    "sb3-subproc": "sb3-subproc",
}
"""What `--schedules` takes, and what drives the lanes then."""
PHASED8_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one row is measured with."""

    schedule: str
    """As `--schedules` names it."""
    num_processes: int
    """Lanes."""
    max_workers: int | None
    """Threads of a phase, or most lanes at work; None: as many as there are lanes."""
    seed: int

    @property
    def driver(self) -> str:
        """The schedule, or whose vector environment."""
        return SCHEDULES[self.schedule]

    @property
    def workers(self) -> int:
        """How many calls there may be in flight."""
        return self.max_workers or self.num_processes

    def __str__(self) -> str:
        return f"{self.schedule}: {self.num_processes} lanes, {self.workers} workers, seed {self.seed}"


def plan_rows(
    *, schedules: Sequence[str], lanes: Sequence[str], max_workers: Sequence[str], seeds: range
) -> list[Setting]:
    """The settings of all rows, in their order; `sequential` is timed with the first seed alone.

    Raises:
        UserError: no schedule, an unknown one, or a number that is none.
    """
    expected = f"expected some of {', '.join(SCHEDULES)}"
    if not schedules:
        raise UserError(f"--schedules is empty; {expected}")
    for schedule in schedules:
        if schedule not in SCHEDULES:
            raise UserError(f"--schedules has {schedule!r}; {expected}")
    counts = list(dict.fromkeys(_count(text, "--sweep-lanes") for text in lanes))
    pools = list(dict.fromkeys(_count(text, "--max-workers") for text in max_workers))
    return [
        Setting(schedule=schedule, num_processes=count, max_workers=workers, seed=seed)
        for count in counts
        for schedule in dict.fromkeys(schedules)
        for workers in _workers(schedule, pools)
        for seed in (seeds[:1] if schedule == "sequential" else seeds)
    ]


def _workers(schedule: str, pools: Sequence[int]) -> Iterator[int | None]:
    if schedule == "sequential":
        yield 1
    elif schedule == "phased8":
        yield PHASED8_WORKERS
    elif schedule in {"phased", "lanes"} and pools:
        yield from pools
    else:
        yield None


def _count(text: str, flag: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LANES:
        raise UserError(f"{flag} has {text!r}; expected numbers from 1 to {MOST_LANES}")
    return int(text)
