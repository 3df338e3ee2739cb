"""Policies that were learned: by a training run (`-p RUN`), or by a bandit for an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from records.errors import UserError
from train.bandit import BanditPolicy, LinearBandit
from train.policy import WEIGHTS, PolicyNetwork, TrainedRun, load_network, load_run

if TYPE_CHECKING:
    from evaluation.policies import View
    from evaluation.specs import PolicySpec


@dataclass(frozen=True, kw_only=True)
class RunSource:
    """Makes the policies of a training run: a PolicySource."""

    run: TrainedRun
    name: str
    sample: bool = False
    """Draw actions by their probabilities, as in training; else take the likeliest."""

    def load(self) -> None:
        """Load the network now.

        Raises:
            UserError: it cannot be loaded, is of another run, or is to draw and is a bandit's.
        """
        network = self.run.load_network()
        if self.sample and isinstance(network.policy, BanditPolicy):
            raise UserError(
                f"the run {str(self.run.path)!r} learned by a bandit, which has no probabilities "
                "to draw by: leave sample=true out"
            )

    def make(self, seed: int) -> RunPolicy:
        """A policy whose chance, if it has any, comes from `seed`."""
        weights = self.run.path / WEIGHTS
        return RunPolicy(weights, self.run.changed_ns, seed if self.sample else None)


@dataclass(frozen=True)
class RunPolicy:
    """A NetworkPolicy, pickled as a path: a process that it is sent to loads the network once."""

    weights: Path
    changed_ns: int
    """When the weights were last written."""
    seed: int | None = None
    """Draws the actions; None: the likeliest action is taken."""

    @property
    def network(self) -> PolicyNetwork:
        """One for all policies of the run.

        Raises:
            UserError: it cannot be loaded.
        """
        return load_network(self.weights, self.changed_ns)

    def choose(self, logits: NDArray[np.float32], view: View) -> int:
        """The action, given the logits (A,)."""
        if self.seed is None:
            return int(np.argmax(logits))
        stream = np.random.SeedSequence(self.seed, spawn_key=(view.step_count,))
        return int(np.argmax(logits + np.random.default_rng(stream).gumbel(size=len(logits))))


@dataclass(frozen=True)
class BanditSource:
    """Takes the mutator that a fitted bandit expects to earn most; it learns no more."""

    name: str
    network: LinearBandit

    def make(self, seed: int) -> BanditSource:  # noqa: ARG002 - it has no chance
        """The policy itself, a NetworkPolicy: it remembers nothing."""
        return self


def trained_source(spec: PolicySpec) -> RunSource:
    """The source of a policy of kind `run`; its one option is `sample`.

    Raises:
        UserError: it has another option, or the run cannot be used.
    """
    for key, value in spec.options.items():
        if key != "sample" or not isinstance(value, bool):
            raise UserError(
                f"policy {spec.name!r} has {key}={value}; a run takes sample=true or sample=false"
            )
    sample = bool(spec.options.get("sample", False))
    return RunSource(run=load_run(spec.arg), name=spec.name, sample=sample)
