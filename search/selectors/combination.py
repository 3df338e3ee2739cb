"""What a selection chooses from, and on what: combinations, their neighbours, and datapoints."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def distinct(dataset: Sequence[Any]) -> list[Any]:
    """The datapoints in their order, equal ones once.

    Equal are those that Python or, where they cannot be hashed, JSON says are equal. What JSON cannot write
    is compared with `==`; where that gives no yes or no, as with arrays, a datapoint equals only itself.
    """
    known: set[Hashable] = set()
    others: list[Any] = []
    found = []
    for datapoint in dataset:
        key = _key(datapoint)
        if key is None:
            if any(same(datapoint, other) for other in others):
                continue
            others.append(datapoint)
        elif key in known:
            continue
        else:
            known.add(key)
        found.append(datapoint)
    return found


def shuffled(dataset: Sequence[Any], chance: np.random.Generator) -> tuple[Any, ...]:
    """The distinct datapoints in an order that chance makes.

    Raises:
        ValueError: there is none.
    """
    found = distinct(dataset)
    if not found:
        raise ValueError("expected a dataset of at least one datapoint, got none")
    return tuple(found[index] for index in chance.permutation(len(found)))


def _key(datapoint: object) -> Hashable | None:
    try:
        hash(datapoint)
    except TypeError:
        try:
            return ("as JSON", json.dumps(datapoint, sort_keys=True))
        except (TypeError, ValueError):
            return None
    return ("as it is", datapoint)


def same(one: object, other: object) -> bool:
    """Whether they are one, or `==` says that they are equal; where it gives no yes or no they are not."""
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - whatever a comparison raises, it does not say that they are equal
        return False


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
    def labels(self) -> dict[str, str]:
        """What each choice is called for people, in one line, by its name."""
        return {name: _label(choice) for name, choice in self._choices.items()}

    @property
    def label(self) -> str:
        """For people, in one line: `model=large prompt=Think step by step.`."""
        return " ".join(f"{name}={label}" for name, label in self.labels.items())


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


Places = tuple[int, ...]
"""For each name the number of the choice."""


def places_of(shape: Sequence[int]) -> tuple[Places, ...]:
    """The places of every combination, in the order of `combinations`.

    Args:
        shape: how many choices each name has.
    """
    return tuple(itertools.product(*(range(count) for count in shape)))


def neighbours(places: Places, shape: Sequence[int]) -> list[Places]:
    """Those that differ from it in one choice."""
    return [
        (*places[:name], choice, *places[name + 1 :])
        for name, count in enumerate(shape)
        for choice in range(count)
        if choice != places[name]
    ]


def by_marginal_means(candidates: Sequence[Places], measured: Mapping[Places, float]) -> list[Places]:
    """The candidates, the most promising first: by the mean, over their choices, of how each choice did.

    How a choice did is the mean score of the measured combinations that have it; one that none has yet did
    as all did on average. Equals stay in their order.
    """
    overall = sum(measured.values()) / len(measured) if measured else 0.0
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for places, score in measured.items():
        for each in enumerate(places):
            total, count = sums.get(each, (0.0, 0))
            sums[each] = total + score, count + 1
    means = {each: total / count for each, (total, count) in sums.items()}
    return sorted(candidates, key=lambda at: -sum(means.get(each, overall) for each in enumerate(at)))


_ROUNDING = 1e-9


def part_of(total: int, share: float, name: str) -> int:
    """This share of the total, rounded up, at least 1; a product that is whole but for rounding is whole.

    Args:
        total: at least 1.
        share: above 0, at most 1.
        name: what the setting is called.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {share!r}")
    return max(1, math.ceil(share * total - _ROUNDING))


def plan_concurrency(max_concurrent: int, batch_size: int) -> tuple[int, int]:
    """(combinations side by side, datapoints of each side by side); their product is at most the cap.

    Datapoints come first: it is better to finish one combination soon than to begin many. This is the plan
    for whole combinations; slots that it leaves over go to the next combination's datapoints all the same
    (`ollama_utils.plans`).

    Args:
        max_concurrent: the most evaluations at once.
        batch_size: how many datapoints of one combination there are to evaluate.

    Raises:
        ValueError: one of them is below 1.
    """
    for name, value in (("max_concurrent", max_concurrent), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    datapoints = min(max_concurrent, batch_size)
    return max_concurrent // datapoints, datapoints
