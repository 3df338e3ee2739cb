"""The reader's server and runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.docs.reader import WORLD, make_runs


@pytest.fixture(scope="session")
def yours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server of 8 slots that answers at once."""
    path = tmp_path_factory.mktemp("world") / "world.toml"
    path.write_text(WORLD, encoding="utf-8")
    with EmbeddedServer(Settings(slots=8, time_scale=0.0, world=str(path))) as server:
        yield server


@pytest.fixture(scope="session")
def your_runs(yours: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reader's runs and files."""
    folder = tmp_path_factory.mktemp("reader")
    make_runs(folder, yours.host)
    return folder
