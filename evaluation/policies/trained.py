"""A trained policy that plays episodes: `-p RUN` of `mutagym eval`, `--policy RUN` of `ask`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evaluation.policies.instance import block_scores
from records.errors import UserError
from train.bandit import BanditPolicy
from train.policy import WEIGHTS, PolicyNetwork, TrainedRun, load_network, load_run

if TYPE_CHECKING:
    from evaluation.policies.policy import View
    from evaluation.policies.specs import PolicySpec


class RunSource:
    """Makes the policies of a run, one for each agent and episode: a PolicySource.

    Args:
        run: the run.
        name: what the policy is called in results.
        sample: draw actions by their probabilities, as in training; else take the likeliest.
    """

    def __init__(self, run: TrainedRun, *, name: str, sample: bool = False) -> None:
        self.run = run
        self.name = name
        self.sample = sample

    def load(self) -> None:
        """Load the network now, so that what is wrong with it is known.

        Raises:
            UserError: it cannot be loaded, or is not of this run.
        """
        network = self.run.load_network()
        if self.sample and isinstance(network.policy, BanditPolicy):
            raise UserError(
                f"the run {str(self.run.path)!r} learned by a bandit, which has no probabilities to draw by: "
                "leave sample=true out"
            )

    def make(self, seed: int) -> RunPolicy:
        """A policy whose chance, if it has any, comes from `seed`."""
        weights = self.run.path / WEIGHTS
        return RunPolicy(weights, self.run.changed_ns, seed if self.sample else None)


def run_source(spec: PolicySpec) -> RunSource:
    """The source of a policy of kind `run`; its one option is `sample=true`.

    Raises:
        UserError: it has another option, or the run cannot be used.
    """
    for key, value in spec.kwargs.items():
        if key != "sample" or not isinstance(value, bool):
            raise UserError(
                f"policy {spec.name!r} has {key}={value}; a run takes sample=true or sample=false"
            )
    return RunSource(load_run(spec.arg), name=spec.name, sample=bool(spec.kwargs.get("sample", False)))


class RunPolicy:
    """A trained policy that chooses for one agent.

    It is pickled as a path: where it is unpickled the network is loaded again, once in a process.

    Args:
        weights: the run's policy.safetensors.
        changed_ns: when it was last written, as `TrainedRun` has it.
        seed: draws the actions; None: the likeliest action is taken.
    """

    def __init__(self, weights: Path, changed_ns: int, seed: int | None = None) -> None:
        self.weights = weights
        self.changed_ns = changed_ns
        self.seed = seed

    @property
    def network(self) -> PolicyNetwork:
        """Maps observations (N, observation size) to logits (N, mutators): one for all policies of the run.

        Raises:
            UserError: it cannot be loaded.
        """
        return load_network(self.weights, self.changed_ns)

    def choose(self, logits: NDArray[np.float32], view: View) -> int:
        """The action of this agent, given its row (mutators,) of logits."""
        if self.seed is None:
            return int(np.argmax(logits))
        stream = np.random.SeedSequence(self.seed, spawn_key=(view.step_count, view.attempt))
        return int(np.argmax(logits + np.random.default_rng(stream).gumbel(size=len(logits))))

    def step(self, view: View) -> int:
        """The action in this view."""
        return self.choose(block_scores(self.network, [(0, view.observation)])[0], view)
