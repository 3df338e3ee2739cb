"""Loads what a user names as `FILE.py:NAME`: a mutator, a scorer, an evaluation, a policy."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from records.errors import describe, nearest


class UserFileError(ValueError):
    """What `FILE.py:NAME` names is missing or cannot be used; one line says why."""


def load_named(spec: str, what: str, is_one: Callable[[object], bool]) -> object:
    """What `FILE.py:NAME` names; a file is run once, and again when it has changed.

    That there is no such file or name, or that the file fails, is a UserFileError, which calls it
    `what` and may suggest an object of the file that `is_one`.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path).resolve()
    if file.suffix != ".py" or not name.isidentifier():
        raise UserFileError(f"expected FILE.py:NAME, as in mine.py:{what}, got {what} {spec!r}")
    if not os.path.isfile(file):  # noqa: PTH113 - False for what is too long for a path, too
        raise UserFileError(
            f"{what} {spec!r:.200} cannot be found: there is no such file; expected FILE.py:NAME"
        )
    module = run_source(str(file), source_of(file, path), path)
    if not hasattr(module, name):
        own = [each for each, value in vars(module).items() if is_one(value)]
        raise UserFileError(f"{path} has no {what} {name!r}; {nearest(name, own)}")
    return getattr(module, name)


def load_function(
    spec: str, arguments: Sequence[str], what: str, returned: str = "float"
) -> Callable[..., Any]:
    """The plain function that `FILE.py:NAME` names, which takes these arguments in this order.

    If it is none, a UserFileError says `what` is expected, and what is to be `returned` by it.
    """
    found = cast("Callable[..., Any]", load_named(spec, what, inspect.isfunction))
    expected = f"expected a plain def ({', '.join(arguments)}) -> {returned}"
    if inspect.iscoroutinefunction(found):
        raise UserFileError(f"{what} {spec!r} is an async def; {expected}")
    try:
        inspect.signature(found).bind(*arguments)
    except (TypeError, ValueError):
        raise UserFileError(f"{spec!r} cannot be a {what}; {expected}") from None
    return found


def error_line(spec: str, error: BaseException) -> str:
    """An error in one line, with the number of the line of `FILE.py:NAME` that raised it."""
    file = Path(spec.rpartition(":")[0]).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
    return f"{describe(error)} (line {lines[-1]})" if lines else describe(error)


def source_of(file: Path, name: str) -> str:
    """The text of a Python file, which messages call `name`; a UserFileError if it has none."""
    try:
        return importlib.util.decode_source(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UserFileError(f"{name} fails while it is imported: {describe(error)}") from error


@cache
def run_source(file: str, text: str, name: str) -> ModuleType:
    """The module of a user's file with this text, named as no import and no other text is.

    That it fails or exits is a UserFileError, which calls the file `name`.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    # pickle imports what stands before a dot, and looks a class's module up in sys.modules.
    module = ModuleType(f"user file {file} {digest}".replace(".", ","))
    module.__file__ = file
    sys.modules[module.__name__] = module
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # for tracebacks
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))  # noqa: S102 - the user's own
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise UserFileError(f"{name} fails while it is imported: {describe(error)}") from error
    return module


def score_of(value: object) -> float | None:
    """A number from 0 to 1 as a float, be it a bool, numpy's or torch's; None for anything else."""
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        return None
    try:
        score = float(value)  # type: ignore[arg-type] # it has __float__
    except Exception:  # noqa: BLE001 - whatever a user's object raises, it is not a score
        return None
    return score if 0 <= score <= 1 else None  # nan is in no range
