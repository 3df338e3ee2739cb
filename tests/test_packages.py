"""The packages are ours, import each other in one direction, and name a class once."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
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
NAMES_APART = ("simulator", "benchmarks")
"""Class names here are their own affair: one is a process of its own, the other a folder of scripts."""
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
    """The modules of ours that a module imports anywhere, in functions and for type checking, too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & known or {
                node.module
            }
    return found & known


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle, in the order of their imports; none where there is no circle."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(arrows[name]):
            if found := visit(target, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(arrows) if (found := visit(name, []))), [])


def test_no_imports_of_our_rooms_form_a_circle() -> None:
    """Between rooms; a room's own files may know each other's types."""
    arrows: dict[str, set[str]] = {package: set() for package in PACKAGES}
    trees = modules()
    for name, tree in trees.items():
        if name not in DOORS:
            room = name.partition(".")[0]
            arrows[room] |= {
                target.partition(".")[0] for target in imported(tree, trees.keys())
            } - {room}
    assert circle(arrows) == []


def test_no_imports_of_our_modules_form_a_circle() -> None:
    """Imports at the top of a file or in a function; those for type checking alone load nothing."""
    trees = {name: without_type_checking(tree) for name, tree in modules().items()}
    arrows = {
        name: imported(tree, trees.keys()) - {name}
        for name, tree in trees.items()
        if name not in DOORS
    }
    assert circle(arrows | {door: set() for door in DOORS}) == []


def without_type_checking(tree: ast.Module) -> ast.Module:
    """The module without its `if TYPE_CHECKING:` blocks."""
    kept = [
        n
        for n in tree.body
        if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    ]
    return ast.Module(body=kept, type_ignores=[])


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in modules().items():
        if name.partition(".")[0] not in NAMES_APART:
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
