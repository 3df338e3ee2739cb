"""Which model plays which part: what the flags name, what stands in for it, and whether it is pulled."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ollama_utils.types import short_name
from train.errors import UserError

if TYPE_CHECKING:
    from train.server import ServerConfig


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which model plays which part."""

    target: str
    mutator: str
    judge: str | None


def find_roles(
    config: ServerConfig,
    available: Sequence[str],
    hosts: Sequence[str],
    *,
    simulated_target: str | None,
    named_by: str = "--target-model",
) -> Roles:
    """The models named by flag; the simulator's own where it stands in.

    Args:
        config: names them.
        available: what the hosts have.
        hosts: for the error.
        simulated_target: the target where none is named; None where no simulator stands in.
        named_by: the flag that names a target.

    Raises:
        UserError: one is not pulled, or none is named.
    """
    named = (config.target_model, config.mutator_model, config.judge_model)
    target = config.target_model or simulated_target
    if target is None:
        have = ", ".join(available) or "none: get one with 'ollama pull MODEL'"
        raise UserError(f"name a model with {named_by}; {', '.join(hosts)} has {have}")
    simulated = simulated_target is not None
    mutator = config.mutator_model or ("sim-mutator" if simulated else target)
    judge = config.judge_model or ("sim-judge" if simulated else None)
    check_pulled((target, mutator, *filter(None, named)), available, hosts, simulated=simulated)
    return Roles(target=target, mutator=mutator, judge=judge)


def check_pulled(
    models: Sequence[str], available: Sequence[str], hosts: Sequence[str], *, simulated: bool
) -> None:
    """Check that the hosts have these models.

    Raises:
        UserError: one is not there.
    """
    from ollama_utils.simulator.names import full_name

    pulled = {full_name(name) for name in available}
    for model in models:
        if full_name(model) not in pulled:
            near = difflib.get_close_matches(short_name(model), map(short_name, available), n=1)
            mends = [f"did you mean {near[0]!r}?"] if near else []
            if not simulated:
                mends.append(f"{'if not, ' if near else ''}run 'ollama pull {model}'")
            elif not near:
                mends.append(f"it has {', '.join(available)}")
            raise UserError(f"model {model!r} is not pulled at {', '.join(hosts)}: {' '.join(mends)}")
