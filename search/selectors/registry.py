"""All selectors by name; each is imported when it is first asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from records.errors import nearest
from search.selectors.selector import Evaluate, Selector

SELECTORS: Mapping[str, str] = {
    "brute_force": "random_search.BruteForceSelector",
    "random": "random_search.RandomSearchSelector",
    "hill_climbing": "hill_climbing.HillClimbingSelector",
    "arm_elimination": "arm_elimination.ArmEliminationSelector",
    "threshold": "threshold.ThresholdSelector",
    "epsilon_lucb": "lucb.EpsilonLUCBSelector",
    "bayesian": "bayesian.BayesianSelector",
    "matrix_ucb": "matrix_ucb.MatrixUCBSelector",
}
"""Name -> module.class."""


def selector_class(name: str) -> type[Selector]:
    """The class of a selector, whose module is imported now.

    Raises:
        ValueError: there is no such selector.
    """
    if name not in SELECTORS:
        raise ValueError(f"no selector is called {name!r}; {nearest(name, SELECTORS)}")
    module, _, class_name = SELECTORS[name].partition(".")
    found: type[Selector] = getattr(importlib.import_module(f"search.selectors.{module}"), class_name)
    return found


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
    known = _parameters(name)
    for setting, value in settings.items():
        if setting not in known:
            raise ValueError(f"the selector {name} has no setting {setting!r}; {nearest(setting, known)}")
        if isinstance(value, float) and str(known[setting].annotation).startswith("int"):
            raise ValueError(f"{setting} is {value!r}; expected a whole number")
    return selector_class(name)(choices, dataset, evaluate, **settings)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a selector with their defaults, those that all selectors have included."""
    return {setting: parameter.default for setting, parameter in _parameters(name).items()}


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    made = (Selector, selector_class(name))
    parameters = [each for one in made for each in inspect.signature(one.__init__).parameters.values()]
    return {each.name: each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
