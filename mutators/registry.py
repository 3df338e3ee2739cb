"""Finds mutators by name: the built-in ones, and a user's own in their own file.

A user's file holds decorated functions, and the command line names one as `path/to/file.py:name`:

    from mutators.mutator import by_rule

    @by_rule
    def shout(query, earlier, seed):
        "Say it louder."
        return query.upper()
"""

from __future__ import annotations

from collections.abc import Sequence

from mutators import lexical, rewrite
from mutators.mutator import Mutator, by_model, by_rule
from mutators.system_prompts import INSTRUCTION_CROSSOVERS, INSTRUCTION_MUTATORS
from records.errors import nearest
from records.user_file import UserFileError, load_named

__all__ = [
    "DEFAULT_MUTATORS",
    "EXTRA_MUTATORS",
    "by_model",
    "by_rule",
    "load_mutators",
    "model_mutators",
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
"""The built-in mutators that are chosen from where none is named, as a policy numbers them."""

# Not among the default ones: the simulator's world, and what was measured in it, rest on those.
EXTRA_MUTATORS = (
    lexical.ask_steps,
    lexical.say_harmless,
    lexical.state_purpose,
    lexical.as_steps,
    lexical.as_list,
    lexical.lowercase,
    lexical.typos,
    rewrite.define_terms,
    rewrite.ignore_trigger,
    rewrite.keep_original,
    rewrite.translate_back,
)
"""The other built-in mutators of queries, which differ more from one another."""

_ALL = (*_BUILT_IN, *EXTRA_MUTATORS, *INSTRUCTION_MUTATORS, *INSTRUCTION_CROSSOVERS)
_BY_NAME = {mutator.name: mutator for mutator in _ALL}


def model_mutators() -> tuple[str, ...]:
    """The names of the default mutators that ask a model."""
    return tuple(mutator.name for mutator in _BUILT_IN if mutator.kind == "model")


def load_mutators(names: Sequence[str]) -> tuple[Mutator, ...]:
    """The mutators of these names, in this order.

    Args:
        names: built-in names, those of the mutators of instructions included, and
            `path/to/file.py:name` for a user's own.

    Raises:
        UserFileError: a user's file has no such mutator with a name of its own, or fails.
        ValueError: no name, one that no mutator has, or the same name twice.
    """
    if not names:
        expected = ", ".join(DEFAULT_MUTATORS)
        raise ValueError(f"no mutator named; expected at least one of {expected}")
    mutators: dict[str, Mutator] = {}
    for name in names:
        mutator = _load(name.strip())
        if mutator.name in mutators:
            raise ValueError(f"mutator {mutator.name!r} is named twice; name each one once")
        mutators[mutator.name] = mutator
    return tuple(mutators.values())


def _load(spec: str) -> Mutator:
    if ":" not in spec and not spec.endswith(".py"):
        if spec not in _BY_NAME:
            raise ValueError(f"unknown mutator {spec!r}; {nearest(spec, _BY_NAME)}")
        return _BY_NAME[spec]
    found = load_named(spec, "mutator", lambda value: isinstance(value, Mutator))
    if not isinstance(found, Mutator):
        raise UserFileError(f"{spec} is not a mutator; decorate it with by_model or by_rule")
    if found != _BY_NAME.get(found.name, found):
        taken = f"{spec} has the name of a built-in mutator, {found.name!r}"
        raise UserFileError(f"{taken}; give it another name")
    return found
