"""The reader's world: a server with the documents' models, and the reader's runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.docs.stand_ins import make_runs, world


@pytest.fixture(scope="session")
def yours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server of yours: 8 slots, replies at once, models of the names that the documents use."""
    path = tmp_path_factory.mktemp("world") / "world.toml"
    path.write_text(world(), encoding="utf-8")
    with EmbeddedServer(Settings(slots=8, time_scale=0.0, world=str(path))) as server:
        yield server


@pytest.fixture(scope="session")
def your_runs(yours: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs and files of a reader."""
    folder = tmp_path_factory.mktemp("reader")
    make_runs(folder, yours.host)
    return folder
