"""What bench says of memory and CPU time."""

from __future__ import annotations

import multiprocessing
import os
import time
from mmap import PAGESIZE, mmap
from pathlib import Path

import pytest

from cli.timed_rollout import cpu_s, forget_peak, peak_rss_mib
from tests.cli.spinning import SPIN_S, spin

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")
MIB = 2**20


def _peak() -> float:
    peak = peak_rss_mib()
    assert peak is not None
    return peak


def test_a_peak_is_remembered_until_it_is_forgotten() -> None:
    forget_peak()
    before = _peak()
    with mmap(-1, 64 * MIB) as block:  # malloc may take memory that was freed before, and keep it
        for page in range(0, len(block), PAGESIZE):
            block[page] = 1
    held = _peak()
    forget_peak()
    assert held > before + 60
    assert _peak() < held - 30  # not held against `before`: a process that ends leaves us its shared pages


def test_where_a_sandbox_does_not_tell_of_memory_it_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.timed_rollout._PROC", tmp_path)
    assert peak_rss_mib() is None
    own = tmp_path / str(os.getpid())
    own.mkdir()
    (own / "smaps_rollup").write_text("Pss: 1 kB\n")
    (own / "status").write_text("Name: python\n")
    assert peak_rss_mib() is None


def test_the_cpu_time_and_the_memory_of_worker_processes_count() -> None:
    context = multiprocessing.get_context("spawn")
    done, end = context.Event(), context.Event()
    worker = context.Process(target=spin, args=(done, end), daemon=True)
    worker.start()
    done.wait()
    own_s = time.process_time()
    spent_s, held_mib = cpu_s(), _peak()
    end.set()
    worker.join()
    assert spent_s - own_s > SPIN_S / 2
    assert held_mib > _peak()
