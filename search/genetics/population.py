"""The population, as ask and tell: it says which children to make, and is told what became of them.

Nothing here calls a model. What it asks for depends on its settings, its seed and what it was told, so
another driver can run it, and a run that begins anew with the same replies is the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from search.genetics.chance import chance, seed_of
from search.genetics.config import EvolutionConfig
from search.genetics.diversity import diversity
from search.genetics.genome import Genome
from search.genetics.nursery import Child
from search.genetics.rates import AdaptiveRates, Use
from search.genetics.selection import select
from search.genetics.trial import Evaluated
from search.genetics.variation import Birth


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

    @property
    def is_over(self) -> bool:
        """Whether all generations were told, or the best stood still for as long as it may."""
        return self.ending is not None

    @property
    def ending(self) -> str | None:
        """Why there is no further generation; None where there is one."""
        if self.generation > self._config.max_generations:
            return "all generations are done"
        if self._config.patience is not None and self._standing >= self._config.patience:
            generations = "1 generation" if self._standing == 1 else f"{self._standing} generations"
            return f"no better prompt in {generations}"
        return None

    @property
    def elites(self) -> tuple[Evaluated, ...]:
        """The genomes that stay as they are, best first: those scored in full alone."""
        return tuple(member for member in self.members if member.is_complete)[: self._config.elites]

    @property
    def rival(self) -> Evaluated | None:
        """The weakest of the elite, once it is whole: what is surely worse than it is hopeless."""
        elites = self.elites
        return elites[-1] if len(elites) == self._config.elites else None

    def ask(self) -> tuple[Birth, ...]:
        """The births of the next generation."""
        if not self.generation:
            return tuple(self._first(place) for place in range(self._config.population_size))
        count = self._config.population_size - len(self.elites)
        return tuple(self._birth(place) for place in range(count))

    def tell(self, children: Sequence[Child]) -> Generation:
        """What became of the births, in their order; the generation that they make."""
        tried = [child.evaluated for child in children if child.evaluated is not None]
        # One without a fitness may be born, and tried, again.
        self.known |= dict.fromkeys(each.genome for each in tried if each.fitness is not None)
        rates = (self._rates.crossover, self._rates.mutation)
        uses = self._uses(children)
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

    def _first(self, place: int) -> Birth:
        """A seed as it is, or a mutation of one."""
        seed = seed_of(self._config.seed, "first", place)
        parent = self._seeds[place % len(self._seeds)]
        rng = chance(seed, "steps")
        steps = () if place < len(self._seeds) else (self._rates.draw(self._mutations, rng),)
        return Birth(parents=(parent,), steps=steps, seed=seed)

    def _birth(self, place: int) -> Birth:
        seed = seed_of(self._config.seed, "birth", self.generation, place)
        rng = chance(seed, "steps")
        one, other = self._parent(seed, "one"), self._parent(seed, "other")
        crossed = rng.random() < self._rates.crossover and one != other
        steps = [self._rates.draw(self._crossings, rng)] if crossed else []
        if rng.random() < self._rates.mutation or not crossed:
            steps.append(self._rates.draw(self._mutations, rng))
        return Birth(parents=(one, other) if crossed else (one,), steps=tuple(steps), seed=seed)

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
                beaten = max(fitness.get(parent, 0.0) for parent in child.birth.parents)
                uses += [Use(step, child.evaluated.fitness > beaten) for step in child.birth.steps]
        return uses

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
