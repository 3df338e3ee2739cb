"""`class=...`: a policy of the user's own, `my.module.Policy` or `path/to/file.py:Policy`.

The class is made as `Policy(mutators=(...), seed=..., **options)` and has a method `step(view)`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from search.policies.nearest import nearest
from search.policies.policy import Policy
from search.policies.specs import Scalar


class PolicyClassError(ValueError):
    """A user's class that is not there, fails while it is imported, or cannot be made."""


@dataclass(frozen=True, kw_only=True)
class UserSource:
    """Makes instances of a user's class; pickled as its name, it loads the class where it is unpickled."""

    name: str
    path: str
    """`my.module.Policy` or `/path/to/file.py:Policy`."""
    mutators: tuple[str, ...]
    kwargs: Mapping[str, Scalar] = field(default_factory=dict)
    """Further arguments of the class."""

    def make(self, seed: int) -> Policy:
        """A new instance."""
        made = load_class(self.path)(mutators=self.mutators, seed=seed, **self.kwargs)
        return cast("Policy", made)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self.name, self.path, self.mutators, dict(self.kwargs))


def user_source(name: str, path: str, mutators: Sequence[str], kwargs: Mapping[str, Scalar]) -> UserSource:
    """The source of a user's class, checked as far as can be without making an instance.

    Raises:
        PolicyClassError: there is no such class, it has no `step`, or does not take these arguments.
    """
    file, colon, attribute = path.rpartition(":")
    path = f"{Path(file).resolve()}:{attribute}" if colon else path
    found = load_class(path)
    if not callable(getattr(found, "step", None)):
        raise PolicyClassError(f"policy class {path!r} has no method step(view) -> int; give it one")
    if twice := {"mutators", "seed"} & set(kwargs):
        raise PolicyClassError(
            f"policy class {path!r} is given {min(twice)!r} as it is; leave {min(twice)}= out"
        )
    try:
        inspect.signature(found).bind(mutators=tuple(mutators), seed=0, **kwargs)
    except TypeError as error:
        given = ", ".join(("mutators", "seed", *kwargs))
        raise PolicyClassError(f"policy class {path!r} cannot be made with {given}: {error}") from error
    return UserSource(name=name, path=path, mutators=tuple(mutators), kwargs=dict(kwargs))


def load_class(path: str) -> type[Any]:
    """The class of this name; a file is run once in a process, and again when it has changed.

    Raises:
        PolicyClassError: there is none, or it cannot be imported.
    """
    file, colon, name = path.rpartition(":")
    if colon:
        module = _run(Path(file), _changed_ns(file))
    else:
        dotted, _, name = path.rpartition(".")
        if not dotted or not all(part.isidentifier() for part in path.split(".")):
            raise PolicyClassError(f"{path!r} names no class; expected my.module.Policy or file.py:Policy")
        module = _import(dotted)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        own = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise PolicyClassError(f"{file or dotted!r} has no class {name!r}; {nearest(name, own)}")
    return found


def _unpickled(name: str, path: str, mutators: tuple[str, ...], kwargs: Mapping[str, Scalar]) -> UserSource:
    """A source whose class is loaded, so that what is unpickled after it may be an instance of it."""
    load_class(path)
    return UserSource(name=name, path=path, mutators=mutators, kwargs=kwargs)


def _import(dotted: str) -> ModuleType:
    try:
        return importlib.import_module(dotted)
    except (Exception, SystemExit) as error:
        where = (
            ""
            if not isinstance(error, ModuleNotFoundError)
            else ("; put its folder on PYTHONPATH, or name the file: path/to/file.py:Policy")
        )
        raise PolicyClassError(f"module {dotted!r} cannot be imported: {_line(error)}{where}") from error


def _changed_ns(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError as error:
        raise PolicyClassError(f"no policy file at {file!r}; expected path/to/file.py:Policy") from error


@cache
def _run(file: Path, _changed_ns: int) -> ModuleType:
    """The module of a user's file as of its last change, under a name that no import can clash with."""
    name = f"policies of {file}".replace(".", ",")  # pickle imports what stands before a dot
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PolicyClassError(f"{str(file)!r} is no Python file; expected path/to/file.py:Policy")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle looks a class's module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PolicyClassError(f"{str(file)!r} fails while it is imported: {_line(error)}") from error
    return module


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
