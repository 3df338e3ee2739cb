"""What the tests of the commands share: each small search, run once from start to end."""

from __future__ import annotations

import pytest

from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches


@pytest.fixture(scope="session")
def whole(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> WholeSearches:
    """See WholeSearches."""
    return WholeSearches(simulator.host, tmp_path_factory.mktemp("whole"))
