"""How often children are crossed and mutated, and by which operator; it adapts to what helped."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

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
