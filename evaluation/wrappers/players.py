"""One agent's policy in one episode, whichever way it is stepped: what it chooses, and what it may not do."""

from __future__ import annotations

import operator
import reprlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evaluation.policies.policy import Policy, PolicySource, View
from evaluation.wrappers.blocks import BLOCK_ROWS, block_scores, made_ready
from evaluation.wrappers.errors import PolicyActionError, PolicyExitError

if TYPE_CHECKING:
    import torch


class Player:
    """An instance of a policy; a policy with a network is stepped through it.

    Args:
        name: the policy's, for messages.
        policy: the instance.
        seed: the one it was made with; its rows in a block of the network follow from it.
    """

    def __init__(self, name: str, policy: Policy, seed: int) -> None:
        self.name = name
        self.policy = policy
        self.place = seed % BLOCK_ROWS
        """Its row in a block, which does not depend on who else is there."""
        self.network = _network(policy)
        """The policy's torch network; None where it has none."""

    def step(self, view: View) -> int:
        """The policy's action.

        Raises:
            PolicyActionError: it is no mutator's number.
            PolicyExitError: the policy raised SystemExit.
            Exception: whatever the policy raises.
        """
        if self.network is not None:
            return self.choose(view, block_scores(self.network, [(self.place, view.observation)])[0])
        with exits_as_errors(self.name):
            action: object = self.policy.step(view)
        return checked_action(action, view, self.name)

    def choose(self, view: View, scores: NDArray[np.float32]) -> int:
        """The action for the network's scores (mutators,); the highest where the policy does not say.

        Raises:
            PolicyActionError: a score is NaN, or the action no mutator's number.
        """
        if np.isnan(scores).any():
            raise PolicyActionError(f"the network of policy {self.name!r} gave scores that are not numbers")
        choose: Any = getattr(self.policy, "choose", None)
        with exits_as_errors(self.name):
            action: object = int(np.argmax(scores)) if choose is None else choose(scores, view)
        return checked_action(action, view, self.name)


def make_player(source: PolicySource, seed: int) -> Player:
    """A new instance of a policy.

    Raises:
        PolicyExitError: making it raised SystemExit.
        Exception: whatever making it raises.
    """
    with exits_as_errors(source.name):
        return Player(source.name, source.make(seed), seed)


def step_together(player: Player, views: Sequence[View]) -> list[int | Exception]:
    """The actions (views,) of a policy that serves several agents, or what is wrong with each.

    Raises:
        PolicyActionError: there are not as many actions as views.
        Exception: whatever the policy raises.
    """
    with exits_as_errors(player.name):
        actions = list(player.policy.step_batch(views))  # type: ignore[attr-defined] # the wrapper has looked
    if len(actions) != len(views):
        raise PolicyActionError(
            f"policy {player.name!r} gave {len(actions)} actions for {len(views)} views; expected one each"
        )
    return [_checked_or_error(action, view, player.name) for action, view in zip(actions, views, strict=True)]


def can_batch(policy: Policy) -> bool:
    """Whether it has a method `step_batch`."""
    return callable(getattr(policy, "step_batch", None))


@contextmanager
def exits_as_errors(name: str) -> Iterator[None]:
    """Turn a policy's SystemExit into an error of its own: it may not end the evaluation.

    Raises:
        PolicyExitError: in its place.
    """
    try:
        yield
    except SystemExit as error:
        raise PolicyExitError(
            f"policy {name!r} raised SystemExit({error.code!r}); expected an action"
        ) from error


def checked_action(action: object, view: View, name: str) -> int:
    """The action as an int.

    Raises:
        PolicyActionError: it is no integer, or no mutator has this number.
    """
    try:
        number = -1 if isinstance(action, bool) else operator.index(action)  # type: ignore[arg-type] # seen below
    except TypeError:
        number = -1
    if not 0 <= number < len(view.mutators):
        last = len(view.mutators) - 1
        raise PolicyActionError(
            f"policy {name!r} chose {reprlib.repr(action)}; expected an integer from 0 to {last}"
        )
    return number


def _checked_or_error(action: object, view: View, name: str) -> int | Exception:
    try:
        return checked_action(action, view, name)
    except PolicyActionError as error:
        return error


def _network(policy: Policy) -> torch.nn.Module | None:
    """The policy's network, ready for use; nothing is one while nobody has imported torch."""
    network = getattr(policy, "network", None)
    torch = sys.modules.get("torch")
    return made_ready(network) if torch and isinstance(network, torch.nn.Module) else None
