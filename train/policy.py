"""A training run's policy in use: a query in, a mutator out.

Its weights are in policy.safetensors: names, shapes and numbers, of which nothing is executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from envs.mission import open_encoder
from envs.observation import Memory, memory_of_look, observation, observation_size
from envs.queries import VISIBLE
from envs.query_sets import recorded_queries
from mutators.lexical import noop
from ollama_utils.types import is_text
from records.errors import UserError
from records.outputs import replacing
from records.run_folder import CONFIG, QUERIES, check_is_run, seed_folder
from records.settings import MOST_SEEDS, read_toml
from records.terminal import write_stderr
from records.trust import kind_of
from scorers.answers import MEASURES
from train.bandit import BanditPolicy
from train.network import QueryPolicy

if TYPE_CHECKING:
    from envs.mission import RewordingConfig
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.encoders import Encoder

WEIGHTS = "policy.safetensors"
LEARNED_WEIGHTS = "learned.safetensors"
"""What was learned, where a run saves a simpler policy."""
Policy = QueryPolicy | BanditPolicy


def save_weights(weights: Mapping[str, torch.Tensor], num_actions: int, path: Path) -> None:
    """Write the `state_dict` of a policy."""
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    with replacing(path) as part:
        part.write_bytes(save(tensors, metadata={"format": "pt", "actions": str(num_actions)}))


def load_weights(path: Path) -> Policy:
    """The policy with these weights, its sizes taken from them.

    Raises:
        UserError: the file is damaged, or no policy's.
    """
    policy: Policy
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
            actions = spaces.Discrete(int(file.metadata()["actions"]))
        if "model.directions" in weights:
            size = len(weights["model.directions"]) + observation_size(0, int(actions.n))
            policy = BanditPolicy(_observations(size), actions)
        else:
            size = weights["mlp_extractor.actor.0.weight"].shape[1]
            policy = QueryPolicy(_observations(size), actions, lambda _left: 0.0)
        policy.load_state_dict(weights)
    except (OSError, SafetensorError, TypeError, ValueError, LookupError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{str(path)!r} is damaged, or no policy of a run: {why}") from error
    policy.set_training_mode(False)
    return policy


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A training run that has a policy."""

    path: Path
    """Its folder, as an absolute path."""
    mutators: tuple[str, ...]
    """Action k is the k-th."""
    encoder: str
    asks_first: bool
    """Whether it was trained on queries that got no answer as they stand."""
    look: Memory
    """What it then knows when an episode begins: that the query was refused."""
    target_model: str
    train_queries: tuple[str, ...]
    """The texts it was trained on, and those that decided when to stop."""
    changed_ns: int
    """When its policy was last written."""

    def load_network(self) -> PolicyNetwork:
        """The network of its policy.

        Raises:
            UserError: it cannot be loaded, or is not of this run.
        """
        network = load_network(self.path / WEIGHTS, self.changed_ns)
        if network.num_actions != len(self.mutators):
            raise UserError(
                f"{str(self.path / WEIGHTS)!r} chooses among {network.num_actions} mutators, but "
                f"{CONFIG} names {len(self.mutators)}: the run is damaged; train again"
            )
        return network

    def check_fits(self, mission: RewordingConfig, of_what: str) -> None:
        """Check that the mission has the run's mutators and encoder.

        Raises:
            UserError: it has others.
        """
        for flag, mine, given in (
            ("mutators", ",".join(self.mutators), ",".join(mission.mutators)),
            ("encoder", self.encoder, mission.encoder),
        ):
            if mine != given:
                raise UserError(
                    f"the run {str(self.path)!r} was trained with --{flag} {mine}, {of_what} has "
                    f"{given}: give it those of the run, or train a policy for these"
                )
        if self.asks_first != getattr(mission, "asks_first", not mission.always_reword):
            how = "leave --always-reword out" if self.asks_first else "say --always-reword"
            write_stderr(
                f"note: the run {str(self.path)!r} was trained to reword "
                f"{'what is refused' if self.asks_first else 'at once'}, and {of_what} does "
                f"otherwise: {how} to use it as it was trained"
            )


def seed_runs(path: str | Path) -> list[Path]:
    """The folders of a training of several seeds, there or not; none for any other folder.

    Raises:
        UserError: its config.toml is damaged.
    """
    folder = Path(path).absolute()
    config = _config(folder) if (folder / CONFIG).is_file() else {}
    first, count = config.get("seed"), config.get("seeds")
    if count is None:
        return []
    if type(first) is not int or type(count) is not int or not 0 < count <= MOST_SEEDS:
        raise UserError(
            f"{str(folder / CONFIG)!r} has {count!r:.60} as 'seeds' and {first!r:.60} as 'seed'"
        )
    return [seed_folder(folder, seed) for seed in range(first, first + count)]


def load_run(path: str | Path) -> TrainedRun:
    """Read a training run; its policy is loaded later.

    Raises:
        UserError: this is no training run, it has no policy yet, or a file of it is damaged.
    """
    folder = Path(path).absolute()
    expected = "expected the folder of a `mutagym train` run"
    if not (folder / CONFIG).is_file():
        raise UserError(f"{str(path)!r} is not a run; {expected}")
    if seeds := seed_runs(folder):
        raise UserError(
            f"{str(path)!r} holds the runs of {len(seeds)} seeds, each with a policy of its own: "
            f"name one of them, such as {str(Path(path) / seeds[0].name)!r}"
        )
    config = _config(folder)
    if "agents" in config:
        raise UserError(f"{str(path)!r} is an evaluation; {expected}")
    for key, kind in (("mutators", list), ("encoder", str), ("target-model", str)):
        if not isinstance(config.get(key), kind):
            found = f"{str(folder / CONFIG)!r} has {config.get(key)!r:.60} as {key!r}"
            raise UserError(f"{found}; {expected}")
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"the run {str(path)!r} has no {WEIGHTS} yet: wait for its end, or end it with "
            f"`mutagym train --resume {path}`"
        )
    queries = recorded_queries(folder / QUERIES)
    mutators = tuple(map(str, config["mutators"]))
    return TrainedRun(
        path=folder,
        mutators=mutators,
        asks_first=_asks_first(config),
        look=_look(config, mutators),
        encoder=config["encoder"],
        target_model=config["target-model"],
        train_queries=tuple(query.text for query in (*queries.train, *queries.kept)),
        changed_ns=(folder / WEIGHTS).stat().st_mtime_ns,
    )


class PolicyNetwork(torch.nn.Module):
    """Maps observations (N, size), float32, to scores (N, actions)."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.num_actions = int(policy.action_space.n)  # type: ignore[attr-defined]  # Discrete
        self.eval()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The scores of a batch, each row's as it has them alone; for any thread.

        Raises:
            UserError: the observations are of another size than those it was trained on.
        """
        expected, got = self.policy.observation_space.shape, tuple(observations.shape[1:])
        if got != expected:
            raise UserError(
                f"the run's policy was trained on observations of {expected} numbers, these have "
                f"{got}: its config.toml names another encoder than it was trained with"
            )
        return self.policy.scores(self._with_prior(observations))

    def _with_prior(self, observations: torch.Tensor) -> torch.Tensor:
        """The observations with how likely each query ought to be refused, where that is known."""
        weights = self.policy.prior.cpu().numpy()
        if not weights.any():
            return observations
        dimension = len(weights) - 1
        rows = observations[:, :dimension].cpu().numpy() / math.sqrt(dimension)
        seen = observations.clone()
        likely = 1 / (1 + np.exp(-(np.vecdot(rows, weights[:-1]) + weights[-1])))
        seen[:, -1] = torch.from_numpy(likely).to(seen)
        return seen


@lru_cache(maxsize=8)
def load_network(weights: Path, changed_ns: int) -> PolicyNetwork:  # noqa: ARG001 - a key
    """The network of these weights, loaded once in a process until they change."""
    return PolicyNetwork(load_weights(weights))


def load_policy(
    run: str | Path,
    *,
    encoder: str | Encoder | None = None,
    dispatcher: Dispatcher | None = None,
    trusted: bool = False,
) -> LearnedPolicy:
    """The policy of a training run, by any algorithm.

    Nothing of the run is executed but its sentence encoder. One that is not built in may hold code:
    it is loaded only if you name it, or trust the run.

    Args:
        run: the folder of a `mutagym train` run.
        encoder: the sentence encoder that it was trained with, by name or open already [the run's].
        dispatcher: reaches the server of an `ollama:` encoder.
        trusted: load the encoder that the run names, whatever it is.

    Raises:
        UserError: this is no training run, it has no policy yet, a file of it is damaged, or its
            encoder cannot be used.
    """
    found = load_run(run)
    found.load_network()  # a damaged one is refused before an encoder is opened
    if encoder is not None and not isinstance(encoder, str):
        return LearnedPolicy(found, encoder)
    name = found.encoder
    whose = f"the run {str(found.path)!r} was trained with the encoder {name!r}"
    if encoder not in {None, name}:
        raise UserError(f"{whose}, got {encoder!r}: name that of the run, or leave it out")
    if encoder is None and kind_of("encoder", name) and not trusted:
        hint = f"pass encoder={name!r} if you know it, or trusted=True"
        raise UserError(f"{whose}, which may hold code: {hint}")
    if name.startswith("ollama:") and dispatcher is None:
        raise UserError(f"{whose}, a model of a server: pass dispatcher=Dispatcher([HOST])")
    return LearnedPolicy(found, open_encoder(name, dispatcher))


class LearnedPolicy:
    """Chooses as `mutagym ask` and `eval` do when an episode begins; threads may share it."""

    def __init__(self, run: TrainedRun, encoder: Encoder) -> None:
        self.run, self.encoder, self.mutators = run, encoder, run.mutators
        self._network = run.load_network()

    def choose(self, query: str) -> str:
        """The name of the mutator to reword a query with: the same one each time.

        Raises:
            ValueError: the query is blank, or not valid Unicode.
            EncodingError: it cannot be embedded.
            UserError: the encoder is of another size than the one it was trained with.
        """
        return self.mutators[int(self.scores([query])[0].argmax())]

    def probabilities(self, query: str) -> dict[str, float]:
        """How likely training draws each mutator; the likeliest is what `choose` returns.

        Raises:
            ValueError: it learned by a bandit, which has none: see `scores`; or as for `choose`.
        """
        if isinstance(self._network.policy, BanditPolicy):
            raise ValueError(  # noqa: TRY004 - of a run, not of an argument
                f"the run {str(self.run.path)!r} saved a bandit or a fixed choice, which has no "
                "probabilities: use scores([query])"
            )
        chances = np.exp(self.scores([query])[0].astype(np.float64))
        return dict(zip(self.mutators, (chances / chances.sum()).tolist(), strict=True))

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """What each mutator is worth for N queries (N, mutators), of which the highest is chosen.

        Of PPO log probabilities, of a bandit expected rewards. Raises as `choose` does.
        """
        for query in queries:
            if not is_text(query) or not VISIBLE.search(query):
                raise ValueError(
                    f"expected a query that is not blank, in valid Unicode, got {query!r:.80}"
                )
        if not queries:
            return np.zeros((0, len(self.mutators)), np.float32)
        rows = self.encoder.encode(queries)
        look, count = self.run.look, len(self.mutators)
        seen = np.stack([observation(row, count, look, 0.0) for row in rows])
        with torch.no_grad():
            return self._network(torch.from_numpy(seen)).numpy().astype(np.float32)  # type: ignore[no-any-return]


def _asks_first(config: Mapping[str, Any]) -> bool:
    return not config.get("always-reword") and config.get("reward") not in MEASURES


def _look(config: Mapping[str, Any], mutators: Sequence[str]) -> Memory:
    if not _asks_first(config):
        return Memory()
    stop = mutators.index(noop.name) if noop.name in mutators else None
    return memory_of_look(stop, -float(config.get("step-cost", 0.0)), "refused")


def _observations(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _config(folder: Path) -> dict[str, Any]:
    check_is_run(folder, "the policy")
    return read_toml(folder / CONFIG)
