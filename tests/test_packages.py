"""The packages are ours: PyPI holds others named `envs` and `train`."""

from __future__ import annotations

import importlib
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
