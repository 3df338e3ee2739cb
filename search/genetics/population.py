"""The population of an evolution, as ask and tell: it names the children to make, and takes what they became.

Nothing here calls a model. What it asks for depends on its settings, its seed and what it was told, so
another driver can run it, and a run that begins anew with the same replies is the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from search.chance import chance, seed_of
from search.genetics.config import EvolutionConfig
from search.genetics.fitness import Evaluated
from search.genetics.genome import Genome, diversity
from search.genetics.offspring import Child
from search.genetics.selection import select
from search.genetics.variation import ChildSpec

_MOST_MUTATION = 0.8
_STEP = 1.5
"""Each generation without a better best multiplies the mutation rate by this."""
_LOOKALIKES = 0.3
"""Below this diversity crossing two parents brings little new."""
_LEAST_SHARE = 0.4
"""Of an even share, which each operator keeps whatever it did."""
_MEMORY = 0.8
"""What an earlier generation's outcomes weigh, next to the following one's."""


class Use(NamedTuple):
    """An operator that made a child, and whether the child beat its parents."""

    operator: str
    won: bool


class AdaptiveRates:
    """The rates of the next generation.

    While the best stands still the mutation rate rises, to 0.8 at most; lookalikes are mutated twice as
    often and crossed half as often. Operators are drawn by probability matching (Goldberg 1990): in
    proportion to how often their children beat their parents, with a least share for each.

    Args:
        crossover: the share of children with two parents, 0 to 1.
        mutation: the share of children that are mutated, 0 to 1.
        operators: the names of the operators.
        adaptive: False keeps all as it is.
    """

    def __init__(
        self, *, crossover: float, mutation: float, operators: Sequence[str], adaptive: bool
    ) -> None:
        self.crossover = self._crossover = crossover
        self.mutation = self._mutation = mutation
        self._adaptive = adaptive
        self._standing = 0
        self._uses = dict.fromkeys(operators, 0.0)
        self._wins = dict.fromkeys(operators, 0.0)

    def tell(self, uses: Sequence[Use], *, improved: bool, diversity: float) -> None:
        """Learn from a generation.

        Args:
            uses: the operators of its children with a fitness.
            improved: whether it brought a new best.
            diversity: of the population that it left, 0 to 1.
        """
        if not self._adaptive:
            return
        for name in self._uses:
            self._uses[name] *= _MEMORY
            self._wins[name] *= _MEMORY
        for use in uses:
            self._uses[use.operator] += 1
            self._wins[use.operator] += use.won
        self._standing = 0 if improved else self._standing + 1
        alike = diversity < _LOOKALIKES
        raised = self._mutation * _STEP**self._standing * (2 if alike else 1)
        self.mutation = max(self._mutation, min(_MOST_MUTATION, raised))
        self.crossover = self._crossover / (2 if alike else 1)

    def chance_of(self, operator: str, among: Sequence[str] = ()) -> float:
        """How likely an operator is drawn from `among`, or from all."""
        names = list(among or self._uses)
        return self._shares(names)[names.index(operator)]

    def draw(self, among: Sequence[str], rng: Random) -> str:
        """One of these operators."""
        return rng.choices(list(among), self._shares(among))[0]

    def _shares(self, names: Sequence[str]) -> list[float]:
        # One win in two before anything is known.
        worth = [(self._wins[name] + 1) / (self._uses[name] + 2) for name in names]
        least = _LEAST_SHARE / len(names)
        return [least + (1 - _LEAST_SHARE) * each / sum(worth) for each in worth]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What a generation came to."""

    generation: int
    """0 is the first population."""
    best_fitness: float | None
    """Of the best genome so far; None where none was scored in full."""
    best_prompt: str | None
    """Its whole system prompt."""
    mean_fitness: float | None
    """Over the population."""
    diversity: float
    """The mean distance between two of the population, 0 to 1 (`diversity`)."""
    size: int
    """Genomes in the population."""
    children: int
    """Genomes that were tried for the first time."""
    unscored: int
    """Children without a fitness, for too many of their calls failed."""
    unscored_problems: int
    """Problems of all children that were asked without getting a reply."""
    stopped: int
    """Children that were surely worse than the weakest of the elite before they were through."""
    duplicates: int
    """Births that brought nothing new; their place went to the best of the generation before."""
    model_steps: int
    """Rewordings that the model was asked for."""
    failed_steps: int
    """Those of them that a rule took over, for the model could not be asked."""
    crossover_rate: float
    """By which the children were made."""
    mutation_rate: float
    """By which the children were made."""
    step_error: str = field(default="", compare=False)
    """Why the last of the failed steps failed; "" where none did."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain data, without the error, which may name a host."""
        return {name: value for name, value in asdict(self).items() if name != "step_error"}


@dataclass(frozen=True, kw_only=True)
class Birth:
    """Where a genome that was tried came from, and what it scored."""

    generation: int
    """0 is the first population."""
    prompt: str
    """Its whole system prompt."""
    parents: tuple[int, ...]
    """Their places among all births; none for a seed."""
    steps: tuple[str, ...]
    """The operators that made it, in order."""
    fitness: float | None
    """See `Evaluated`."""
    stopped: bool
    """Whether it was stopped before it was through."""


class Population:
    """Genomes that evolve.

    Args:
        config: sizes, rates and the seed.
        seeds: the genomes to begin with, the first of the first population.
        mutations: the names of the operators on one genome.
        crossings: the names of those that join two.

    Raises:
        ValueError: no seed, more than the population takes, or the same one twice.
    """

    def __init__(
        self,
        config: EvolutionConfig,
        *,
        seeds: Sequence[Genome],
        mutations: Sequence[str],
        crossings: Sequence[str],
    ) -> None:
        if not 1 <= len(seeds) <= config.population_size:
            most = config.population_size
            raise ValueError(f"got {len(seeds)} seed prompts; expected 1 to population_size, which is {most}")
        if len(set(seeds)) < len(seeds):
            raise ValueError("the same seed prompt was given twice; give each one once")
        self._config, self._seeds = config, tuple(seeds)
        self._mutations, self._crossings = tuple(mutations), tuple(crossings)
        self._rates = AdaptiveRates(
            crossover=config.crossover_rate if crossings else 0.0,
            mutation=config.mutation_rate,
            operators=(*mutations, *crossings),
            adaptive=config.adaptive_rates,
        )
        self._standing = 0
        self.generation = 0
        """The one that is asked for next; 0 is the first population."""
        self.known: dict[Genome, None] = {}
        """All genomes that ever had a fitness, in order."""
        self.members: tuple[Evaluated, ...] = ()
        """The population with a fitness, best first."""
        self.best: Evaluated | None = None
        """The best genome that was scored in full."""
        self.births: list[Birth] = []
        """All genomes that were tried, in order."""
        self._born: dict[Genome, int] = {}

    @property
    def is_over(self) -> bool:
        """Whether all generations were told, or the best stood still for as long as it may."""
        return self.ending is not None

    @property
    def ending(self) -> str | None:
        """Why there is no further generation; None where there is one."""
        if self.generation > self._config.max_generations:
            return "all generations are done"
        if self._config.patience and self._standing >= self._config.patience:
            generations = "1 generation" if self._standing == 1 else f"{self._standing} generations"
            return f"no better prompt in {generations}"
        return None

    @property
    def elites(self) -> tuple[Evaluated, ...]:
        """The genomes that stay as they are, best first: those scored in full alone."""
        return tuple(member for member in self.members if member.is_complete)[: self._config.elites]

    @property
    def rival(self) -> Evaluated | None:
        """The weakest of the elite, once it is whole: a child that is surely worse is stopped early."""
        elites = self.elites
        return elites[-1] if len(elites) == self._config.elites else None

    def ask(self) -> tuple[ChildSpec, ...]:
        """How the children of the next generation are made."""
        if not self.generation:
            return tuple(self._first(place) for place in range(self._config.population_size))
        count = self._config.population_size - len(self.elites)
        return tuple(self._spec(place) for place in range(count))

    def tell(self, children: Sequence[Child]) -> Generation:
        """Take what became of the children, in their order; returns the generation that they make."""
        tried = [child.evaluated for child in children if child.evaluated is not None]
        # One without a fitness may be born, and tried, again.
        self.known |= dict.fromkeys(each.genome for each in tried if each.fitness is not None)
        rates = (self._rates.crossover, self._rates.mutation)
        uses = self._uses(children)
        self._record(children)
        self._replace(tried)
        spread = diversity([member.genome for member in self.members])
        improved = self._follow_best()
        if self.generation:
            self._rates.tell(uses, improved=improved, diversity=spread)
        fitnesses = [member.fitness for member in self.members if member.fitness is not None]
        self.generation += 1
        return Generation(
            generation=self.generation - 1,
            best_fitness=self.best.fitness if self.best else None,
            best_prompt=self.best.genome.prompt if self.best else None,
            mean_fitness=fmean(fitnesses) if fitnesses else None,
            diversity=spread,
            size=len(self.members),
            children=len(tried),
            unscored=sum(evaluated.fitness is None for evaluated in tried),
            unscored_problems=sum(evaluated.unscored for evaluated in tried),
            stopped=sum(evaluated.stopped for evaluated in tried),
            duplicates=len(children) - len(tried),
            model_steps=sum(child.draft.asked for child in children),
            failed_steps=sum(child.draft.failed for child in children),
            crossover_rate=rates[0],
            mutation_rate=rates[1],
            step_error=next((child.draft.error for child in reversed(children) if child.draft.error), ""),
        )

    def _first(self, place: int) -> ChildSpec:
        """A seed as it is, or a mutation of one."""
        seed = seed_of(self._config.seed, "first", place)
        parent = self._seeds[place % len(self._seeds)]
        rng = chance(seed, "steps")
        steps = () if place < len(self._seeds) else (self._rates.draw(self._mutations, rng),)
        return ChildSpec(parents=(parent,), steps=steps, seed=seed)

    def _spec(self, place: int) -> ChildSpec:
        seed = seed_of(self._config.seed, "birth", self.generation, place)
        rng = chance(seed, "steps")
        one, other = self._parent(seed, "one"), self._parent(seed, "other")
        crossed = rng.random() < self._rates.crossover and one != other
        steps = [self._rates.draw(self._crossings, rng)] if crossed else []
        if rng.random() < self._rates.mutation or not crossed:
            steps.append(self._rates.draw(self._mutations, rng))
        failures = next((member.failures for member in self.members if member.genome == one), ())
        parents = (one, other) if crossed else (one,)
        return ChildSpec(parents=parents, steps=tuple(steps), seed=seed, failures=failures)

    def _parent(self, seed: int, which: str) -> Genome:
        if not self.members:
            return self._seeds[0]
        chosen = select(
            self._config.selection,
            [member.fitness or 0.0 for member in self.members],
            chance(seed, which),
            tournament_size=self._config.tournament_size,
        )
        return self.members[chosen].genome

    def _uses(self, children: Sequence[Child]) -> list[Use]:
        """Which operators made children with a fitness, and whether these beat their parents."""
        fitness = {member.genome: member.fitness or 0.0 for member in self.members}
        uses = []
        for child in children:
            if child.evaluated is not None and child.evaluated.fitness is not None:
                beaten = max(fitness.get(parent, 0.0) for parent in child.spec.parents)
                uses += [Use(step, child.evaluated.fitness > beaten) for step in child.spec.steps]
        return uses

    def _record(self, children: Sequence[Child]) -> None:
        """Write down where the children that were tried come from."""
        for child in children:
            if child.evaluated is None:
                continue
            parents = (self._born.get(parent) for parent in child.spec.parents if child.spec.steps)
            self.births.append(
                Birth(
                    generation=self.generation,
                    prompt=child.evaluated.genome.prompt,
                    parents=tuple(parent for parent in parents if parent is not None),
                    steps=child.spec.steps,
                    fitness=child.evaluated.fitness,
                    stopped=child.evaluated.stopped,
                )
            )
            self._born[child.evaluated.genome] = len(self.births) - 1

    def _replace(self, tried: Sequence[Evaluated]) -> None:
        """The elite and the children with a fitness; places left over go to the best of those before."""
        elites, new = self.elites, [evaluated for evaluated in tried if evaluated.fitness is not None]
        left = [member for member in self.members if member not in elites]
        places = self._config.population_size - len(elites) - len(new)
        self.members = tuple(sorted([*elites, *left[:places], *new], key=_merit, reverse=True))

    def _follow_best(self) -> bool:
        """Whether there is a new best."""
        leader = next(iter(self.elites), None)
        improved = leader is not None and (self.best is None or _merit(leader) > _merit(self.best))
        self.best = leader if improved else self.best
        self._standing = 0 if improved else self._standing + 1
        return improved


def _merit(evaluated: Evaluated) -> tuple[float, bool]:
    """By what genomes are sorted: among equals those scored in full come first, then the older ones."""
    return evaluated.fitness or 0.0, not evaluated.stopped
