"""The settings of an evolution.

`mutagym evolve` makes its flags of them, elsewhere: annotations are types here, not strings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter
from cyclopts.validators import Number

from records.settings import Count, CountOrZero, Positive, Share
from search.config import check_numbers

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {"rate_limit_per_minute": 3500, "detailed_performance_logging": True},
    "conservative": {
        "async_batch_size": 10,
        "max_concurrent_requests": 5,
        "genome_batch_size": 5,
        "max_concurrent_genomes": 3,
        "rate_limit_per_minute": 2000,
    },
    "aggressive": {
        "async_batch_size": 30,
        "max_concurrent_requests": 15,
        "genome_batch_size": 15,
        "max_concurrent_genomes": 8,
        "rate_limit_per_minute": 3500,
    },
}
MOST_STEPS = 3
"""Rewordings that make a prompt of the first population; later ones take two."""
_ELITES = 5
"""Prompts that are kept by default."""


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """How prompts evolve: by itself one call at a time; the result is the same with many.

    Raises ValueError if a value is out of its range.
    """

    population_size: Annotated[Count, Parameter(validator=Number(gte=2))] = 50
    """Prompts in a generation, at least 2."""
    max_generations: CountOrZero = 100
    """Generations of children after the first population; 0 scores the first population alone."""
    crossover_rate: Share = 0.8
    """The share of children made from two parents; the others are always mutated."""
    mutation_rate: Share = 0.2
    """The share of children of two parents that are mutated as well."""
    elite_size: Count | None = None
    """The best prompts, which stay; at most half of the population [5, or half of a small one]."""
    tournament_size: Count = 3
    """A parent is the best of so many prompts drawn by chance."""
    seed: Annotated[int, Parameter(parse=False)] = 0
    """Of all chance; the same seed and the same replies give the same result."""
    panel_size: Count | None = None
    """Problems that every prompt is scored on, the same in all generations [all that are not held
    out; at most 40 in `mutagym evolve`]."""
    held_out: Share = 0.3
    """The share of the problems that only the final comparison sees; 0 holds out nothing."""
    failures_shown: CountOrZero = 5
    """The most problems that a prompt got wrong which the model is shown to specialize the prompt;
    0 never specializes one."""
    max_unscored: Share = 0.1
    """A prompt with a larger share of its problems unscored is no parent and no elite."""
    early_stop_level: Annotated[float, Parameter(validator=Number(gte=0, lte=0.5))] = 0.05
    """The chance of stopping a prompt early that is no worse than the weakest elite, 0.5 at most; 0
    stops none."""
    patience: CountOrZero = 10
    """Ends after so many generations without a better best; 0 goes on to the last one."""
    enable_async_evaluation: bool = False
    """Whether calls are made concurrently, or one after another."""
    async_batch_size: Count = 20
    """Problems of a prompt that are asked together; after each batch it may be stopped."""
    max_concurrent_requests: Count = 10
    """The most calls in flight at once, rewordings and answers together."""
    genome_batch_size: Count = 10
    """Children that are made at once: some are reworded while others are scored."""
    max_concurrent_genomes: Count = 5
    """Prompts that are scored at once, a batch of each: to use every call in flight, the product
    with --async-batch-size should be well above --max-concurrent-requests."""
    rate_limit_per_minute: Annotated[float | None, Parameter(parse=False)] = None
    """The most requests in a minute, those of others on the same dispatcher included; None sets no
    limit."""
    async_timeout: Positive | None = None
    """Seconds after which one call is given up [--call-timeout-s; in Python 120, where the search
    makes its own dispatcher]."""
    detailed_performance_logging: bool = False
    """Whether each generation's performance goes to the log."""

    def __post_init__(self) -> None:
        check_numbers(vars(self), get_type_hints(type(self), include_extras=True))
        half = self.population_size // 2
        if self.elites > half:
            what = f"expected at most {half}, half of population_size"
            raise ValueError(f"elite_size is {self.elite_size!r}; {what}")

    @property
    def elites(self) -> int:
        """How many prompts of a generation are kept."""
        return self.elite_size or min(_ELITES, self.population_size // 2)

    def at_once(self, count: int) -> int:
        """So many; one where calls are made one after another."""
        return count if self.enable_async_evaluation else 1

    def most_calls(self, panel_size: int) -> int:
        """The calls that a generation takes at most, on a panel of so many problems."""
        return self.population_size * (panel_size + MOST_STEPS)


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class AsyncEvolutionConfig(EvolutionConfig):
    """How prompts evolve with many calls in flight."""

    enable_async_evaluation: bool = True
    """Whether calls are made concurrently, or one after another."""
    rate_limit_per_minute: Annotated[float | None, Parameter(parse=False)] = 3500


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class EvolutionFlags(AsyncEvolutionConfig):
    """Those of `mutagym evolve`: within half an hour on a model that answers 5 calls a second."""

    population_size: Annotated[Count, Parameter(validator=Number(gte=2))] = 16
    """Prompts in a generation, at least 2."""
    max_generations: CountOrZero = 10
    """Generations of children after the first population; 0 scores the first population alone."""


def preset_defaults(name: str | None) -> dict[str, Any]:
    """The flags that a preset sets, for what is not given; without one `balanced`, unlimited.

    A name that does not exist sets none: it is refused as any bad flag is.
    """
    changed = PRESETS.get(name or "balanced", {})
    flags = {field.replace("_", "-"): value for field, value in changed.items()}
    if name is None:
        del flags["rate-limit-per-minute"]
    return flags
