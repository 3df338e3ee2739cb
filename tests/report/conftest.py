"""One run of each command, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.made_runs import make_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs, which no test changes; a page of all of them is not in it."""
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder)
    return folder
