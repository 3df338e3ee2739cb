"""The values of `-p`: which policy, with which options, for which share of the agents, and its source.

    noop · random · round_robin · fixed:MUTATOR · best_fixed · epsilon_greedy · ucb1 · exp3 · linucb
    thompson · llm:MODEL
    run=FOLDER, or the path of a folder that exists
    class=my.module.Policy or class=path/to/file.py:Policy

Options follow after commas: `random,proportion=0.5`. A value is a TOML number, true, false or a quoted
string, which may hold commas; anything else is the text as it stands.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from evaluation.policies.bandits import UCB1, Bandit, EpsilonGreedy, Exp3
from evaluation.policies.baselines import FixedPolicy, RoundRobinSource, SampledSource
from evaluation.policies.llm import LLMPolicy
from evaluation.policies.policy import PolicySource
from evaluation.policies.user_class import Scalar, user_source
from mutators.registry import DEFAULT_MUTATORS
from ollama_utils.dispatcher import Dispatcher
from records.errors import nearest

KEYED = ("class", "run")
"""Kinds that are named `kind=...`."""
CONTEXTUAL = ("linucb", "thompson")
"""Bandits that look at the query, and at what was tried."""
FITTED = ("best_fixed", "epsilon_greedy", "ucb1", "exp3", *CONTEXTUAL)
"""Kinds that are fitted on the training queries and then frozen."""
OPTIONS: Mapping[str, tuple[str, ...]] = {"epsilon_greedy": ("epsilon",), "exp3": ("gamma",)}
"""Options of a kind beside `proportion`; those of a class or run are its own affair."""
_BANDITS: dict[str, Any] = {"epsilon_greedy": EpsilonGreedy, "ucb1": UCB1, "exp3": Exp3}
_WITH_ARGUMENT = {"fixed": "fixed:MUTATOR", "llm": "llm:MODEL"}
NAMES = ("noop", "random", "round_robin", *FITTED, *_WITH_ARGUMENT)
"""Kinds that are named as they are, or with an argument behind a colon."""
_PART = re.compile(r"""((?:"[^"]*"|'[^']*'|[^,"'])*)(,|$)""")


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """One policy as it was asked for."""

    kind: str
    """`noop`, `random`, ..., `fixed`, `llm`, `run` or `class`."""
    arg: str = ""
    """The mutator, the model, the folder or the class; empty where the kind takes none."""
    kwargs: Mapping[str, Scalar] = field(default_factory=dict)
    """Its options, `proportion` left out."""
    proportion: float = 1.0
    """Its share of the agents, next to those of the other policies; over 0 and finite."""

    @property
    def name(self) -> str:
        """What it is called in results: as it was written, without its proportion."""
        head = f"{self.kind}:{self.arg}" if self.kind in _WITH_ARGUMENT else self.arg or self.kind
        return ",".join([head, *(f"{key}={value}" for key, value in self.kwargs.items())])


def parse_policy(text: str, mutators: Sequence[str] = DEFAULT_MUTATORS) -> PolicySpec:
    """Read one value of `-p`.

    Args:
        text: the value.
        mutators: the names that `fixed:` may use.

    Raises:
        ValueError: the policy, its mutator or an option is unknown, or the proportion is not over 0.
    """
    head, *rest = [text] if _is_folder(text) else _parts(text)
    kind, arg = _head(head, text, mutators)
    options = _options(rest, text)
    proportion = _proportion(options.pop("proportion", 1.0), text)
    if kind not in KEYED:
        _check_options(kind, options, text)
    return PolicySpec(kind=kind, arg=arg, kwargs=options, proportion=proportion)


def make_source(
    spec: PolicySpec, *, mutators: Sequence[str], dispatcher: Dispatcher | None = None, seed: int = 0
) -> PolicySource:
    """The source of a policy that needs no fitting.

    Args:
        spec: which policy; a run's is loaded elsewhere.
        mutators: the names of the mission's mutators.
        dispatcher: where an `llm:` policy sends its calls.
        seed: of those calls.

    Raises:
        ValueError: the mission has no such mutator, a class cannot be used, there is no dispatcher, or the
            policy has to be fitted or loaded first.
    """
    mutators = tuple(mutators)
    match spec.kind:
        case "noop" | "fixed":
            return FixedPolicy(name=spec.name, action=_action_of(spec.arg or "noop", spec, mutators))
        case "random":
            return SampledSource(name=spec.name, weights=(1 / len(mutators),) * len(mutators))
        case "round_robin":
            return RoundRobinSource(name=spec.name)
        case "class":
            return user_source(spec.name, spec.arg, mutators, spec.kwargs)
        case "llm" if dispatcher is not None:
            return LLMPolicy(name=spec.name, model=spec.arg, dispatcher=dispatcher, seed=seed)
    raise ValueError(
        f"policy {spec.name!r} is of kind {spec.kind!r}, which cannot be made from its name alone"
    )


def make_bandit(spec: PolicySpec, *, arms: int, seed: int) -> Bandit:
    """A bandit to be fitted: `epsilon_greedy`, `ucb1` or `exp3`; for the others see `evaluation/fit.py`.

    Raises:
        ValueError: the spec is of another kind, or an option is out of range.
    """
    if spec.kind not in _BANDITS:
        raise ValueError(f"policy {spec.name!r} is not a bandit; {nearest(spec.kind, _BANDITS)}")
    bandit: Bandit = _BANDITS[spec.kind](arms, seed=seed, name=spec.name, **spec.kwargs)
    return bandit


def assign(proportions: Sequence[float], agents: int) -> list[int]:
    """Which policy serves each agent, the agents of one policy side by side: largest remainders.

    Args:
        proportions: (policies,), shares that need not sum to 1; of equal remainders the first wins.
        agents: how many there are.

    Returns:
        (agents,), the policies' numbers in rising order.

    Raises:
        ValueError: a share is negative or not finite, all are 0, or one over 0 comes to no agent.
    """
    if not all(math.isfinite(share) and share >= 0 for share in proportions) or not sum(proportions) > 0:
        raise ValueError(f"proportions must be finite, at least 0 and not all 0, got {list(proportions)!r}")
    shares = [Fraction(str(float(share))) for share in proportions]  # as written: .1 is a tenth
    quotas = [share * agents / sum(shares) for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: counts[i] - quotas[i])
    for i in by_remainder[: agents - sum(counts)]:
        counts[i] += 1
    left_out = [i for i, share in enumerate(proportions) if share > 0 and not counts[i]]
    if left_out:
        raise ValueError(
            f"of {agents} agents, the shares {list(proportions)!r} leave none to policy {left_out[0] + 1}: "
            "use more agents or give it a larger proportion"
        )
    return [i for i, count in enumerate(counts) for _ in range(count)]


def _head(head: str, text: str, mutators: Sequence[str]) -> tuple[str, str]:
    """The kind and its argument."""
    if _is_folder(head):
        return "run", head
    kind, equals, arg = head.partition("=")
    if equals:
        if kind not in KEYED:
            raise ValueError(f"policy {text!r} begins with {kind!r}; {nearest(kind, (*KEYED, *NAMES))}")
        if not arg:
            raise ValueError(f"policy {text!r} names nothing; expected run=FOLDER or class=my.module.Policy")
        return kind, arg
    kind, colon, arg = head.partition(":")
    if kind not in NAMES:
        raise ValueError(f"unknown policy {head!r}, and no such folder; {nearest(kind, NAMES)}")
    if bool(arg) != (kind in _WITH_ARGUMENT) or bool(colon) != bool(arg):
        raise ValueError(
            f"policy {head!r} is incomplete or too long; expected {_WITH_ARGUMENT.get(kind, kind)}"
        )
    if kind == "fixed" and arg not in mutators:
        raise ValueError(f"policy {head!r} has an unknown mutator; {nearest(arg, mutators)}")
    return kind, arg


def _is_folder(text: str) -> bool:
    """Whether it is the path of a folder, and no policy's name."""
    return os.path.isdir(text) and text not in NAMES  # noqa: PTH112 - False, too, for what cannot be a path


def _parts(text: str) -> list[str]:
    """The text between commas, quoted strings whole."""
    parts, place = [], 0
    while place <= len(text):
        found = _PART.match(text, place)
        if found is None:
            raise ValueError(f"policy {text!r} has a quotation mark that is not closed")
        parts.append(found[1].strip())
        place = found.end() if found[2] else len(text) + 1
    return parts


def _options(parts: Sequence[str], text: str) -> dict[str, Scalar]:
    options: dict[str, Scalar] = {}
    for part in parts:
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not key.isidentifier():
            raise ValueError(f"policy {text!r} has {part!r} after a comma; expected key=value")
        if key in options:
            raise ValueError(f"policy {text!r} gives {key!r} twice; give it once")
        options[key] = _scalar(value)
    return options


def _scalar(text: str) -> Scalar:
    """A TOML number, truth value or string; anything else as it stands."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = found.get("value")
    return value if len(found) == 1 and isinstance(value, Scalar) else text


def _proportion(value: Scalar, text: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < math.inf:
        raise ValueError(f"policy {text!r} has proportion {value!r}; expected a finite number over 0")
    return float(value)


def _check_options(kind: str, options: Mapping[str, Scalar], text: str) -> None:
    known = OPTIONS.get(kind, ())
    for key in options:
        if key not in known:
            raise ValueError(
                f"policy {text!r} has an unknown option {key!r}; {nearest(key, (*known, 'proportion'))}"
            )


def _action_of(mutator: str, spec: PolicySpec, mutators: tuple[str, ...]) -> int:
    if mutator not in mutators:
        raise ValueError(f"policy {spec.name!r} needs the mutator {mutator!r}; {nearest(mutator, mutators)}")
    return mutators.index(mutator)
