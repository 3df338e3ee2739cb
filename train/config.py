"""The settings of `mutagym train`: its flags, with their help.

Those of `mutagym replay` inherit them. Hence annotations here are types, not strings, for the flags are read
off them in other modules.
"""

from dataclasses import dataclass, field, replace
from math import isqrt
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from envs.mission import MissionConfig
from ollama_utils.connect import ServerConfig
from records.settings import Count, JsonPlace, Lanes, NotNegative, Positive, Seed, Several, Share, absolute
from train.audit import AuditConfig
from train.gain import GainConfig

MOST_ROWS = 2**24
"""Rows of a rollout; each holds an observation, so that these alone would take some 25 GB."""


MOST_BANDIT_MUTATORS = 64
"""Mutators that a bandit can choose from: its weights (`train.linear_bandit`) grow with their square, and the
matrix that says how sure these are with the fourth power: a policy's file would get too large to be read."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a training run. Defaults < --config file.toml < flags."""

    algorithm: Literal["ppo", "linucb", "thompson", "auto"] = "ppo"
    """What learns: PPO; a contextual bandit, for few calls; or auto: linucb first, PPO from there."""
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
    """Train so many side by side, of the seeds --seed, --seed + 1, ..., each as it comes out alone [one]."""
    use_batching: Annotated[bool, Parameter(name="--use-batching", negative="--no-batching")] = True
    """Model calls of all lanes side by side, or one after another."""
    schedule: Literal["sequential", "phased", "lanes"] | None = None
    """Who waits for whom [lanes with batching, sequential without]."""
    max_workers: Count | None = None
    """phased: threads of a phase [8]; lanes: the most calls in flight [no limit but --max-in-flight]."""
    max_unscored: Share = 0.5
    """The run stops, saved, once more than this share of recent steps could not be scored."""
    save_interval: Count = 10
    """Updates between checkpoints."""
    log_interval: Count = 1
    """Updates between log entries; each is of the last rollout."""
    judge_accuracy: str | None = None
    """What `mutagym judge --json` wrote of the reward's labels: refusal rates are also told corrected."""
    run_dir: Path | None = None
    """The run's folder, new or empty [runs/train-TIME-SEED; of several seeds runs/train-TIME-seeds]."""
    resume: Path | None = None
    """Go on with the run in this folder, with its settings and queries; only hosts and limits may be changed.
    Code, hosts and other files that it names have to be named again, or --trust-run uses them."""
    cache: Path | None = None
    """A folder that runs share, of replies and embeddings: what was asked there is not asked again."""
    json: JsonPlace = None
    """Write the summary here too, as JSON; `-` is stdout, in the place of the table."""
    audit: AuditConfig = field(default_factory=AuditConfig)
    gain: GainConfig = field(default_factory=GainConfig)
    mission: MissionConfig = field(default_factory=MissionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> "TrainConfig":
        """The same with absolute paths, so that its file means the same in every folder."""
        return replace(
            self,
            judge_accuracy=absolute(self.judge_accuracy),
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
        """How many of the steps a bandit chooses, in whole rollouts of its own: the first ones."""
        most = {"ppo": 0, "auto": self.bandit_env_steps}.get(self.algorithm, self.num_env_steps)
        rollout = self.bandit_steps * self.num_processes
        return -(-min(most, self.num_env_steps) // rollout) * rollout

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
        ValueError: it does not; the message names the nearest numbers that do. Or there are too many rows.
    """
    rows = num_processes * num_steps
    rollout = f"the rollout of {num_processes} x {num_steps} = {rows} rows"
    if rows > MOST_ROWS:
        raise ValueError(f"{rollout} is over {MOST_ROWS}: lower --num-steps or --num-processes")
    low = [n for n in range(1, isqrt(rows) + 1) if rows % n == 0]
    divisors = sorted({*low, *(rows // n for n in low)} - {rows})
    if num_mini_batch in divisors:
        return
    if not divisors:
        raise ValueError(f"{rollout} is too short to learn from: raise --num-steps or --num-processes")
    below = [n for n in divisors if n < num_mini_batch][-1:]
    above = [n for n in divisors if n > num_mini_batch][:1]
    fault = "leaves single rows of" if num_mini_batch == rows else "does not divide"
    choice = " or ".join(str(n) for n in below + above)
    raise ValueError(
        f"--num-mini-batch {num_mini_batch} {fault} {rollout}: choose a divisor, such as {choice}"
    )
