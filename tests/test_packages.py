"""The packages are ours: PyPI holds others named `envs` and `train`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name", ["benchmarks", "envs", "mutators", "ollama_utils", "scorers", "search", "tests", "train"]
)
def test_each_package_imported_is_ours(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ == str(ROOT / name / "__init__.py")


def test_no_code_file_is_longer_than_300_lines() -> None:
    folders = ("benchmarks", "envs", "mutators", "ollama_utils", "scorers", "search", "train")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in long.items() if lines > 300} == {}
