"""The settings of `mutagym train`: its flags, with their help.

Annotations here are types, not strings: commands read flags off them.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from envs.mission import MissionConfig
from envs.query_sets import GuardQueries
from ollama_utils.connect import ServerConfig
from ollama_utils.on_ray import EngineConfig
from records.settings import (
    Count,
    JsonPlace,
    Lanes,
    NotNegative,
    Positive,
    Seed,
    Several,
    Share,
    absolute,
)

MOST_ROWS = 2**24
"""Rows of a rollout: some 25 GB of observations."""
MAY_CHANGE = ("num-env-steps", "max-workers", "max-unscored")
"""The options that a resumed training may change, in addition to those of hosts and limits."""
MOST_BANDIT_MUTATORS = 64
"""A bandit's memory grows with their fourth power."""
MOST_KEPT, KEPT_SHARE = 1000, 0.25
"""How many of the training queries are kept at most, and which share."""
STEPS_A_KEPT = 8
"""Steps of training for each kept query, at least: four policies play each of them."""
SURE_SHARE = 0.3
"""The share for --until-sure."""
FEWEST_KEPT = 20
"""Fewer are not kept, unless --kept says so: they would tell nothing."""


@Parameter(name="*", group="When to stop")
@dataclass(frozen=True, kw_only=True)
class GainConfig:
    """What more steps would bring, and when that is enough."""

    until_sure: Annotated[bool, Parameter(negative="")] | None = None
    """End the run when the policy's gain over the best fixed mutator is beyond doubt, or when
    --least-gain seems out of its reach."""
    least_gain: Share | None = None
    """The gain in success that is worth waiting for [.05, which is five points]."""
    kept: Annotated[float, Parameter(validator=Number(gte=0, lt=1))] | None = None
    """Share of the training queries kept from learning: in the end they decide whether what was
    learned is saved, or something simpler that does as well. Where it is given, the gain is
    measured on them during the training, too, but not with guard queries [.25, but one for eight
    steps at most, and none if that is under 20; .3 with --until-sure]."""

    def share(self, queries: int, steps: int) -> float:
        """The share of so many training queries that is kept in a training of so many steps."""
        if self.kept is not None:
            return self.kept
        if self.until_sure:
            return min(SURE_SHARE, MOST_KEPT / queries)
        kept = min(KEPT_SHARE * queries, MOST_KEPT, steps / STEPS_A_KEPT)
        return kept / queries if kept >= FEWEST_KEPT else 0.0

    @property
    def looks(self) -> bool:
        """Whether the gain is measured during the training."""
        return bool(self.until_sure or self.kept)

    @property
    def least(self) -> float:
        """The gain that is worth waiting for."""
        return 0.05 if self.least_gain is None else self.least_gain


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a training run. Defaults < --config file.toml < flags."""

    algorithm: Literal["ppo", "linucb", "thompson", "auto"] = "ppo"
    """What learns: PPO; a contextual bandit, for few calls; or auto: linucb first, PPO from
    there."""
    num_processes: Lanes = 16
    """Lanes: environments side by side; two to four times the server's slots keep them all busy."""
    num_steps: Count = 32
    """Steps of each lane per update."""
    num_env_steps: Count = 29_696
    """Steps in all, rounded up to whole rollouts."""
    bandit_steps: Count = 4
    """Steps of each lane per update of a bandit."""
    bandit_env_steps: Count = 3_008
    """auto: steps before PPO takes over, rounded up to whole rollouts of the bandit."""
    ppo_epoch: Count = 15
    """Passes over a rollout per update."""
    num_mini_batch: Count = 4
    """Minibatches per pass; must divide num-steps x num-processes."""
    lr: Positive = 2e-3
    """Adam's learning rate."""
    gamma: Share = 0.95
    """Discount."""
    gae_lambda: Share = 0.95
    """GAE's lambda (arXiv 1506.02438)."""
    clip_param: Positive = 0.2
    """PPO's clip range (arXiv 1707.06347)."""
    entropy_coef: NotNegative = 0.03
    """Weight of the entropy bonus."""
    value_loss_coef: NotNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive = 0.5
    """Gradients are scaled down to this norm."""
    seed: Seed = 0
    """Same seed, same run."""
    seeds: Several | None = None
    """Train so many side by side, of the seeds --seed, --seed + 1, ..., each as it comes out alone
    [one]."""
    use_batching: Annotated[bool, Parameter(name="--use-batching", negative="--no-batching")] = True
    """Model calls of all lanes side by side, or one after another."""
    schedule: Literal["sequential", "phased", "lanes"] | None = None
    """How lanes take turns: sequential: one call after another; phased: all lanes reword, then all
    ask, then all are scored; lanes: none waits for another [lanes; with --no-batching
    sequential]."""
    max_workers: Count | None = None
    """phased: the most calls at once [8]; lanes: the most lanes that step at once [all]."""
    max_unscored: Share = 0.5
    """The run stops, saved, once more than this share of recent steps could not be scored."""
    save_interval: Count = 10
    """Updates between checkpoints."""
    log_interval: Count = 1
    """Updates between log entries; each is of the last rollout."""
    judge_accuracy: str | None = None
    """What `mutagym judge --json` wrote of the reward's labels: refusal rates are also told
    corrected."""
    run_dir: Path | None = None
    """The run's folder, new or empty [runs/train-TIME-SEED; of several seeds
    runs/train-TIME-seeds]."""
    resume: Path | None = None
    """Go on with the run in this folder, with its settings and queries; only hosts and limits may
    be changed. Code, hosts and other files that it names have to be named again, or --trust-run
    uses them."""
    cache: Path | None = None
    """A folder that runs share, of replies and embeddings: what was asked there is not asked
    again."""
    json: JsonPlace = None
    """Write the summary here too, as JSON; `-` is stdout, in the place of the table."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    gain: GainConfig = field(default_factory=GainConfig)
    guard: GuardQueries = field(default_factory=GuardQueries)
    mission: MissionConfig = field(default_factory=MissionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> "TrainConfig":
        """The same with absolute paths."""
        return replace(
            self,
            judge_accuracy=absolute(self.judge_accuracy),
            guard=replace(self.guard, guard_queries=absolute(self.guard.guard_queries)),
            mission=self.mission.located(),
            server=self.server.located(),
        )

    @property
    def total_steps(self) -> int:
        """`num_env_steps`, rounded up to whole rollouts."""
        bandit = self.steps_by_bandit
        rollout = self.num_steps * self.num_processes
        return bandit + -(-max(0, self.num_env_steps - bandit) // rollout) * rollout

    @property
    def steps_by_bandit(self) -> int:
        """The first steps, which a bandit chooses, in whole rollouts of its own."""
        most = {"ppo": 0, "auto": self.bandit_env_steps}.get(self.algorithm, self.num_env_steps)
        rollout = self.bandit_steps * self.num_processes
        return -(-min(most, self.num_env_steps) // rollout) * rollout

    @property
    def rows_of_rollout(self) -> int:
        """Steps of each lane in a rollout, of the first ones where they differ."""
        return self.num_steps if self.algorithm == "ppo" else self.bandit_steps

    @property
    def seeds_trained(self) -> range:
        """The seeds of its runs."""
        return range(self.seed, self.seed + (self.seeds or 1))

    @property
    def driven_by(self) -> Literal["sequential", "phased", "lanes"]:
        """The schedule that the flags amount to."""
        return self.schedule or ("lanes" if self.use_batching else "sequential")


def check_num_mini_batch(num_steps: int, num_processes: int, num_mini_batch: int) -> None:
    """Check that num_processes x num_steps rows split into equal minibatches of at least two rows.

    Raises:
        ValueError: they do not, or are too many; the message names the nearest numbers that do.
    """
    rows = num_processes * num_steps
    rollout = f"the rollout of {num_processes} x {num_steps} = {rows} rows"
    if not 1 < rows <= MOST_ROWS:
        raise ValueError(
            f"{rollout} is not of 2 to {MOST_ROWS}: change --num-steps or --num-processes"
        )
    if num_mini_batch == rows or rows % num_mini_batch:
        divisors = [each for each in range(1, rows) if rows % each == 0]
        nearest = [each for each in divisors if each < num_mini_batch][-1:]
        nearest += [each for each in divisors if each > num_mini_batch][:1]
        raise ValueError(
            f"--num-mini-batch {num_mini_batch} does not divide {rollout} into minibatches of two "
            f"or more: choose a divisor, such as {' or '.join(map(str, nearest))}"
        )
