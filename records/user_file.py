"""Loads what a user names as `FILE.py:NAME`: a mutator, a scorer, an evaluation, a policy."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from records.errors import nearest, one_line


class UserFileError(ValueError):
    """What `FILE.py:NAME` names is missing or cannot be used; one line says why."""


def load_named(
    spec: str, what: str = "object", is_one: Callable[[object], bool] = lambda _value: True
) -> object:
    """What a user's file has under a name. A file is run once in a process, and again when it has changed.

    Args:
        spec: `FILE.py:NAME`.
        what: is expected, for messages.
        is_one: which of the file's objects an error message may suggest instead.

    Raises:
        UserFileError: no such file or name, it is not a Python file, or it fails or exits while it is
            imported.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise UserFileError(f"{what} {spec!r} cannot be found; expected FILE.py:NAME, as in mine.py:{what}")
    file = Path(path).resolve()
    if not file.is_file():
        raise UserFileError(f"{what} {spec!r} cannot be found: no file at {path!r}; expected FILE.py:NAME")
    if file.suffix != ".py":
        raise UserFileError(f"{path!r} is not a Python file; expected FILE.py:NAME")
    module = run_source(str(file), source_of(file, path), path)
    if not hasattr(module, name):
        own = [each for each, value in vars(module).items() if is_one(value)]
        raise UserFileError(f"{path} has no {what} {name!r}; {nearest(name, own)}")
    return getattr(module, name)


def load_function(
    spec: str, arguments: Sequence[str], what: str = "function", returned: str = "float"
) -> Callable[..., Any]:
    """The plain function of a user's file that can be called with these arguments, in this order.

    Args:
        spec: `FILE.py:NAME`.
        arguments: what it is called with.
        what: is expected, and
        returned: by it; for messages.

    Raises:
        UserFileError: as `load_named` does, or it is not such a function.
    """
    found = load_named(spec, what, inspect.isfunction)
    expected = f"expected a plain def ({', '.join(arguments)}) -> {returned}"
    if any(map(_is_async, (found, getattr(found, "__call__", None)))):  # noqa: B004 - an object's method
        raise UserFileError(f"{what} {spec!r} is an async def; {expected}")
    try:
        inspect.signature(cast("Callable[..., Any]", found)).bind(*arguments)
    except (TypeError, ValueError):
        raise UserFileError(f"{spec!r} is not a function that can be a {what}; {expected}") from None
    return cast("Callable[..., Any]", found)


def error_line(spec: str, error: BaseException) -> str:
    """What was raised, in one line, and in which line of the file of `FILE.py:NAME`, where it was there."""
    file = Path(spec.rpartition(":")[0]).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
    return f"{one_line(error)} (line {lines[-1]})" if lines else one_line(error)


def source_of(file: Path, shown: str) -> str:
    """The text of a Python file, which messages name as `shown`.

    Raises:
        UserFileError: it cannot be read, or is not text.
    """
    try:
        return importlib.util.decode_source(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UserFileError(f"{shown} fails while it is imported: {one_line(error)}") from error


@cache
def run_source(file: str, text: str, shown: str) -> ModuleType:
    """The module of a user's file with this text, under a name that no import or other text clashes with.

    Args:
        file: its path, from the root.
        text: what stands in it, or stood there once.
        shown: what messages call it.

    Raises:
        UserFileError: it fails or exits while it is imported.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"user file {file} {digest}".replace(".", ",")  # pickle imports what stands before a dot
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(cast("ModuleSpec", spec))
    sys.modules[name] = module  # where dataclasses and pickle look a class's module up
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # for tracebacks
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))  # noqa: S102 - the user's own
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserFileError(f"{shown} fails while it is imported: {one_line(error)}") from error
    return module


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def score_of(value: object) -> float | None:
    """A number from 0 to 1 as a float, None for anything else: a text is not a number, whatever it says.

    Args:
        value: what a user's function returned; a bool, or a number of numpy or torch, is a number.
    """
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        return None
    try:
        score = float(value)  # type: ignore[arg-type] # it has __float__
    except Exception:  # noqa: BLE001 - whatever a user's object raises, it is not a score
        return None
    return score if 0 <= score <= 1 else None  # nan is in no range
