"""What a user imports from the package itself."""

from __future__ import annotations

import subprocess
import sys

import search


def test_every_public_name_imports_from_the_package() -> None:
    assert all(callable(getattr(search, name)) for name in search.__all__)


def test_importing_the_package_is_cheap_and_a_selector_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, search; from search import make_selector;"
        "make_selector('brute_force', {'a': [1]}, [1], lambda c, d: 1.0);"
        "heavy = ('torch', 'scipy', 'sklearn', 'search.evolve', 'gymnasium');"
        "early = [m for m in heavy if m in sys.modules];"
        "sys.exit(bool(early))"  # scikit-learn is imported only where it proposes
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603 - ours
