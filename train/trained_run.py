"""A training run as it lies on the disk: its settings, its queries, the network of its policy.

The network is loaded from the run's policy.safetensors as a plain torch module: tensors, of which nothing
is executed. The policy.zip beside it holds pickled Python, as every file of Stable-Baselines3 does, and is
not read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from records.errors import UserError
from records.json_lines import MOST_QUERIES_BYTES, read_json_object
from records.run_folder import CONFIG, QUERIES, check_is_run, seed_folder
from records.settings import MOST_SEEDS, read_toml
from train.actor_critic import QueryPolicy
from train.bandit import BanditPolicy
from train.policy_file import WEIGHTS, load_weights

if TYPE_CHECKING:
    from envs.mission import RewordingConfig

_loading = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A training run that has a policy."""

    path: Path
    """Its folder, from the root."""
    config: Mapping[str, Any]
    """Its config.toml."""
    train_queries: tuple[str, ...]
    """The texts it was trained on, and those that said when to stop."""
    changed_ns: int
    """When its policy was last written."""

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def mutators(self) -> tuple[str, ...]:
        """As they were named; action k is the k-th."""
        return tuple(map(str, self.config["mutators"]))

    @property
    def encoder(self) -> str:
        """The sentence encoder its observations were made with."""
        return str(self.config["encoder"])

    @property
    def target_model(self) -> str:
        """The model it was trained on."""
        return str(self.config["target-model"])

    def load_network(self) -> PolicyNetwork:
        """The network of its policy.

        Raises:
            UserError: it cannot be loaded, or is not of this run.
        """
        weights = self.path / WEIGHTS
        network = load_network(weights, self.changed_ns)
        if network.num_actions != len(self.mutators):
            raise UserError(
                f"{str(weights)!r} chooses among {network.num_actions} mutators, but {CONFIG} names "
                f"{len(self.mutators)}: the run is damaged; train again"
            )
        return network

    def check_fits(self, mission: RewordingConfig, of_what: str = "the mission") -> None:
        """Check that the policy means by its actions and observations what the mission does.

        Raises:
            UserError: the mission has other mutators, or another encoder.
        """
        if tuple(mission.mutators) != self.mutators:
            raise UserError(
                f"the run {str(self.path)!r} was trained with --mutators {','.join(self.mutators)}, "
                f"{of_what} has {','.join(mission.mutators)}: give it those of the run, or train a policy "
                "for these"
            )
        if mission.encoder != self.encoder:
            raise UserError(
                f"the run {str(self.path)!r} was trained with --encoder {self.encoder}, {of_what} has "
                f"{mission.encoder}: give it that of the run, or train a policy for this one"
            )


def seed_runs(path: str | Path) -> list[Path]:
    """The folders of the seeds of a training of several, whether they are there or not; else none.

    Raises:
        UserError: its config.toml is damaged.
    """
    folder = Path(path).absolute()
    if not (folder / CONFIG).is_file():
        return []
    config = _config(folder)
    first, count = config.get("seed"), config.get("seeds")
    if count is None:
        return []
    if type(first) is not int or type(count) is not int or not 0 < count <= MOST_SEEDS:
        raise UserError(f"{str(folder / CONFIG)!r} has {count!r:.60} as 'seeds' and {first!r:.60} as 'seed'")
    return [seed_folder(folder, seed) for seed in range(first, first + count)]


def load_run(path: str | Path) -> TrainedRun:
    """Read what a training run is; its policy is loaded when it is first asked.

    Raises:
        UserError: this is not a training run, it has no policy yet, or a file of it is damaged.
    """
    folder = Path(path).absolute()
    weights = folder / WEIGHTS
    if not (folder / CONFIG).is_file():
        raise UserError(f"{str(path)!r} is not a run; expected the folder of a `mutagym train` run")
    config = _config(folder)
    if seeds := seed_runs(folder):
        raise UserError(
            f"{str(path)!r} holds the runs of {len(seeds)} seeds, each with a policy of its own: name one of "
            f"them, such as {str(Path(path) / seeds[0].name)!r}"
        )
    if "agents" in config:
        raise UserError(f"{str(path)!r} is an evaluation; expected the folder of a `mutagym train` run")
    if missing := [key for key in ("mutators", "encoder", "target-model") if key not in config]:
        raise UserError(f"{str(folder / CONFIG)!r} has no {missing[0]!r}; expected a training run's")
    if not isinstance(config["mutators"], list):
        raise UserError(
            f"{str(folder / CONFIG)!r} has {config['mutators']!r:.60} as 'mutators'; expected a list"
        )
    if not weights.is_file():
        raise UserError(
            f"the run {str(path)!r} has no {WEIGHTS} yet: wait for its end, or end it with "
            f"`mutagym train --resume {path}`"
        )
    queries = _queries(folder / QUERIES)
    kept = queries.get("kept", [])
    if not _are_texts(queries.get("train")) or not _are_texts(kept):
        raise UserError(f"{str(folder / QUERIES)!r} has no list 'train' of the queries trained on")
    return TrainedRun(
        path=folder,
        config=config,
        train_queries=(*queries["train"], *kept),
        changed_ns=weights.stat().st_mtime_ns,
    )


def _config(folder: Path) -> dict[str, Any]:
    check_is_run(folder, "the policy")
    return read_toml(folder / CONFIG)


def _queries(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path, MOST_QUERIES_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read ({error}): the run is damaged; train again") from error


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


class PolicyNetwork(torch.nn.Module):
    """Maps observations (N, observation size), float32, to scores (N, actions); the highest is taken."""

    def __init__(self, policy: QueryPolicy | BanditPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.num_actions = int(policy.action_space.n)  # type: ignore[attr-defined] # Discrete
        self.eval()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The scores of a batch, on any number of threads at once.

        Raises:
            UserError: the observations are of another size than those it was trained on.
        """
        policy = self.policy
        if observations.shape[1:] != policy.observation_space.shape:
            raise UserError(
                f"the run's policy was trained on observations of {policy.observation_space.shape} numbers, "
                f"these have {tuple(observations.shape[1:])}: its config.toml names another encoder than it "
                "was trained with"
            )
        return policy.scores(observations)


def load_network(weights: Path, changed_ns: int) -> PolicyNetwork:
    """The network of a run's weights: loaded once in a process, and again when they have changed.

    Args:
        weights: the run's policy.safetensors.
        changed_ns: when it was last written, as `TrainedRun` has it.

    Raises:
        UserError: it cannot be loaded.
    """
    with _loading:
        return _load_network(weights, changed_ns)


@lru_cache(maxsize=8)
def _load_network(path: Path, _changed_ns: int) -> PolicyNetwork:
    return PolicyNetwork(load_weights(path))
