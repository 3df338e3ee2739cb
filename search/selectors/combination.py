"""What is chosen: one choice for each name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search.selectors.dataset import same

_LONGEST = 40
"""Characters of a choice that a label shows."""


class Combination(Mapping[str, Any]):
    """One choice for each name, as a mapping that is never changed; equal choices are equal combinations.

    Args:
        choices: the choice for each name.
    """

    def __init__(self, choices: Mapping[str, Any]) -> None:
        self._choices = dict(choices)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a choice is whatever the caller chooses from
        return self._choices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def __hash__(self) -> int:
        return hash(frozenset((name, _hash(choice)) for name, choice in self._choices.items()))

    def __repr__(self) -> str:
        return f"Combination({self.label})"

    @property
    def label(self) -> str:
        """For people, in one line: `model=large prompt=Think step by step.`."""
        return " ".join(f"{name}={_label(choice)}" for name, choice in self._choices.items())


def combinations(choices: Mapping[str, Sequence[Any]]) -> tuple[Combination, ...]:
    """Every combination of the choices; those of the last name change first.

    Raises:
        ValueError: there is nothing to choose from, or a choice stands twice under one name.
    """
    if not choices:
        raise ValueError("expected choices by name, such as {'model': ['small', 'large']}, got none")
    for name, several in choices.items():
        if isinstance(several, str) or not isinstance(several, Sequence):
            raise ValueError(f"choices[{name!r}] must be a list of choices, got {several!r}")  # noqa: TRY004
        if not several:
            raise ValueError(f"choices[{name!r}] must hold at least one choice, got none")
        for place, choice in enumerate(several):
            if any(same(choice, other) for other in several[:place]):
                raise ValueError(f"choices[{name!r}] holds {choice!r} twice; name each choice once")
    chosen = itertools.product(*choices.values())
    return tuple(Combination(dict(zip(choices, each, strict=True))) for each in chosen)


def _hash(choice: object) -> int:
    try:
        return hash(choice)
    except TypeError:
        return 0


def _label(choice: object) -> str:
    """A name where the choice has one, else its text, in one line."""
    for attribute in ("name", "__name__"):
        if isinstance(name := getattr(choice, attribute, None), str):
            return name
    text = " ".join(str(choice).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
