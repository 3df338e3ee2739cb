"""The values of `-p`, and the teams that they make: what plays each agent of an episode.

    noop · random · round_robin · fixed:MUTATOR · best_fixed · linucb · cascade · llm:MODEL
    run=FOLDER, or the path of a folder that exists
    class=my.module.Policy or class=path/to/file.py:Policy

Options follow after commas: `random,proportion=0.5`. A value is a TOML number, true, false or a
quoted string, which may hold commas; anything else is the text as it stands.

Each policy is a team of its own; those with a proportion make one team, and share its agents.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from evaluation.llm_policy import LLMPolicy
from evaluation.policies import (
    OrderedPolicy,
    PolicySource,
    RandomPolicy,
    RoundRobinPolicy,
    RunPolicy,
)
from evaluation.user_class import Scalar, user_source
from mutators.registry import DEFAULT_MUTATORS
from ollama_utils.dispatcher import Dispatcher
from records.errors import UserError, as_user_error, nearest
from train.bandit import BanditPolicy
from train.policy import WEIGHTS, TrainedRun, load_run, seed_runs

KEYED = ("class", "run")
"""Kinds that are named `kind=...`."""
FITTED = ("best_fixed", "linucb", "cascade")
"""Kinds that are fitted on the training queries and then learn no more."""
_WITH_ARGUMENT = {"fixed": "fixed:MUTATOR", "llm": "llm:MODEL"}
NAMES = ("noop", "random", "round_robin", *FITTED, *_WITH_ARGUMENT)
"""Kinds that are named as they are, or with an argument behind a colon."""
_COMMA = re.compile(r""",(?=(?:[^"']|"[^"]*"|'[^']*')*$)""")
"""One that stands in no quoted string."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """One policy as it was asked for."""

    kind: str
    """`noop`, `random`, ..., `run` or `class`."""
    arg: str = ""
    """The mutator, the model, the folder or the class; empty where the kind takes none."""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """Those of a run or a class; `proportion` is not among them."""
    proportion: float | None = None
    """Its share of the agents of a mixed team, next to those of the others; None: it is alone."""

    @property
    def name(self) -> str:
        """What it is called in results: as it was written, without its proportion."""
        head = f"{self.kind}:{self.arg}" if self.kind in _WITH_ARGUMENT else self.arg or self.kind
        return ",".join([head, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def short_name(self) -> str:
        """What tables call it: of a run's folder, or a class's file, the last part alone."""
        last = self.arg.rstrip("/").rpartition("/")[2]
        return replace(self, arg=last).name if self.kind in KEYED else self.name


@dataclass(frozen=True, kw_only=True)
class TeamSpec:
    """What plays an episode: one policy for each agent."""

    name: str
    agents: tuple[PolicySpec, ...]
    """(agents,), the policy of each."""
    asked: bool = True
    """Whether `-p` names it; others play only for these to be compared with."""
    rank: int | None = None
    """Its place among the baselines, from 0, whoever named it; None: it is none of them."""
    seeds_of: str | None = None
    """The training of several seeds that it belongs to, where it plays the policy of one seed."""


def parse_policy(text: str, mutators: Sequence[str] = DEFAULT_MUTATORS) -> PolicySpec:
    """Read one value of `-p`; `mutators` are the names that `fixed:` may use.

    Raises:
        ValueError: policy, mutator or an option is unknown, or an option's value is no good.
    """
    head, *rest = [text] if _is_folder(text) else map(str.strip, _COMMA.split(text))
    kind, arg = ("run", head) if _is_folder(head) else _kind(head, mutators)
    options: dict[str, Scalar] = {}
    for part in rest:
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not key.isidentifier() or key in options:
            raise ValueError(f"policy {text!r} has {part!r}; expected key=value, each key once")
        options[key] = _scalar(value)
    share = options.pop("proportion", None)
    if share is not None and (isinstance(share, str | bool) or not 0 < share < math.inf):
        raise ValueError(
            f"policy {text!r} has proportion {share!r}; expected a finite number over 0"
        )
    if options and kind not in KEYED:
        raise ValueError(
            f"policy {text!r} has an unknown option {next(iter(options))!r}; expected proportion"
        )
    is_sample = options.keys() <= {"sample"} and isinstance(options.get("sample", False), bool)
    if kind == "run" and not is_sample:
        raise ValueError(f"policy {text!r}: a run takes sample=true or sample=false alone")
    return PolicySpec(kind=kind, arg=arg, options=options, proportion=share and float(share))


def _kind(head: str, mutators: Sequence[str]) -> tuple[str, str]:
    """The kind and its argument."""
    key, _, value = head.partition("=")
    if key in KEYED and value:
        return key, value
    if key in KEYED:
        expected = "run=FOLDER or class=my.module.Policy"
        raise ValueError(f"policy {head!r} is incomplete; expected {expected}")
    kind, colon, arg = head.partition(":")
    if kind not in NAMES:
        known = nearest(key, (*NAMES, *(f"{each}=" for each in KEYED)))
        raise ValueError(f"unknown policy {head!r}, and no such folder; {known}")
    if bool(arg) != (kind in _WITH_ARGUMENT) or bool(colon) != bool(arg):
        expected = _WITH_ARGUMENT.get(kind, kind)
        raise ValueError(f"policy {head!r} is incomplete or too long; expected {expected}")
    if kind == "fixed" and arg not in mutators:
        raise ValueError(f"policy {head!r} has an unknown mutator; {nearest(arg, mutators)}")
    return kind, arg


def _is_folder(text: str) -> bool:
    """Whether it is the path of a folder, and no policy's name."""
    return os.path.isdir(text) and text not in NAMES  # noqa: PTH112 - False for what is no path, too


def _scalar(text: str) -> Scalar:
    """A TOML number, truth value or string; anything else as it stands."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, Scalar) else text


def make_source(
    spec: PolicySpec, *, mutators: tuple[str, ...], dispatcher: Dispatcher, seed: int
) -> PolicySource:
    """The source of a policy, neither fitted nor a run's, on a mission with these mutators.

    An `llm:` policy sends its calls to `dispatcher`, with this seed.

    Raises:
        ValueError: the mission has no such mutator, or a class cannot be used.
    """
    match spec.kind:
        case "class":
            return user_source(spec.name, spec.arg, mutators, spec.options)
        case "llm":
            make = partial(LLMPolicy, spec.arg, dispatcher, seed)
            return PolicySource(name=spec.name, make=make)
        case "random":
            return PolicySource(name=spec.name, make=RandomPolicy)
        case "round_robin":
            return PolicySource(name=spec.name, make=RoundRobinPolicy)
    mutator = spec.arg or "noop"
    if mutator not in mutators:
        raise ValueError(
            f"policy {spec.name!r} needs the mutator {mutator!r}: add it to --mutators, or "
            f"leave the policy out of -p or --baselines; {nearest(mutator, mutators)}"
        )
    return PolicySource(name=spec.name, make=partial(OrderedPolicy, (mutators.index(mutator),)))


def trained_source(spec: PolicySpec, run: TrainedRun) -> PolicySource:
    """The source of the policy of a training run, whose network is loaded now.

    Raises:
        UserError: the network cannot be loaded, or has no probabilities to `sample` by.
    """
    sample = bool(spec.options.get("sample"))
    network = run.load_network()
    if sample and isinstance(network.policy, BanditPolicy):
        raise UserError(
            f"the run {str(run.path)!r} saved a bandit or a fixed choice, which has no "
            "probabilities to draw by: leave sample=true out"
        )
    make = partial(RunPolicy, run.path / WEIGHTS, run.changed_ns, sample)
    return PolicySource(name=spec.name, make=make)


def read_teams(
    policies: Sequence[str],
    baselines: Sequence[str],
    agents: int,
    mutators: Sequence[str],
    *,
    guarded: bool,
) -> list[TeamSpec]:
    """The teams of so many agents that `-p` and `--baselines` name, in this order.

    `mutators` are those of any mission. With guard queries (`guarded`) `noop` is among the teams:
    it asks them as they stand.

    Raises:
        UserError: a policy cannot be read, or two have one name.
    """
    with as_user_error(ValueError):
        parsed = [parse_policy(text, mutators) for text in policies]
        compared = [parse_policy(text, mutators) for text in baselines]
    mixed = [spec for spec in parsed if spec.proportion is not None]
    alone = [spec for spec in parsed if spec.proportion is None]
    ranks = {spec.name: rank for rank, spec in enumerate(compared)}
    asked = {spec.name for spec in alone}
    if guarded:
        compared.append(PolicySpec(kind="noop"))
    added = {spec.name: spec for spec in compared if spec.name not in asked}
    teams = [_mixed_team(mixed, agents)] if mixed else []
    for spec in (*alone, *added.values()):
        team = TeamSpec(
            name=spec.short_name,
            agents=(spec,) * agents,
            asked=spec.name in asked,
            rank=ranks.get(spec.name),
        )
        teams += _seed_teams(team) or [team]
    if not teams:
        raise UserError("no policy is named: name one with -p, as -p runs/train-... or -p random")
    for names in ([team.name for team in teams], [spec.short_name for spec in mixed]):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(
                f"two policies are called {twice!r}: name each once; runs need different names"
            )
    return teams


def read_runs(teams: Sequence[TeamSpec]) -> dict[str, TrainedRun]:
    """The training runs among the policies, by the names of these.

    Raises:
        UserError: one is no such run.
    """
    specs = {spec.name: spec for team in teams for spec in team.agents if spec.kind == "run"}
    return {name: load_run(spec.arg) for name, spec in specs.items()}


def _seed_teams(team: TeamSpec) -> list[TeamSpec]:
    """A team for each seed of a training of several; none where the policy is no such training."""
    spec = team.agents[0]
    folders = seed_runs(spec.arg) if spec.kind == "run" else []
    specs = [replace(spec, arg=str(folder)) for folder in folders]
    return [
        replace(
            team,
            name=f"{team.name}/{each.short_name}",
            agents=(each,) * len(team.agents),
            seeds_of=team.name,
        )
        for each in specs
    ]


def _mixed_team(mixed: Sequence[PolicySpec], agents: int) -> TeamSpec:
    """Policies with their proportions, as one team."""
    proportions = [spec.proportion or 0.0 for spec in mixed]
    with as_user_error(ValueError):
        places = assign(proportions, agents)
    name = " + ".join(f"{spec.proportion:g} {spec.short_name}" for spec in mixed)
    return TeamSpec(name=name, agents=tuple(mixed[place] for place in places))


def assign(proportions: Sequence[float], agents: int) -> list[int]:
    """Which policy serves each agent, the agents of one policy side by side: largest remainders.

    Args:
        proportions: (policies,), over 0 and finite; of equal remainders the first wins.
        agents: how many there are.

    Returns:
        (agents,), the policies' numbers in rising order.

    Raises:
        ValueError: a policy gets no agent.
    """
    shares = [Fraction(str(float(share))) for share in proportions]  # as written: .1 is a tenth
    quotas = [share * agents / sum(shares) for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: counts[i] - quotas[i])
    for i in by_remainder[: agents - sum(counts)]:
        counts[i] += 1
    if 0 in counts:
        raise ValueError(
            f"of {agents} agents, the shares {list(proportions)!r} leave none to policy "
            f"{counts.index(0) + 1}: use more agents or give it a larger proportion"
        )
    return [i for i, count in enumerate(counts) for _ in range(count)]
