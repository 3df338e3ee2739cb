"""Bursts of 503, late and broken replies during a search: it comes to what it comes to without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.cli.searches import WholeSearches, one_of_them, search
from tests.runs import read

FAULTS = [
    {"kind": "status", "status": 503, "rate": 0.005, "first": 3},
    {"kind": "garbage", "rate": 0.01},
    {"kind": "drop", "rate": 0.005, "at": "body"},
    {"kind": "hang", "rate": 0.003, "at": "start"},
]


@pytest.fixture(scope="module")
def troubled() -> Iterator[EmbeddedServer]:
    """A server with these faults."""
    with EmbeddedServer(Settings(slots=16, time_scale=0)) as server:
        server.set_faults(FAULTS)
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("command", one_of_them("optimize"))
def test_a_search_on_a_server_in_trouble_finds_what_it_finds_elsewhere_and_counts_its_retries(
    whole: WholeSearches, troubled: EmbeddedServer, tmp_path: Path, command: str
) -> None:
    patience = ("--call-timeout-s", "1", "--call-attempts", "8")
    run = search(command, troubled.host, tmp_path / "run", *patience)
    assert read(run) == read(whole[command])
    summary = read(run, "summary.json")
    assert summary["retries"] == summary["failures"] > 0
