"""The settings of an evolution, and the checks of every value.

A command's settings inherit these: annotations here are types, not strings, for the flags are read off them
in other modules.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from cyclopts import Parameter

from records.settings import Count, CountOrZero, Positive, Share, without_flag
from search.genetics.selection import SELECTIONS

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {"detailed_performance_logging": True},
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
"""What differs from the defaults, by the preset's name."""

_MOST_STEPS = 2
"""Rewordings that make a child: it may be crossed, and mutated."""
_ELITES = 5
"""Genomes that are kept where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """In what order the calls go out, and how many at once; what evolves depends on `batch_size` alone."""

    concurrency: int = 1
    """The most calls under way at once."""
    rate_per_minute: float | None = None
    """The most attempts in a minute; None sets no limit."""
    timeout_s: float = 120.0
    """The seconds after which an attempt without a whole reply counts as failed."""
    batch_size: int = 20
    """Problems of a genome after which it is judged whether to stop it."""
    batches_at_once: int = 1
    """Batches of a genome that are asked together."""
    drafts_ahead: int = 1
    """Children that are made before the first of them is scored."""
    logs_performance: bool = False
    """Whether each generation's performance goes to the log."""


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """How prompts evolve, one call at a time; a bad value raises ValueError and says what was expected."""

    population_size: Count = 50
    """Prompts in a generation, at least 2."""
    max_generations: CountOrZero = 100
    """Generations of children after the first population; 0 scores the first population alone."""
    crossover_rate: Share = 0.8
    """The share of children made from two parents; the others are always mutated."""
    mutation_rate: Share = 0.2
    """The share of children that are mutated (again)."""
    elite_size: Count | None = None
    """The best prompts, kept as they are, at most half of the population [5, or half of a smaller one]."""
    tournament_size: Count = 3
    """Prompts that meet in a tournament."""
    selection: Literal["tournament", "rank", "roulette"] = "tournament"
    """How parents are chosen."""
    adaptive_rates: bool = True
    """Whether the rates rise and fall with what helps."""
    seed: Annotated[int, without_flag()] = 0
    """Of all chance; the same seed and the same replies give the same result."""
    panel_size: Count | None = None
    """Problems that every prompt is scored on, the same in all generations [all that are neither held out nor
    set apart as examples]."""
    held_out: Share = 0.3
    """The share of the problems that only the final comparison sees; 0 makes none."""
    max_examples: CountOrZero = 2
    """The most worked examples in a prompt; 0 shows none."""
    example_pool: CountOrZero = 10
    """Problems set apart to be shown as examples, at most a fifth of those to search on; no prompt is scored
    on them."""
    failures_shown: CountOrZero = 5
    """The most problems that a prompt got wrong which the model is shown to specialize the prompt; 0 never
    specializes one."""
    max_unscored: Share = 0.1
    """A prompt with a larger share of its problems unscored is no parent and no elite."""
    early_stop_level: Annotated[Share | None, Parameter(name=("--early-stop-level", "--hopeless"))] = 0.05
    """The chance of stopping a prompt early that is no worse than the weakest elite; 0 stops none."""
    patience: CountOrZero | None = 10
    """Ends after so many generations without a better best; 0 goes on to the last one."""

    def __post_init__(self) -> None:
        self._check_counts(
            population_size=2,
            max_generations=0,
            tournament_size=1,
            max_examples=0,
            example_pool=0,
            failures_shown=0,
        )
        self._check_counts(optional=True, elite_size=1, panel_size=1, patience=0)
        half = self.population_size // 2
        if self.elite_size is not None and self.elite_size > half:
            raise ValueError(
                f"elite_size is {self.elite_size!r}; expected at most {half}, half of population_size"
            )
        self._check_shares("crossover_rate", "mutation_rate", "max_unscored", "held_out")
        if self.held_out >= 1:
            raise ValueError(f"held_out is {self.held_out!r}; expected a share below 1")
        if self.early_stop_level:
            self._check_shares("early_stop_level")
            if self.early_stop_level == 1:
                raise ValueError(
                    f"early_stop_level is {self.early_stop_level!r}; expected a chance below 1, or 0"
                )
        if not _is_whole(self.seed):
            raise ValueError(f"seed is {self.seed!r}; expected a whole number")
        if self.selection not in SELECTIONS:
            raise ValueError(f"selection is {self.selection!r}; expected one of {', '.join(SELECTIONS)}")

    @property
    def elites(self) -> int:
        """How many genomes of a generation are kept."""
        if self.elite_size is None:
            return min(_ELITES, self.population_size // 2)
        return self.elite_size

    def most_calls(self, panel_size: int) -> int:
        """The calls that a generation takes at most, on a panel of so many problems."""
        return self.population_size * (panel_size + _MOST_STEPS)

    def most_calls_in_all(self, panel_size: int, held_out: int) -> int:
        """The calls that an evolution takes at most, with the comparison on so many problems held out."""
        return self.most_calls(panel_size) * (self.max_generations + 1) + 2 * held_out

    @property
    def schedule(self) -> Schedule:
        """One call at a time."""
        return Schedule()

    def _check_counts(self, *, optional: bool = False, **least: int) -> None:
        for name, smallest in least.items():
            value = getattr(self, name)
            if optional and value is None:
                continue
            if not _is_whole(value) or value < smallest:
                raise ValueError(f"{name} is {value!r}; expected a whole number of at least {smallest}")

    def _check_shares(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= 1:
                raise ValueError(f"{name} is {value!r}; expected a number between 0 and 1")


@Parameter(name="*", group="Evolution")
@dataclass(frozen=True, kw_only=True)
class AsyncEvolutionConfig(EvolutionConfig):
    """How prompts evolve with many calls under way; the result is that of one call at a time.

    `max_concurrent_requests` alone is a cap, for all calls together. The sizes beside it say in which order
    the work is done; they never add to the cap, and no place idles because of them while there is work.
    """

    enable_async_evaluation: bool = True
    """Many calls at once, or one after another."""
    async_batch_size: Count = 20
    """Problems of a prompt after which it is judged whether to stop it."""
    max_concurrent_requests: Count = 10
    """The cap: calls under way at once, of mutation and evaluation, over all prompts."""
    genome_batch_size: Count = 10
    """Children that are made ahead, so that prompts to score never run out."""
    max_concurrent_genomes: Count = 5
    """Prompts that should suffice to give every place work: where so many batches would be too few for the
    cap, several batches of a prompt are asked at once. More are begun only when a place would idle."""
    rate_limit_per_minute: Annotated[float | None, without_flag()] = 3500
    """The most attempts in a minute, repeated ones and those of other users of the same dispatcher too; None
    sets no limit."""
    async_timeout: Positive | None = None
    """Seconds after which one call is given up [--call-timeout-s; in Python 120, where the search makes its
    own dispatcher]."""
    detailed_performance_logging: bool = False
    """Whether each generation's performance goes to the log."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts(
            async_batch_size=1, max_concurrent_requests=1, genome_batch_size=1, max_concurrent_genomes=1
        )
        for name in ("rate_limit_per_minute", "async_timeout"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise ValueError(f"{name} is {value!r}; expected a number above 0")

    @property
    def schedule(self) -> Schedule:
        """As the settings say."""
        cap = self.max_concurrent_requests if self.enable_async_evaluation else 1
        return Schedule(
            concurrency=cap,
            rate_per_minute=self.rate_limit_per_minute,
            timeout_s=self.async_timeout or Schedule.timeout_s,
            batch_size=self.async_batch_size,
            batches_at_once=math.ceil(cap / (self.max_concurrent_genomes * self.async_batch_size)),
            drafts_ahead=self.genome_batch_size,
            logs_performance=self.detailed_performance_logging,
        )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:  # noqa: ANN401 - any of the fields
        """The configuration of a name, with changes.

        Raises:
            ValueError: no preset has the name, or a value is bad.
        """
        if name not in PRESETS:
            raise ValueError(f"preset is {name!r}; expected one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    @classmethod
    def balanced(cls, **changes: Any) -> Self:  # noqa: ANN401 - any of the fields
        """The recommended configuration."""
        return cls.preset("balanced", **changes)

    @classmethod
    def conservative(cls, **changes: Any) -> Self:  # noqa: ANN401 - any of the fields
        """Fewer calls at once and in a minute."""
        return cls.preset("conservative", **changes)

    @classmethod
    def aggressive(cls, **changes: Any) -> Self:  # noqa: ANN401 - any of the fields
        """More calls at once."""
        return cls.preset("aggressive", **changes)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
