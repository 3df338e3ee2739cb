"""Files that are written whole or not at all, and the places for results that a user names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from records.errors import UserError
from records.settings import STDOUT

PART = ".part-"
"""Begins the name of a file that is not whole yet."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to, which replaces it once it is whole and on disk.

    Its name ends as that of `path` does: SB3 adds an ending to a file that has none. What has that
    name is deleted first, and no link there is followed: the folder may be anybody's.
    """
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{PART}{path.name}")
    part.unlink(missing_ok=True)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Gives where to write a file that a user names: a regular one is replaced, see `replacing`.

    A device, a pipe or a link is written into, such as /dev/stdout.
    """
    if _is_replaced(path):
        with replacing(path) as part:
            yield part
    else:
        yield path


def check_writable(
    path: Path | None, flag: str = "--json", *, apart_from: Path | None = None
) -> None:
    """Check, before the work is done, that its result can be written; a UserError if not.

    Args:
        path: what `flag` names; None: it names nothing; of `--json`, `-` is standard output.
        flag: is named in the error.
        apart_from: a run that is read or written: its files are its own.
    """
    if path is None or (path == STDOUT and flag == "--json"):
        return
    names = f"{flag} names {str(path)!r}"
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{names}; expected a file in a folder that exists")
    if apart_from:
        check_apart(path, apart_from, flag)
    if not os.access(path.parent if _is_replaced(path) else path, os.W_OK):
        raise UserError(f"{names}, which may not be written: name another file")


def check_apart(path: Path, run: Path, flag: str) -> None:
    """Check that what `flag` names is not in the folder of a run; a UserError if it is."""
    if path.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{flag} names {str(path)!r}, in the folder of the run: name another place")


def check_different(*paths: Path | None) -> None:
    """Check that no two of the files that a command reads and writes are one; else a UserError."""
    named = [path for path in paths if path and path != STDOUT]
    places = [path.resolve() for path in named]
    twice = [path for path, place in zip(named, places, strict=True) if places.count(place) > 1]
    if twice:
        raise UserError(f"{str(twice[-1])!r} is named twice: name another file")


def check_cache(path: Path | None) -> None:
    """Make the folder of a cache; a UserError if it cannot be made or written."""
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError("it is read-only")
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise UserError(
            f"--cache names {str(path)!r}; expected a folder that can be written: {error}"
        ) from error


def _is_replaced(path: Path) -> bool:
    return not path.is_symlink() and (path.is_file() or not path.exists())
