"""The packages are ours, import each other in one direction, and name a class once."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Set as AbstractSet
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name",
    [
        "benchmarks",
        "cli",
        "envs",
        "evaluation",
        "examples",
        "mutators",
        "ollama_utils",
        "records",
        "report",
        "scorers",
        "search",
        "simulator",
        "tests",
        "train",
    ],
)
def test_each_package_imported_is_ours(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ == str(ROOT / name / "__init__.py")


PACKAGES = tuple(
    sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
)
DOORS = ("train.train_query_mutator", "mutagym")
"""The two doors from below up to the commands."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of ours by its dotted name, parsed once."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            file.read_text(encoding="utf-8")
        )
        for file in files
    }


def imported(tree: ast.Module, known: AbstractSet[str]) -> set[str]:
    """The modules of ours that a module imports anywhere, in functions, too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & known or {
                node.module
            }
    return found & known


def test_no_imports_of_our_modules_form_a_circle() -> None:
    """Imports at the top of a file or in a function; those for type checking alone load nothing."""
    trees = {name: without_type_checking(tree) for name, tree in modules().items()}
    arrows = {
        name: imported(tree, trees.keys()) - {name}
        for name, tree in trees.items()
        if name not in DOORS
    }
    TopologicalSorter(arrows).prepare()  # raises a CycleError that names the circle


def without_type_checking(tree: ast.Module) -> ast.Module:
    """The module without its `if TYPE_CHECKING:` blocks."""
    kept = [
        n
        for n in tree.body
        if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    ]
    return ast.Module(body=kept, type_ignores=[])
