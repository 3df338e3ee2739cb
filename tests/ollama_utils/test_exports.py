"""The room's public names: each imports in one line, and importing the room loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import ollama_utils

TORCH = ("torch", "sentence_transformers", "transformers", "sklearn")
HEAVY = (*TORCH, "gymnasium", "ollama", "httpx", "numpy")


def test_each_exported_name_can_be_imported_from_the_room() -> None:
    for name in ollama_utils.__all__:
        module = getattr(ollama_utils, name).__module__
        assert module.startswith(("ollama_utils.", "collections.abc")), (name, module)


def test_importing_the_room_loads_no_library_and_the_dispatcher_and_encoders_no_torch() -> None:
    check = (
        f"import sys, ollama_utils; print(sorted(set({HEAVY!r}) & set(sys.modules))); "
        "from ollama_utils import Dispatcher, batch_encode_queries, make_encoder; "
        f"print(sorted(set({TORCH!r}) & set(sys.modules)))"
    )
    command = [sys.executable, "-c", check]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert loaded.stdout == "[]\n[]\n"
