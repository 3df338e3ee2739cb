"""Finds mutators by name: the built-in ones, and a user's own in their own file.

A user's file holds decorated functions, and the command line names one as `path/to/file.py:name`:

    from mutators.registry import by_rule

    @by_rule
    def shout(query, earlier, seed):
        "Say it louder."
        return query.upper()
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from mutators import lexical, rewrite
from mutators.mutator import Mutator, by_model, by_rule
from mutators.system_prompts import INSTRUCTION_CROSSOVERS, INSTRUCTION_MUTATORS
from records.user_file import run_file

__all__ = [
    "DEFAULT_MUTATORS",
    "MutatorFileError",
    "UnknownMutatorError",
    "by_model",
    "by_rule",
    "load_mutators",
]

_BUILT_IN = (
    lexical.noop,
    rewrite.paraphrase,
    rewrite.add_context,
    rewrite.change_perspective,
    rewrite.clarify_intent,
    rewrite.shorten,
    rewrite.expand,
    rewrite.simplify,
    rewrite.formalize,
    lexical.add_politeness,
    lexical.synonym_replace,
    rewrite.passive_voice,
    rewrite.generate_similar,
    rewrite.crossover,
)

DEFAULT_MUTATORS: tuple[str, ...] = tuple(mutator.name for mutator in _BUILT_IN)
"""The names of all built-in mutators of queries, in the order in which a policy numbers them."""

_BY_NAME = {mutator.name: mutator for mutator in (*_BUILT_IN, *INSTRUCTION_MUTATORS, *INSTRUCTION_CROSSOVERS)}


class UnknownMutatorError(ValueError):
    """A name that no mutator has. The message gives the nearest names."""


class MutatorFileError(ValueError):
    """A user's file that is not there, or that fails or exits while it is imported."""


def load_mutators(names: Sequence[str]) -> tuple[Mutator, ...]:
    """The mutators of these names, in this order.

    Args:
        names: Built-in names, those of the mutators of instructions included, and `path/to/file.py:name`
            for a user's own. A file is run once in a process, and again when it has changed.

    Raises:
        UnknownMutatorError: No mutator has this name.
        MutatorFileError: A file is missing or fails while it is imported.
        ValueError: No name, the same name twice, or a user's mutator named as a built-in one.
    """
    if not names:
        raise ValueError(f"no mutator named; expected at least one of {', '.join(DEFAULT_MUTATORS)}")
    mutators = tuple(_load(spec.strip()) for spec in names)
    seen: set[str] = set()
    for mutator in mutators:
        if mutator.name in seen:
            raise ValueError(f"mutator {mutator.name!r} is named twice; name each one once")
        seen.add(mutator.name)
    return mutators


def _load(spec: str) -> Mutator:
    path, colon, name = spec.rpartition(":")
    if colon or spec.endswith(".py"):
        return _load_own(path, name)
    if spec not in _BY_NAME:
        raise UnknownMutatorError(f"unknown mutator {spec!r}; {_nearest(spec, tuple(_BY_NAME))}")
    return _BY_NAME[spec]


def _load_own(path: str, name: str) -> Mutator:
    if not path or not name:
        raise UnknownMutatorError(
            f"{path or name!r} names no mutator; expected FILE.py:NAME, as in mine.py:shout"
        )
    file = Path(path).resolve()
    if not file.is_file():
        raise MutatorFileError(f"no mutator file at {path!r}; expected FILE.py:NAME")
    module = _run(file, path, file.stat().st_mtime_ns)
    found = getattr(module, name, None)
    if found is None:
        own = [each for each, value in vars(module).items() if isinstance(value, Mutator)]
        raise UnknownMutatorError(f"{path} has no mutator {name!r}; {_nearest(name, own)}")
    if not isinstance(found, Mutator):
        raise UnknownMutatorError(f"{path}:{name} is no mutator; decorate it with by_model or by_rule")
    if found.name in _BY_NAME and found != _BY_NAME[found.name]:
        raise ValueError(
            f"{path}:{name} has the name of a built-in mutator, {found.name!r}; give it another name"
        )
    return found


@cache
def _run(file: Path, path: str, _changed_ns: int) -> ModuleType:
    """The module of a user's file as of its last change."""
    return run_file(file, "mutators", shown=path, error=MutatorFileError)


def _nearest(name: str, names: Sequence[str]) -> str:
    """What to try instead: the nearest names, or all of them when none is near."""
    if not names:
        return "it has none: decorate one with by_model or by_rule"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"expected one of {', '.join(names)}"
