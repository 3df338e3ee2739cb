"""Ray for tests: a cluster of this machine, and the workers of it that do jobs."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ollama_utils.threads import start, wait_until

installed = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="the extra ray is not installed: pip install 'mutagym[ray]'",
)


def workers() -> list[int]:
    """The processes that do a job, of the node that this process has started."""
    parents, doing = {}, []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                title = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            parents[int(folder.name)] = int(words[1])
            if title.startswith(b"ray::job"):
                doing.append(int(folder.name))
    return sorted(pid for pid in doing if parents.get(parents[pid]) == os.getpid())


@contextmanager
def killing_a_worker(when: Callable[[], bool]) -> Iterator[None]:
    """Within `with`: one worker is killed when that holds, while it does a job."""

    def kill() -> None:
        wait_until(lambda: when() and bool(workers()))
        os.kill(workers()[0], signal.SIGKILL)

    killed = start(kill)
    yield
    killed.result(timeout=0)
