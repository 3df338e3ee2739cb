"""The flags of `mutagym evolve`: the fields of `search.evolution.AsyncEvolutionConfig`, over a preset."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from train.errors import UserError
from train.searching.config import with_flags
from train.settings import Count, Positive, Share

if TYPE_CHECKING:
    from search.evolution import AsyncEvolutionConfig

_ZERO_IS_NONE = {"hopeless", "patience"}
CountOrNone = Annotated[int, Parameter(validator=Number(gte=0))]
"""A whole number, 0 included."""


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class EvolutionFlags:
    """How prompts evolve; what is not given is as the preset says."""

    population_size: Count | None = None
    """Prompts in a generation [50]."""
    max_generations: CountOrNone | None = None
    """Generations of children after the first population [100]."""
    crossover_rate: Share | None = None
    """The share of children made from two parents; the others are always mutated [0.8]."""
    mutation_rate: Share | None = None
    """The share of children that are mutated again [0.2]."""
    elite_size: Count | None = None
    """The best prompts, kept as they are, at most half of the population [5, or half of a smaller one]."""
    tournament_size: Count | None = None
    """Prompts that meet in a tournament [3]."""
    selection: Literal["tournament", "rank", "roulette"] | None = None
    """How parents are chosen [tournament]."""
    adaptive_rates: bool | None = None
    """Whether the rates follow what helps [yes]."""
    panel_size: Count | None = None
    """Problems that every prompt is scored on, the same in all generations [all that are neither held out nor
    set apart as examples]."""
    held_out: Share | None = None
    """The share of the problems that only the final comparison sees; 0 makes none [0.3]."""
    max_examples: CountOrNone | None = None
    """The most worked examples in a prompt [2]."""
    example_pool: CountOrNone | None = None
    """Problems set apart to be shown as examples [10]."""
    max_unscored: Share | None = None
    """A prompt with a larger share of its problems unscored is no parent and no elite [0.1]."""
    hopeless: Share | None = None
    """The chance of stopping a prompt early that is no worse than the weakest elite; 0 stops none [0.05]."""
    patience: CountOrNone | None = None
    """Ends after so many generations without a better best; 0 goes on to the last one [10]."""
    enable_async_evaluation: bool | None = None
    """Many calls at once, or one after another [many]."""
    async_batch_size: Count | None = None
    """Problems of a prompt after which it is judged whether it is hopeless [20]."""
    max_concurrent_requests: Count | None = None
    """The cap: calls under way at once, over all prompts [10]."""
    genome_batch_size: Count | None = None
    """Children that are made ahead of being scored [10]."""
    max_concurrent_genomes: Count | None = None
    """Prompts that should suffice to give every place work [5]."""
    async_timeout: Positive | None = None
    """Seconds after which one call is given up [--call-timeout-s]."""
    detailed_performance_logging: bool | None = None
    """Whether each generation's performance goes to log.txt in the run folder [as the preset says]."""


def evolution_config(
    flags: EvolutionFlags, preset: str | None, seed: int, rate_limit_per_minute: float | None
) -> AsyncEvolutionConfig:
    """The configuration that the flags amount to.

    Args:
        flags: those that were given.
        preset: what the others are; None: the defaults, without a limit of the rate, as models of one's own
            need none.
        seed: of all chance.
        rate_limit_per_minute: attempts in a minute; 0 sets no limit, None is as the preset says.

    Raises:
        UserError: a value is bad.
    """
    from search.evolution import AsyncEvolutionConfig

    given: dict[str, Any] = {
        each.name: value for each in fields(flags) if (value := getattr(flags, each.name)) is not None
    }
    if rate_limit_per_minute is not None or preset is None:
        given["rate_limit_per_minute"] = rate_limit_per_minute or None
    for name in _ZERO_IS_NONE & given.keys():
        given[name] = given[name] or None
    try:
        return AsyncEvolutionConfig.preset(preset or "balanced", **given, seed=seed)
    except ValueError as error:
        raise UserError(with_flags(error, *(each.name for each in fields(EvolutionFlags)))) from error


def resolved_flags(flags: EvolutionFlags, config: AsyncEvolutionConfig) -> EvolutionFlags:
    """The flags that amount to this configuration whatever a preset says."""
    own = {each.name: getattr(config, each.name) for each in fields(flags) if each.name != "async_timeout"}
    own |= {name: own[name] or 0 for name in _ZERO_IS_NONE}
    # The server's flags have the timeout.
    return replace(flags, **own | {"elite_size": config.elites}, async_timeout=None)
