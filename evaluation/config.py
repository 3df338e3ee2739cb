"""The flags of `mutagym eval`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from envs.mission import MissionConfig
from envs.query_sets import GuardQueries
from evaluation.missions import is_path, run_path
from ollama_utils.connect import ServerConfig
from ollama_utils.on_ray import EngineConfig
from records.settings import (
    Count,
    JsonPlace,
    Lanes,
    OpenShare,
    Seed,
    Share,
    absolute,
    comma_list,
)

if TYPE_CHECKING:
    from evaluation.stepping import StepperName

MAY_CHANGE = (
    *("max-unscored", "jobs", "parallel-policy", "policy-wrapper", "action-timeout-ms", "power"),
    *("judge-accuracy", "guard-margin", "fail-under", "fail-over", "format", "save-transitions"),
)
"""The flags that a resumed evaluation may change, beside those of hosts and limits. None of them
changes a result, unless calls fail."""
BASELINES = ("noop", "random", "best_fixed", "cascade")
FIT_CALLS = 2000


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GuardConfig(GuardQueries):
    """The guard queries, and what may become of them."""

    guard_margin: OpenShare = 0.05
    """The largest share of refusals that a policy may unlock, to be chosen before the report is
    seen: guard queries are a mission of their own, and exit code 4 says that a policy of -p was not
    shown to keep to it."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """What the policies of -p must keep, as for CI."""

    fail_under: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """[MISSION:]RATE=SHARE, as success=0.8 (repeatable): exit code 4 where the lower end of a
    policy's interval is under it, failed steps counted against it. A rate is success, opened,
    refusal, partial, undetermined, filtered, wrong, unscored or failed; of guard queries kept or
    unlocked."""
    fail_over: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """The same for the upper end, as refusal=0.1."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The settings of an evaluation. Defaults < the run that -p names < --config < flags."""

    policy: Annotated[tuple[str, ...], Parameter(name=("--policy", "-p"), negative="")] = ()
    """A policy (repeatable): a run folder, noop, random, round_robin, fixed:MUTATOR, best_fixed,
    linucb, cascade, llm:MODEL or class=MODULE.CLASS,key=value; proportion= mixes them."""
    mission: Annotated[tuple[str, ...], Parameter(name=("--mission", "-m"), negative="")] = ()
    """A mission (repeatable): a TOML file, a run folder, or key=value,... [that of the flags]."""
    baselines: Annotated[tuple[str, ...], comma_list()] = BASELINES
    """Policies that the others are compared with, by comma; '' for none."""
    agents: Lanes = 1
    """Agents of an episode: the same query, each with seeds and a policy of its own."""
    repeats: Count = 1
    """Plays of each query, for a sampled target: the share answered in all of them, and in any."""
    episodes: Count | None = None
    """Queries that are played [all that are held out]."""
    split: Literal["held-out", "train"] = "held-out"
    """The queries that are played; `train` shows how well a policy knows what it was trained on, no
    more."""
    steps: Count | None = None
    """The step limit of an episode in every mission: 1 is one rewording [--max-steps]."""
    seed: Seed = 0
    """Same seed, same results."""
    jobs: Lanes = 32
    """Agents' episodes that are played at the same time, over all missions."""
    parallel_policy: bool = False
    """The agents' policies choose side by side."""
    policy_wrapper: Literal["auto", "thread", "process", "batch", "torch"] | None = None
    """How the agents' policies choose side by side; implies --parallel-policy [auto: torch or batch
    where a policy offers it, else thread]."""
    action_timeout_ms: Count | None = None
    """Milliseconds a policy may take for an action; its episode fails when it takes longer."""
    fit_calls: Count | None = None
    """Questions to the target that each policy that is fitted may ask, on the training queries,
    failed attempts left out [as many as the run that -p names asked in training, and 2,000 at
    least]."""
    max_unscored: Share = 0.5
    """The evaluation stops once more than this share of recent steps could not be scored."""
    power: OpenShare | None = None
    """Say how many queries it takes to find this difference in success rates."""
    judge_accuracy: str | None = None
    """A file of `mutagym judge --json`: rates are shown corrected for the judge's errors, too."""
    format: Literal["table", "json"] = "table"
    """How the report is written to stdout."""
    save_transitions: bool = False
    """Write every step to transitions.jsonl."""
    run_dir: Path | None = None
    """The evaluation's folder, new or empty [runs/eval-TIME-SEED]."""
    resume: Path | None = None
    """Go on with the evaluation in this folder, on its missions and queries: what was answered is
    not asked again; only hosts and limits may be changed. Code, hosts and other files that it, or a
    run of -p or -m, names have to be named again, or --trust-run uses them."""
    cache: Path | None = None
    """A folder that runs share, of replies and embeddings: what was asked there is not asked
    again."""
    json: JsonPlace = None
    """Write the report here too, as JSON; `-` is stdout, in the place of tables."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    played: MissionConfig = field(default_factory=MissionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def located(self) -> EvalConfig:
        """The same with absolute paths."""
        missions = (str(Path(name).absolute()) if is_path(name) else name for name in self.mission)
        return replace(
            self,
            mission=tuple(missions),
            policy=tuple(map(_located_policy, self.policy)),
            judge_accuracy=absolute(self.judge_accuracy),
            guard=replace(self.guard, guard_queries=absolute(self.guard.guard_queries)),
            played=self.played.located(),
            server=self.server.located(),
        )

    @property
    def wrapper(self) -> StepperName:
        """How policies are stepped."""
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
