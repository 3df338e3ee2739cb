"""`mutagym train` against the simulator's faults: those that pass change nothing, the others stop it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.runs import WORLD, read, train

LANES = ("--num-processes", "4", "--encoder", "hashing:64")
RUN = (*LANES, "--num-steps", "8", "--num-env-steps", "32", "--ppo-epoch", "1")


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=8, time_scale=0.001)) as made:
        yield made


@pytest.fixture
def server(shared: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A simulator of this file's own, without faults in the end."""
    yield shared
    shared.set_faults([])


def run(server: EmbeddedServer, folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """A small run: its exit code and its summary."""
    code = train(server.host, folder, *WORLD, *RUN, *flags)
    assert (folder / "policy.zip").exists()
    return code, read(folder, "summary.json")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"kind": "status"}, "ServerFaultError"),
        ({"kind": "status", "status": 503}, "ServerBusyError"),
        ({"kind": "garbage", "what": "cut"}, "BadReplyError"),
    ],
)
def test_a_run_whose_every_call_fails_stops_saved_with_one_line_that_says_why(
    server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: dict[str, Any],
    error: str,
) -> None:
    server.set_faults([{**fault, "rate": 1}])
    code, summary = run(server, tmp_path / "run", "--call-attempts", "1")
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert code == 1
    assert last == f"mutagym: {summary['stopped']}"
    assert "100% of the last 32 steps could not be scored" in last
    assert error in last
    assert (summary["unscored_rate"], summary["success_rate_end"]) == (1, None)


def test_a_run_over_faults_that_pass_is_the_run_without_them(server: EmbeddedServer, tmp_path: Path) -> None:
    _, sane = run(server, tmp_path / "sane")
    server.set_faults([{"kind": "drop", "rate": 0.2, "at": "body", "model": "sim-mutator"}])
    code, struck = run(server, tmp_path / "struck", "--call-attempts", "8")
    assert code == 0
    assert struck["retries"] > sane["retries"] == 0
    for hashed in ("transitions_sha256", "weights_sha256"):
        assert struck[hashed] == sane[hashed]
