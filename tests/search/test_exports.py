"""What a user imports from the room itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

import search


def test_every_public_name_imports_from_the_room() -> None:
    found = {name: getattr(search, name) for name in search.__all__}
    assert all(callable(each) and each.__name__ == name for name, each in found.items())


def test_an_unknown_name_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="AsyncEvolution"):
        from search import AsyncEvolution  # noqa: F401


def test_importing_the_room_is_cheap() -> None:
    code = (
        "import sys, search; from search import make_selector;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'scipy', 'sklearn', 'search.evolution')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603 - ours
