"""What this process and its worker processes take: CPU time and memory, read from /proc.

The simulator is left out: it was not started by `multiprocessing`.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_FORGET_PEAK = "5"
_KIB_PER_MIB = 1024
_FIELDS_BEFORE_CPU = 11


def cpu_s() -> float:
    """CPU seconds so far of all threads of this process and its workers; of this one alone without /proc."""
    ticks = 0
    for pid in _workers():
        fields = _read(pid, "stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[_FIELDS_BEFORE_CPU : _FIELDS_BEFORE_CPU + 2]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def forget_peak() -> None:
    """Let `peak_rss_mib` tell of what comes from now on, if the system lets us; else it tells of all."""
    with suppress(OSError):
        (_PROC / "self" / "clear_refs").write_text(_FORGET_PEAK, encoding="utf-8")


def peak_rss_mib() -> float | None:
    """The most memory that this process and its workers held, in MiB; None without /proc.

    Of each process what it holds now, where a page that n processes share counts 1/n (its PSS), and what it
    held more at its peak.
    """
    if not _PROC.is_dir():
        return None
    kib = sum(
        _kib(pid, "smaps_rollup", "Pss") + _kib(pid, "status", "VmHWM") - _kib(pid, "status", "VmRSS")
        for pid in (os.getpid(), *_workers())
    )
    return kib / _KIB_PER_MIB


def _workers() -> list[int]:
    if not _PROC.is_dir():
        return []
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def _kib(pid: int, file: str, key: str) -> int:
    line = next(line for line in _read(pid, file).splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])


def _read(pid: int, file: str) -> str:
    return (_PROC / str(pid) / file).read_text(encoding="utf-8")
