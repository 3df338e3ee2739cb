"""The packages are ours, and no imports of their modules form a circle."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
DOORS = ("train.train_query_mutator", "mutagym")
"""The two doors from below up to the commands."""


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_imported_is_ours(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ == str(ROOT / name / "__init__.py")


def name_of(file: Path) -> str:
    """The dotted name of a module."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(file: Path, known: Collection[str]) -> set[str]:
    """The known modules that a file imports, anywhere but for type checking alone."""
    found: set[str] = set()
    for part in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING":
            continue
        for node in ast.walk(part):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= names & {*known} or {node.module}
    return (found & {*known}) - {name_of(file)}


def test_no_imports_of_our_modules_form_a_circle() -> None:
    files = [file for name in PACKAGES if name != "tests" for file in (ROOT / name).rglob("*.py")]
    known = [name_of(file) for file in files]
    arrows = {
        name: imported(file, known)
        for name, file in zip(known, files, strict=True)
        if name not in DOORS
    }
    TopologicalSorter(arrows).prepare()  # raises a CycleError that names the circle
