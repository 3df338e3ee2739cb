"""The values of `-p`: which policy, with which options, for which share of the agents.

    noop · random · round_robin · fixed:MUTATOR · best_fixed · linucb · cascade · llm:MODEL
    run=FOLDER, or the path of a folder that exists
    class=my.module.Policy or class=path/to/file.py:Policy

Options follow after commas: `random,proportion=0.5`. A value is a TOML number, true, false or a
quoted string, which may hold commas; anything else is the text as it stands.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from evaluation.llm_policy import LLMPolicy
from evaluation.policies import (
    OrderedPolicy,
    PolicySource,
    RandomPolicy,
    RoundRobinPolicy,
    SeededSource,
)
from evaluation.user_class import Scalar, user_source
from mutators.registry import DEFAULT_MUTATORS
from ollama_utils.dispatcher import Dispatcher
from records.errors import nearest

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


def parse_policy(text: str, mutators: Sequence[str] = DEFAULT_MUTATORS) -> PolicySpec:
    """Read one value of `-p`; `mutators` are the names that `fixed:` may use.

    Raises:
        ValueError: policy, mutator or an option is unknown, or the proportion is not over 0.
    """
    head, *rest = [text] if _is_folder(text) else map(str.strip, _COMMA.split(text))
    kind, arg = _head(head, text, mutators)
    options = _options(rest, text)
    share = options.pop("proportion", None)
    if share is not None and (isinstance(share, str | bool) or not 0 < share < math.inf):
        raise ValueError(
            f"policy {text!r} has proportion {share!r}; expected a finite number over 0"
        )
    if options and kind not in KEYED:
        raise ValueError(
            f"policy {text!r} has an unknown option {next(iter(options))!r}; expected proportion"
        )
    return PolicySpec(kind=kind, arg=arg, options=options, proportion=share and float(share))


def make_source(
    spec: PolicySpec,
    *,
    mutators: tuple[str, ...],
    dispatcher: Dispatcher,
    seed: int,
) -> PolicySource:
    """The source of a policy that is neither fitted nor a run's.

    Args:
        spec: which policy.
        mutators: the names of the mission's mutators.
        dispatcher: where an `llm:` policy sends its calls.
        seed: of those calls.

    Raises:
        ValueError: the mission has no such mutator, a class cannot be used, or the policy has to be
            fitted or loaded first.
    """
    match spec.kind:
        case "noop" | "fixed":
            mutator = spec.arg or "noop"
            if mutator not in mutators:
                raise ValueError(
                    f"policy {spec.name!r} needs the mutator {mutator!r}: add it to --mutators, or "
                    "leave the policy out of -p or --baselines; "
                    f"{nearest(mutator, mutators)}"
                )
            return OrderedPolicy(name=spec.name, order=(mutators.index(mutator),))
        case "random":
            return SeededSource(name=spec.name, policy=RandomPolicy)
        case "round_robin":
            return SeededSource(name=spec.name, policy=RoundRobinPolicy)
        case "class":
            return user_source(spec.name, spec.arg, mutators, spec.options)
        case "llm":
            return LLMPolicy(name=spec.name, model=spec.arg, dispatcher=dispatcher, seed=seed)
    raise ValueError(f"policy {spec.name!r} cannot be made from its name alone")


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


def _head(head: str, text: str, mutators: Sequence[str]) -> tuple[str, str]:
    """The kind and its argument."""
    if _is_folder(head):
        return "run", head
    kind, equals, arg = head.partition("=")
    if equals:
        if kind in KEYED and arg:
            return kind, arg
        known = nearest(kind, (*KEYED, *NAMES))
        expected = known if kind not in KEYED else "expected run=FOLDER or class=my.module.Policy"
        raise ValueError(f"policy {text!r} begins with {kind!r}; {expected}")
    kind, colon, arg = head.partition(":")
    if kind not in NAMES:
        raise ValueError(f"unknown policy {head!r}, and no such folder; {nearest(kind, NAMES)}")
    if bool(arg) != (kind in _WITH_ARGUMENT) or bool(colon) != bool(arg):
        expected = _WITH_ARGUMENT.get(kind, kind)
        raise ValueError(f"policy {head!r} is incomplete or too long; expected {expected}")
    if kind == "fixed" and arg not in mutators:
        raise ValueError(f"policy {head!r} has an unknown mutator; {nearest(arg, mutators)}")
    return kind, arg


def _is_folder(text: str) -> bool:
    """Whether it is the path of a folder, and no policy's name."""
    return os.path.isdir(text) and text not in NAMES  # noqa: PTH112 - False for what is no path, too


def _options(parts: Sequence[str], text: str) -> dict[str, Scalar]:
    options: dict[str, Scalar] = {}
    for part in parts:
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not key.isidentifier() or key in options:
            raise ValueError(f"policy {text!r} has {part!r}; expected key=value, each key once")
        options[key] = _scalar(value)
    return options


def _scalar(text: str) -> Scalar:
    """A TOML number, truth value or string; anything else as it stands."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, Scalar) else text
