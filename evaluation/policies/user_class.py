"""`class=...`: a policy of the user's own, `my.module.Policy` or `path/to/file.py:Policy`.

The class is made as `Policy(mutators=(...), seed=..., **options)` and has a method `step(view)`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from evaluation.policies.policy import Policy
from records.errors import describe, nearest
from records.user_file import UserFileError, run_source, source_of

Scalar = str | int | float | bool
"""What an option of a policy can be."""


@dataclass(frozen=True, kw_only=True)
class UserSource:
    """Makes instances of a user's class as its file was when the source was made, in other processes too.

    A source carries the text of the file: whoever saves it during a long evaluation changes nothing, and
    stops nothing. What the file imports is not carried. Nor is a module, which is what it is only in its
    package; a process that would have to import one that has changed since refuses instead.
    """

    name: str
    path: str
    """`my.module.Policy` or `/path/to/file.py:Policy`."""
    text: str = field(repr=False)
    """Of the file or module when the source was made; empty for a module that is not written in Python."""
    mutators: tuple[str, ...]
    kwargs: Mapping[str, Scalar] = field(default_factory=dict)
    """Further arguments of the class."""

    def make(self, seed: int) -> Policy:
        """A new instance."""
        made = load_class(self.path, self.text)(mutators=self.mutators, seed=seed, **self.kwargs)
        return cast("Policy", made)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self.name, self.path, self.text, self.mutators, dict(self.kwargs))


def user_source(name: str, path: str, mutators: Sequence[str], kwargs: Mapping[str, Scalar]) -> UserSource:
    """The source of a user's class as it is now, checked as far as can be without making an instance.

    Raises:
        UserFileError: there is no such class, it has no `step`, or does not take these arguments.
    """
    file, colon, attribute = path.rpartition(":")
    if colon:
        path = f"{Path(file).resolve()}:{attribute}"
        text = _file_text(file)
    else:
        text = _module_text(_import(path.rpartition(".")[0], path))
    found = load_class(path, text)
    if not callable(getattr(found, "step", None)):
        raise UserFileError(f"policy class {path!r} has no method step(view) -> int; give it one")
    if twice := {"mutators", "seed"} & set(kwargs):
        raise UserFileError(
            f"policy class {path!r} is given {min(twice)!r} as it is; leave {min(twice)}= out"
        )
    try:
        inspect.signature(found).bind(mutators=tuple(mutators), seed=0, **kwargs)
    except TypeError as error:
        given = ", ".join(("mutators", "seed", *kwargs))
        raise UserFileError(f"policy class {path!r} cannot be made with {given}: {error}") from error
    return UserSource(name=name, path=path, text=text, mutators=tuple(mutators), kwargs=dict(kwargs))


def load_class(path: str, text: str) -> type[Any]:
    """The class of this name in a file, or a module, with this text; either is run once in a process.

    Raises:
        UserFileError: there is none, it cannot be imported, or the module has another text by now.
    """
    colon = ":" in path
    where, _, name = path.rpartition(":" if colon else ".")
    module = run_source(where, text, repr(where)) if colon else _import_unchanged(where, text)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        own = [
            each
            for each, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise UserFileError(f"{where!r} has no class {name!r}; {nearest(name, own)}")
    return found


def _unpickled(
    name: str, path: str, text: str, mutators: tuple[str, ...], kwargs: Mapping[str, Scalar]
) -> UserSource:
    """A source whose class is loaded, so that what is unpickled after it may be an instance of it."""
    load_class(path, text)
    return UserSource(name=name, path=path, text=text, mutators=mutators, kwargs=kwargs)


def _import(dotted: str, path: str) -> ModuleType:
    if not dotted or not all(part.isidentifier() for part in path.split(".")):
        raise UserFileError(f"{path!r} names no class; expected my.module.Policy or file.py:Policy")
    try:
        return importlib.import_module(dotted)
    except (Exception, SystemExit) as error:
        to_do = "; put its folder on PYTHONPATH, or name the file: path/to/file.py:Policy"
        hint = to_do if isinstance(error, ModuleNotFoundError) else ""
        raise UserFileError(f"module {dotted!r} cannot be imported: {describe(error)}{hint}") from error


@cache
def _import_unchanged(dotted: str, text: str) -> ModuleType:
    """The module, which is compared when this process first needs it: what it has loaded stays loaded."""
    module = importlib.import_module(dotted)
    if _module_text(module) != text:
        raise UserFileError(
            f"module {dotted!r} has changed since this began; leave it as it is until all is done"
        )
    return module


def _file_text(file: str) -> str:
    if not Path(file).is_file():
        raise UserFileError(f"no policy file at {file!r}; expected path/to/file.py:Policy")
    if Path(file).suffix != ".py":
        raise UserFileError(f"{file!r} is not a Python file; expected path/to/file.py:Policy")
    return source_of(Path(file), repr(file))


def _module_text(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):  # it is empty, or not written in Python
        return ""
