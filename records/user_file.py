"""Runs a user's own Python file, as mutators and scorers are brought along."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def run_file(file: Path, what: str, *, shown: str, error: type[ValueError] = ValueError) -> ModuleType:
    """The module of a user's file, under a name that no import can clash with; it is run anew at each call.

    Args:
        file: with its whole path.
        what: it has, as in "mutators".
        shown: how messages call the file.
        error: what is raised.

    Raises:
        ValueError: as `error`: it is no Python file, or it fails or exits while it is imported.
    """
    name = f"{what} of {file}".replace(".", ",")  # pickle imports what stands before a dot
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise error(f"{shown!r} is no Python file; expected FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look a class's module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as cause:
        del sys.modules[name]
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise error(f"{shown} fails while it is imported: {reason}") from cause
    return module
