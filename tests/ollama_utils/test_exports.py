"""The room's public names: each imports in one line, and importing the room loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ollama_utils

HEAVY = ("torch", "sentence_transformers", "transformers", "sklearn", "gymnasium", "ollama", "httpx", "numpy")


@pytest.mark.parametrize("name", ollama_utils.__all__)
def test_each_exported_name_can_be_imported_from_the_room(name: str) -> None:
    assert getattr(ollama_utils, name).__module__.startswith(("ollama_utils.", "collections.abc"))


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nobody'"):
        _ = ollama_utils.nobody


def test_importing_the_room_loads_no_library() -> None:
    check = f"import sys, ollama_utils; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert loaded.stdout.split() == []


def test_the_dispatcher_and_batching_load_no_torch() -> None:
    check = (
        "import sys; from ollama_utils import Dispatcher, batch_encode_queries, make_encoder; "
        "print(*sorted({'torch', 'sentence_transformers', 'transformers', 'sklearn'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert loaded.stdout.split() == []
