"""Counts of what a rollout brought; unscored steps stand apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Tally:
    """Sums over the steps of a rollout."""

    scored: int = 0
    unscored: int = 0
    answered: int = 0
    refused: int = 0
    """Partly refused included."""
    partial: int = 0
    adopted: int = 0
    drifted_rewrites: int = 0
    """Not adopted, as they lost the intent by similarity."""
    drifted: int = 0
    """Steps whose query, adopted though it was, did not keep the intent: they earn nothing."""
    episodes: int = 0
    successes: int = 0
    returns: float = 0.0
    lengths: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    mutators: Counter[str] = field(default_factory=Counter)

    def count_step(self, info: Mapping[str, Any]) -> None:
        """Count one step by its info, or by its line of transitions.jsonl."""
        if info["unscored"]:
            self.unscored += 1
            return
        self.scored += 1
        self.answered += info["outcome"] == "answered"
        self.refused += info["outcome"] == "refused"
        self.partial += bool(info["partial"])
        self.adopted += bool(info["adopted"])
        self.drifted_rewrites += info["rejected"] == "drifted"
        self.drifted += not info["reward_parts"].get("intent_kept", 1.0)
        self.mutators[info["mutator"]] += 1
        self.parts.update(info["reward_parts"])

    def count_episode(self, *, success: bool, total_reward: float, length: int) -> None:
        """Count one episode that ended."""
        self.episodes += 1
        self.successes += success
        self.returns += total_reward
        self.lengths += length

    def metrics(self) -> dict[str, float]:
        """Rates and means under TensorBoard's names; a rate without a denominator is left out."""
        rows = self.scored + self.unscored
        per_episode = {
            "rollout/return": self.returns,
            "rollout/episode_length": self.lengths,
            "outcome/success_rate": self.successes,
        }
        per_step = {
            "outcome/answered_rate": self.answered,
            "outcome/refusal_rate": self.refused,
            "outcome/partial_refusal_rate": self.partial,
            "outcome/drifted_rate": self.drifted,
            "mutators/adopted_rate": self.adopted,
            "mutators/drifted_rate": self.drifted_rewrites,
            **{f"reward/{name}": value for name, value in self.parts.items()},
            **{f"mutators/{name}": value for name, value in self.mutators.items()},
        }
        groups = ((self.episodes, per_episode), (self.scored, per_step))
        rates = {k: v / n for n, sums in groups if n for k, v in sums.items()}
        counts = {"rollout/episodes": self.episodes, "outcome/unscored_steps": self.unscored}
        return rates | counts | ({"outcome/unscored_rate": self.unscored / rows} if rows else {})
