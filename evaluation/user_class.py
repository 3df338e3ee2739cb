"""`class=...`: a policy of the user's own, `my.module.Policy` or `path/to/file.py:Policy`.

The class is made as `Policy(mutators=(...), seed=..., **options)` and has a method `step(view)`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evaluation.policies import PolicySource
from records.errors import describe
from records.user_file import UserFileError, load_named, run_source, source_of

Scalar = str | int | float | bool
"""What an option of a policy can be."""


def user_source(
    name: str, path: str, mutators: Sequence[str], options: Mapping[str, Scalar]
) -> PolicySource:
    """The source of a user's class as it is now, checked as far as can be without an instance.

    It carries the text of the class's file to other processes, so that whoever saves the file
    during an evaluation changes nothing. What the file imports, and a module, are not carried.

    Raises:
        UserFileError: there is no such class, it has no `step`, or does not take these arguments.
    """
    text = ""
    if ":" in path:
        file, _, attribute = path.rpartition(":")
        file = str(Path(file).resolve())
        path = f"{file}:{attribute}"
        found = load_named(path, "policy class", inspect.isclass)
        text = source_of(Path(file), file)
    else:
        found = _class_of_module(path)
    if not (inspect.isclass(found) and callable(getattr(found, "step", None))):
        raise UserFileError(f"{path!r} is no class with a method step(view) -> int; give it one")
    try:
        inspect.signature(found).bind(**options, mutators=mutators, seed=0)
    except TypeError as error:
        raise UserFileError(
            f"policy class {path!r} cannot be made with mutators, seed and its options "
            f"{dict(options)!r}: {error}"
        ) from error
    arguments = {"mutators": tuple(mutators), **options}
    return PolicySource(
        name=name,
        make=partial(_make, path, text, arguments),
        rewords_original=bool(getattr(found, "rewords_original", False)),
    )


def _make(path: str, text: str, arguments: Mapping[str, Any], seed: int) -> Any:  # noqa: ANN401 - a user's
    """An instance of the class of a module, or of a file with this text."""
    if text:
        file, _, name = path.rpartition(":")
        found = getattr(run_source(file, text, file), name)
    else:
        found = _class_of_module(path)
    return found(seed=seed, **arguments)


def _class_of_module(path: str) -> Any:  # noqa: ANN401 - a user's
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise UserFileError(f"{path!r} names no class; expected my.module.Policy or file.py:Policy")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        to_do = "; put its folder on PYTHONPATH, or name the file: path/to/file.py:Policy"
        raise UserFileError(
            f"policy class {path!r} cannot be imported: {describe(error)}"
            f"{to_do if isinstance(error, ModuleNotFoundError) else ''}"
        ) from error
