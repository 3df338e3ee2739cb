"""Selectors by name, and random search."""

from __future__ import annotations

import pytest

from search.selectors.random_search import RandomSearchSelector
from search.selectors.registry import SELECTORS, make_selector, selector_class, settings_of
from search.selectors.selector import Selector
from tests.search.selectors.tables import grid


def test_every_selector_has_the_name_it_is_found_by() -> None:
    assert len(SELECTORS) == 8
    for name in SELECTORS:
        assert issubclass(selector_class(name), Selector)
        assert selector_class(name).name == name


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("brute_forse", {}, "no selector is called 'brute_forse'; did you mean brute_force?"),
        ("zzz", {}, "no selector is called 'zzz'; expected one of brute_force, random, "),
        (
            "epsilon_lucb",
            {"epsilom": 1},
            "the selector epsilon_lucb has no setting 'epsilom'; did you mean epsilon",
        ),
    ],
)
def test_an_unknown_name_or_setting_is_one_line_with_the_nearest(
    name: str, settings: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make_selector(name, grid(2), [1], lambda _c, _d: 1.0, **settings)


@pytest.mark.parametrize("name", SELECTORS)
def test_a_count_that_is_not_whole_is_one_line(name: str) -> None:
    whole = {setting for setting, default in settings_of(name).items() if isinstance(default, int)}
    for setting in whole | {"ahead", "n_initial", "batch_size"} & set(settings_of(name)):
        with pytest.raises(ValueError, match=f"{setting} is 2.5; expected a whole number"):
            make_selector(name, grid(2), [1], lambda _c, _d: 1.0, **{setting: 2.5})


def test_settings_come_with_their_defaults() -> None:
    assert settings_of("threshold") == {
        "seed": 0,
        "delta": 0.05,
        "max_errors": 0.1,
        "ahead": None,
        "threshold": 0.75,
        "n_initial": None,
        "pulls_per_round": None,
    }


@pytest.mark.parametrize(
    ("total", "fraction", "count"), [(9, 0.25, 3), (8, 0.25, 2), (1, 0.25, 1), (10, 0.3, 3)]
)
def test_random_search_draws_a_share_rounded_up_without_replacement(
    total: int, fraction: float, count: int
) -> None:
    selectors = [
        RandomSearchSelector(grid(total), [1], lambda _c, _d: 1.0, sample_fraction=fraction, seed=seed)
        for seed in range(20)
    ]
    assert all(len(set(selector.drawn)) == count for selector in selectors)
    assert len({number for selector in selectors for number in selector.drawn}) == total


def test_a_setting_out_of_range_is_one_line() -> None:
    for name, settings, said in (
        ("random", {"sample_fraction": 0.0}, "sample_fraction must be above 0 and at most 1, got 0.0"),
        ("random", {"sample_fraction": 1.5}, "sample_fraction must be above 0 and at most 1, got 1.5"),
        ("hill_climbing", {"iterations": 0}, "iterations must be at least 1, got 0"),
        ("hill_climbing", {"restarts": 0}, "restarts must be at least 1, got 0"),
        ("hill_climbing", {"patience": 0}, "patience must be at least 1, got 0"),
        ("hill_climbing", {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ("arm_elimination", {"n_initial": 0}, "n_initial must be at least 1, got 0"),
        ("arm_elimination", {"growth_factor": 0.5}, "growth_factor must be at least 1, got 0.5"),
        ("threshold", {"threshold": 1.0}, "threshold must be above 0 and below 1, got 1.0"),
        ("brute_force", {"ahead": -1}, "ahead must be at least 0, got -1"),
        ("threshold", {"pulls_per_round": 0}, "pulls_per_round must be at least 1, got 0"),
        ("threshold", {"n_initial": 0}, "n_initial must be at least 1, got 0"),
        ("epsilon_lucb", {"epsilon": -0.1}, "epsilon must be from 0 to 1, got -0.1"),
        ("epsilon_lucb", {"n_initial": 0}, "n_initial must be at least 1, got 0"),
        ("epsilon_lucb", {"pulls_per_round": 0}, "pulls_per_round must be at least 1, got 0"),
        ("bayesian", {"budget": 0.0}, "budget must be above 0 and at most 1, got 0.0"),
        ("bayesian", {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ("matrix_ucb", {"budget": 1.5}, "budget must be above 0 and at most 1, got 1.5"),
        ("matrix_ucb", {"rank": -1}, "rank must be at least 0, got -1"),
        ("matrix_ucb", {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ("matrix_ucb", {"width": -1.0}, "expected width and exploration of 0 or more, got -1.0 and 1.0"),
        ("matrix_ucb", {"members": 1}, "two members and a ridge above 0, got .* 1 members"),
    ):
        with pytest.raises(ValueError, match=said):
            make_selector(name, grid(2), range(5), lambda _c, _d: 0.0, **settings)
