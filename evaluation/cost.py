"""What an evaluation costs, said before it is spent."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.config import EvalConfig, MissionQueries, MissionSpec
from evaluation.teams import TeamSpec, fits_needed


def most_calls(
    config: EvalConfig,
    specs: Sequence[MissionSpec],
    queries: Sequence[MissionQueries],
    teams: Sequence[TeamSpec],
) -> int:
    """The calls that an evaluation makes at most, those that embed and failed attempts left out.

    It makes fewer: episodes end with their first answer, and equal calls are made once.
    """
    agents = sum(len(team.agents) for team in teams)
    asking = sum(len(team.asking) for team in teams)
    total = 0
    for spec, of_spec in zip(specs, queries, strict=True):
        step = spec.given.most_calls_a_step
        fits = len(fits_needed(teams)) * config.fit_calls * step
        episode = spec.given.max_steps * (agents * step + asking)
        total += fits + len(of_spec.of_episodes) * episode + len(of_spec.guard) * step
    return total
