"""Settings: those of the reference document, checked one by one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from search.genetics.config import AsyncEvolutionConfig, EvolutionConfig


def test_the_defaults_and_the_presets_are_those_of_the_reference_document() -> None:
    config = AsyncEvolutionConfig()
    assert (config.population_size, config.max_generations) == (50, 100)
    assert (config.crossover_rate, config.mutation_rate, config.elites) == (0.8, 0.2, 5)
    assert (config.tournament_size, config.selection) == (3, "tournament")
    named = ("async_batch_size", "max_concurrent_requests", "genome_batch_size", "max_concurrent_genomes")

    def limits(preset: AsyncEvolutionConfig) -> list[object]:
        return [*(getattr(preset, name) for name in named), preset.rate_limit_per_minute]

    assert limits(config) == limits(AsyncEvolutionConfig.balanced()) == [20, 10, 10, 5, 3500]
    assert limits(AsyncEvolutionConfig.conservative()) == [10, 5, 5, 3, 2000]
    assert limits(AsyncEvolutionConfig.aggressive()) == [30, 15, 15, 8, 3500]
    assert AsyncEvolutionConfig.balanced().detailed_performance_logging


def test_a_preset_has_a_name_and_takes_other_settings() -> None:
    config = AsyncEvolutionConfig.preset("conservative", population_size=8)
    assert (config.population_size, config.max_concurrent_requests) == (8, 5)
    with pytest.raises(ValueError, match="preset is 'bold'; expected one of balanced, cons"):
        AsyncEvolutionConfig.preset("bold")


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("population_size", 1, "at least 2"),
        ("max_generations", -1, "at least 0"),
        ("crossover_rate", 1.1, "between 0 and 1"),
        ("mutation_rate", float("nan"), "between 0 and 1"),
        ("elite_size", 0, "at least 1"),
        ("tournament_size", 0, "at least 1"),
        ("selection", "luck", "tournament, rank, roulette"),
        ("panel_size", 0, "at least 1"),
        ("held_out", 1.0, "below 1"),
        ("max_examples", -1, "at least 0"),
        ("example_pool", -1, "at least 0"),
        ("max_unscored", 2, "between 0 and 1"),
        ("patience", -1, "at least 0"),
        ("early_stop_level", 1, "below 1"),
        ("async_batch_size", 0, "at least 1"),
        ("max_concurrent_requests", 0, "at least 1"),
        ("genome_batch_size", 0, "at least 1"),
        ("max_concurrent_genomes", 0, "at least 1"),
        ("rate_limit_per_minute", 0, "above 0"),
        ("async_timeout", 0, "above 0"),
        ("population_size", 2.5, "whole number"),
        ("max_concurrent_requests", "10", "whole number"),
        ("seed", "x", "whole number"),
        ("crossover_rate", "often", "number"),
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(setting: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} is .*{expected}"):
        AsyncEvolutionConfig(**cast("dict[str, Any]", {setting: value}))


def test_one_call_at_a_time_without_the_async_evaluation_and_in_the_plain_config() -> None:
    assert EvolutionConfig(population_size=50).schedule.concurrency == 1
    assert EvolutionConfig().schedule.rate_per_minute is None
    assert AsyncEvolutionConfig().schedule.concurrency == 10
    assert AsyncEvolutionConfig(enable_async_evaluation=False).schedule.concurrency == 1


def test_an_elite_above_half_the_population_is_refused_and_not_cut_down() -> None:
    assert EvolutionConfig(population_size=4, elite_size=2).elites == 2
    with pytest.raises(ValueError, match="elite_size is 9; expected at most 2, half of population_size"):
        EvolutionConfig(population_size=4, elite_size=9)


def test_the_default_elite_leaves_half_of_a_small_population_to_children() -> None:
    assert EvolutionConfig().elites == 5
    assert EvolutionConfig(population_size=6).elites == 3
    assert EvolutionConfig(population_size=2).elites == 1


def test_few_genomes_at_a_time_still_give_every_place_work() -> None:
    def together(**changes: Any) -> int:  # noqa: ANN401 - any of the settings
        return AsyncEvolutionConfig(**changes).schedule.batches_at_once

    assert together() == 1
    assert together(async_batch_size=2, max_concurrent_genomes=2, max_concurrent_requests=10) == 3
    assert together(async_batch_size=1, max_concurrent_genomes=1, max_concurrent_requests=10) == 10
