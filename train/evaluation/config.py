"""Everything `mutagym eval` can be told: its flags, with their help."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from train.evaluation.missions import is_path
from train.mission import MissionConfig
from train.run_defaults import run_path
from train.server import ServerConfig
from train.settings import Count, Lanes, Seed, Share, comma_list

MAY_CHANGE = (
    *("ollama-host", "slots", "profile", "time-scale", "max-loaded-models", "memory-gb", "faults"),
    *("max-in-flight", "call-timeout-s", "call-attempts", "max-unscored", "jobs", "parallel-policy"),
    *("policy-wrapper", "action-timeout-ms", "power", "judge-accuracy", "format", "save-transitions"),
)
"""What a resumed evaluation may be told anew: nothing that its results depend on, but for failing calls."""
BASELINES = ("noop", "random", "best_fixed")

Difference = Annotated[float | None, Parameter(validator=lambda _type, value: _check_difference(value))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Everything an evaluation is told. Defaults < those of the run that -p names < --config < flags."""

    policy: Annotated[tuple[str, ...], Parameter(name=("--policy", "-p"), negative="")] = ()
    """A policy (repeatable): a run folder, noop, random, round_robin, fixed:MUTATOR, best_fixed,
    epsilon_greedy, ucb1, exp3, llm:MODEL or class=MODULE.CLASS,key=value; proportion= mixes them."""
    mission: Annotated[tuple[str, ...], Parameter(name=("--mission", "-m"), negative="")] = ()
    """A mission (repeatable): a TOML file, a run folder, or key=value,... [the one of the flags]."""
    baselines: Annotated[tuple[str, ...], comma_list()] = BASELINES
    """Policies that the others are compared with, by comma; '' for none."""
    agents: Lanes = 1
    """Agents of an episode: the same query, each with its own plan and its own policy."""
    episodes: Count | None = None
    """Queries that are played, each once [all that are held out]."""
    split: Literal["held-out", "train"] = "held-out"
    """The queries that are played; `train` shows how well a policy knows what it was trained on, no more."""
    steps: Count | None = None
    """The step limit of an episode in every mission [--max-steps]."""
    seed: Seed = 0
    """Same seed, same results."""
    jobs: Lanes = 32
    """Plans at work at once, over all missions, episodes and agents."""
    parallel_policy: bool = False
    """The agents' policies choose side by side."""
    policy_wrapper: Literal["auto", "thread", "process", "batch", "torch"] | None = None
    """How they do; implies --parallel-policy [auto: measured in the first steps]."""
    action_timeout_ms: Count | None = None
    """Milliseconds a policy may take for an action; its episode fails when it takes longer."""
    fit_calls: Count = 2000
    """Questions to the target that each policy that is fitted may ask, on the training queries."""
    max_unscored: Share = 0.5
    """The evaluation stops once more than this share of recent steps could not be scored."""
    power: Difference = None
    """Say how many queries it takes to find this difference in success rates."""
    judge_accuracy: Path | None = None
    """A file of `mutagym judge --json`: rates are shown corrected for the judge's errors, too."""
    format: Literal["table", "json", "yaml"] = "table"
    """How the report is written to stdout."""
    save_transitions: bool = False
    """Write every step to transitions.jsonl."""
    run_dir: Path | None = None
    """The evaluation's folder, new or empty [runs/eval-TIME-SEED]."""
    resume: Path | None = None
    """Go on with the evaluation in this folder: what was answered is not asked again; only hosts and limits
    may be changed."""
    cache: Path | None = None
    """A folder that runs share, of replies and embeddings: what was asked there is not asked again."""
    json: Path | None = None
    """Write the report here too, as JSON."""
    played: MissionConfig = field(default_factory=MissionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> EvalConfig:
        """The same with absolute paths."""
        return replace(
            self,
            mission=tuple(str(Path(text).absolute()) if is_path(text) else text for text in self.mission),
            policy=tuple(map(_located_policy, self.policy)),
            judge_accuracy=self.judge_accuracy and self.judge_accuracy.absolute(),
            played=self.played.located(),
            server=self.server.located(),
        )

    @property
    def wrapper(self) -> str:
        """The name of the policy wrapper that the flags amount to."""
        return self.policy_wrapper or ("auto" if self.parallel_policy else "serial")


def _located_policy(text: str) -> str:
    """A run, or a class in a file, with its whole path; any other policy as it is."""
    head, comma, options = text.partition(",")
    kind, equals, rest = head.partition("=")
    if kind == "class" and ":" in rest:
        return f"class={Path(rest).absolute()}{comma}{options}"
    if not run_path(head):
        return text
    where = Path(rest if equals else head).absolute()
    return f"{'run=' if equals else ''}{where}{comma}{options}"


def _check_difference(value: float | None) -> None:
    if value is not None and not 0 < value < 1:
        raise ValueError(f"expected a difference between 0 and 1, got {value!r}")
