"""All selectors by name; each is imported when it is first asked for."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search.selectors.selector import Evaluate, Selector

_WHERE = {
    "brute_force": ("brute_force", "BruteForceSelector"),
    "random": ("random_search", "RandomSearchSelector"),
    "hill_climbing": ("hill_climbing", "HillClimbingSelector"),
    "arm_elimination": ("arm_elimination", "ArmEliminationSelector"),
    "threshold": ("threshold", "ThresholdSelector"),
    "epsilon_lucb": ("lucb", "EpsilonLUCBSelector"),
    "bayesian": ("bayesian", "BayesianSelector"),
    "matrix_ucb": ("matrix_ucb", "MatrixUCBSelector"),
}


class _Selectors(Mapping[str, type[Selector]]):
    def __getitem__(self, name: str) -> type[Selector]:
        module, class_name = _WHERE[name]
        found: type[Selector] = getattr(importlib.import_module(f"search.selectors.{module}"), class_name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)


SELECTORS: Mapping[str, type[Selector]] = _Selectors()
"""Name -> class."""


def make_selector(
    name: str,
    choices: Mapping[str, Sequence[Any]],
    dataset: Sequence[Any],
    evaluate: Evaluate,
    **settings: Any,  # noqa: ANN401 - each selector has its own
) -> Selector:
    """A selector by its name.

    Args:
        name: one of `SELECTORS`.
        choices: as of `Selector`.
        dataset: see there.
        evaluate: see there.
        **settings: those of the selector.

    Raises:
        ValueError: there is no such selector or setting, or a setting is out of range, or is not whole.
    """
    if name not in SELECTORS:
        raise ValueError(f"no selector is called {name!r}{_nearest(name, list(SELECTORS))}")
    known = _parameters(name)
    for setting, value in settings.items():
        if setting not in known:
            raise ValueError(
                f"the selector {name} has no setting {setting!r}{_nearest(setting, list(known))}"
            )
        if isinstance(value, float) and str(known[setting].annotation).startswith("int"):
            raise ValueError(f"{setting} is {value!r}; expected a whole number")
    return SELECTORS[name](choices, dataset, evaluate, **settings)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a selector with their defaults, those that all selectors have included."""
    return {setting: parameter.default for setting, parameter in _parameters(name).items()}


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    made = (Selector, SELECTORS[name])
    parameters = [each for one in made for each in inspect.signature(one.__init__).parameters.values()]
    return {each.name: each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
