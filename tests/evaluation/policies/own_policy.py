"""A policy as a user would write it."""

from __future__ import annotations

from evaluation.policies.policy import View


class Patient:
    """Always the first mutator."""

    def __init__(self, *, mutators: tuple[str, ...], seed: int, wait: float) -> None:
        self.mutators = mutators
        self.seed = seed
        self.wait = wait

    def step(self, view: View) -> int:
        """The first."""
        return view.tried[0] if view.tried else 0
