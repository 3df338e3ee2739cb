"""What stands before the tables of a report: the machine, and how everything is measured."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("ollama", "httpx", "gymnasium", "stable-baselines3", "torch", "numpy", "aiohttp")
METHOD = """\
# Performance

Made by `make bench` (`python -m benchmarks.performance`) on {date}; no figure is written by hand.

**Everything here is simulated.** The server is the one of [simulator.md](simulator.md): a process of its
own that speaks Ollama's HTTP API over loopback and takes the time that its profile gives; where nothing
else is said `ideal`, 4 ms a token in every slot, whatever else runs. What is measured is how well mutagym
keeps such a server busy, not how fast a model is.

{machine}
- Replies have `lognormal:mean=50,sigma=1.0` tokens where nothing else is said: a call holds a slot for
  200 ms on average, and some for seconds. How long a reply is, is a function of the request.
- One model plays target, mutator and judge, as for a user who names one model, so its slots are all there
  are. Sentences are encoded by hashing. Mutators that work by rule and the cache of replies are left out,
  so that every schedule has the same calls to make. Actions are random, and the same under every schedule.
- *Slots busy*: the seconds that the server counted for its slots (`GET /simulator/stats`), over slots x
  wall time. *Bound*: the steps/s if no slot were ever idle, steps x min(slots, lanes) / those seconds, for a
  lane makes one call at a time.
- *Speed-up*: the tokens that the server wrote a second, over those of the table's first row. For one seed
  they are the same tokens under every schedule, and it is the ratio of steps/s.
- Where a table says 3 seeds, its figures are medians over the seeds 0, 1 and 2; `sequential` is timed with
  seed 0 alone. Making and resetting environments is outside the timed window; that is *start*.
- *CPU* is that of all threads of the process that trains and of its worker processes, *MiB* the most memory
  that these held, shared pages counted once. The simulator is left out of both.
- `transitions_sha256` covers what every step chose, asked and got, in (row, lane) order."""


def heading() -> str:
    """The method of docs/performance.md, with the machine and the versions of now."""
    return METHOD.format(date=time.strftime("%Y-%m-%d"), machine=machine(*PACKAGES))


def machine(*packages: str) -> str:
    """Two points of a list: the machine of now, and the versions of Python and of these packages."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"- Machine: {_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}. "
        f"Load average when this began: {os.getloadavg()[0]:.1f}.\n"
        f"- Versions: Python {platform.python_version()}, {versions}."
    )


def _processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
