"""How far the prompts of a population lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from search.genetics.genome import Genome


def distance(a: Genome, b: Genome) -> float:
    """The share of the words of either prompt that the other lacks (Jaccard 1912): 0 to 1."""
    union = len(a.words | b.words)
    return len(a.words ^ b.words) / union if union else 0.0


def diversity(genomes: Sequence[Genome]) -> float:
    """The mean distance between two of them, 0 to 1; 0 for fewer than two."""
    pairs = [distance(a, b) for a, b in combinations(genomes, 2)]
    return fmean(pairs) if pairs else 0.0
