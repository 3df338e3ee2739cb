"""`class=...`: a policy of the user's own, `my.module.Policy` or `path/to/file.py:Policy`.

The class is made as `Policy(mutators=(...), seed=..., **options)` and has a method `step(view)`.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from records.errors import describe, nearest
from records.user_file import UserFileError, run_source, source_of

if TYPE_CHECKING:
    from types import ModuleType

    from evaluation.policies import Policy

Scalar = str | int | float | bool
"""What an option of a policy can be."""


@dataclass(frozen=True, kw_only=True)
class UserSource:
    """Makes instances of a user's class as its file was when the source was made: a PolicySource.

    It carries the text of the file to other processes, so that whoever saves the file during an
    evaluation changes nothing. What the file imports, and a module, are not carried.
    """

    name: str
    path: str
    """`my.module.Policy` or `/path/to/file.py:Policy`."""
    text: str = field(repr=False)
    """Of the file when the source was made; empty for a module."""
    mutators: tuple[str, ...]
    kwargs: Mapping[str, Scalar]
    """Further arguments of the class."""
    rewords_original: bool
    """Each step rewords the original query; the class says so."""

    def make(self, seed: int) -> Policy:
        """A new instance."""
        made = _load_class(self.path, self.text)(mutators=self.mutators, seed=seed, **self.kwargs)
        return cast("Policy", made)


def user_source(
    name: str, path: str, mutators: Sequence[str], kwargs: Mapping[str, Scalar]
) -> UserSource:
    """The source of a user's class as it is now, checked as far as can be without an instance.

    Raises:
        UserFileError: there is no such class, it has no `step`, or does not take these arguments.
    """
    file, colon, attribute = path.rpartition(":")
    text = ""
    if colon:
        if not file.endswith(".py") or not os.path.isfile(file):  # noqa: PTH113 - no OSError
            raise UserFileError(
                f"no Python file at {file!r}; expected path/to/file.py:Policy, got {path!r}"
            )
        text = source_of(Path(file), repr(file))
        path = f"{Path(file).resolve()}:{attribute}"
    found = _load_class(path, text)
    if not callable(getattr(found, "step", None)):
        raise UserFileError(f"policy class {path!r} has no method step(view) -> int; give it one")
    for key in ("mutators", "seed"):
        if key in kwargs:
            raise UserFileError(f"policy class {path!r} always gets {key!r}; leave {key}= out")
    try:
        inspect.signature(found).bind(mutators=mutators, seed=0, **kwargs)
    except TypeError as error:
        given = ", ".join(("mutators", "seed", *kwargs))
        raise UserFileError(
            f"policy class {path!r} cannot be made with {given}: {error}"
        ) from error
    return UserSource(
        name=name,
        path=path,
        text=text,
        mutators=tuple(mutators),
        kwargs=kwargs,
        rewords_original=bool(getattr(found, "rewords_original", False)),
    )


def _load_class(path: str, text: str) -> type[Any]:
    """The class of a module, or of a file of this text; either is run once in a process."""
    is_file = ":" in path
    where, _, name = path.rpartition(":" if is_file else ".")
    module = run_source(where, text, repr(where)) if is_file else _import(path, where)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [
            each
            for each, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise UserFileError(f"{where!r} has no class {name!r}; {nearest(name, classes)}")
    return found


def _import(path: str, module: str) -> ModuleType:
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise UserFileError(f"{path!r} names no class; expected my.module.Policy or file.py:Policy")
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        to_do = "; put its folder on PYTHONPATH, or name the file: path/to/file.py:Policy"
        raise UserFileError(
            f"module {module!r} cannot be imported: {describe(error)}"
            f"{to_do if isinstance(error, ModuleNotFoundError) else ''}"
        ) from error
