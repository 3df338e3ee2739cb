"""One instance of a policy: what it chooses, what it may not do, and its network in blocks of fixed shape.

A row of a forward pass has the same bits whatever rows are beside it: a matrix product of one shape gives a
row the same bits whatever the other rows hold, but not in another shape, and not surely in another place. So
there are always 16 rows, and a row keeps its place.
"""

from __future__ import annotations

import operator
import reprlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evaluation.errors import PolicyActionError, PolicyError, PolicyExitError
from evaluation.policies.policy import Policy, PolicySource, View

if TYPE_CHECKING:
    import torch

BLOCK_ROWS = 16
"""Rows of every forward pass."""
Outcome = int | Exception
"""An action, or what stands in its place."""


class PolicyInstance:
    """An instance of a policy; a policy with a network is stepped through it.

    Args:
        name: the policy's, for messages.
        policy: the instance.
        seed: the one it was made with; its rows in a block of the network follow from it.
    """

    def __init__(self, name: str, policy: Policy, seed: int) -> None:
        self.name = name
        self.policy = policy
        self.block_row = seed % BLOCK_ROWS
        """Its row in a block, which does not depend on who else is there."""
        self.network = _network(policy)
        """The policy's torch network; None where it has none."""

    @property
    def can_batch(self) -> bool:
        """Whether the policy has a method `step_batch`."""
        return callable(getattr(self.policy, "step_batch", None))

    def step(self, view: View) -> Outcome:
        """The policy's action, or whatever it raises; a PolicyError where it is no mutator's number."""
        try:
            if self.network is not None:
                return self.choose(view, block_scores(self.network, [(self.block_row, view.observation)])[0])
            with exits_as_errors(self.name):
                action: object = self.policy.step(view)
            return self._checked(action, view)
        except Exception as error:  # noqa: BLE001 - a policy is anybody's code
            return error

    def choose(self, view: View, scores: NDArray[np.float32]) -> Outcome:
        """The action for the network's scores (mutators,); the highest where the policy does not say."""
        if np.isnan(scores).any():
            return PolicyActionError(f"the network of policy {self.name!r} gave scores that are not numbers")
        choose: Any = getattr(self.policy, "choose", None)
        try:
            with exits_as_errors(self.name):
                action: object = int(np.argmax(scores)) if choose is None else choose(scores, view)
            return self._checked(action, view)
        except Exception as error:  # noqa: BLE001 - a policy is anybody's code
            return error

    def step_batch(self, views: Sequence[View]) -> list[Outcome]:
        """The actions (views,) of a policy that serves several agents, or what is wrong with each."""
        try:
            with exits_as_errors(self.name):
                actions = list(self.policy.step_batch(views))  # type: ignore[attr-defined] # see `can_batch`
        except Exception as error:  # noqa: BLE001 - a policy is anybody's code
            return [error] * len(views)
        if len(actions) != len(views):
            counts = f"gave {len(actions)} actions for {len(views)} views; expected one each"
            return [PolicyActionError(f"policy {self.name!r} {counts}")] * len(views)
        return [self._checked(action, view) for action, view in zip(actions, views, strict=True)]

    def _checked(self, action: object, view: View) -> Outcome:
        """The action as an int; an error where it is no integer, or no mutator has this number."""
        try:
            number = -1 if isinstance(action, bool) else operator.index(action)  # type: ignore[arg-type] # seen below
        except TypeError:
            number = -1
        if 0 <= number < len(view.mutators):
            return number
        last = len(view.mutators) - 1
        chosen = reprlib.repr(action)
        return PolicyActionError(f"policy {self.name!r} chose {chosen}; expected an integer from 0 to {last}")


def make_instance(source: PolicySource, seed: int) -> PolicyInstance:
    """A new instance of a policy.

    Raises:
        PolicyExitError: making it raised SystemExit.
        Exception: whatever making it raises.
    """
    with exits_as_errors(source.name):
        return PolicyInstance(source.name, source.make(seed), seed)


def instance_or_error(source: PolicySource, seed: int) -> PolicyInstance | Exception:
    """A new instance of a policy, or what making it raised."""
    try:
        return make_instance(source, seed)
    except Exception as error:  # noqa: BLE001 - a policy is anybody's code
        return error


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


def made_ready(network: torch.nn.Module) -> torch.nn.Module:
    """The network itself, in evaluation mode, on a GPU where there is one."""
    import torch

    if torch.cuda.is_available():
        network.to("cuda")
    return network.eval()


def block_scores(
    network: torch.nn.Module, rows: Sequence[tuple[int, NDArray[np.float32]]]
) -> list[NDArray[np.float32]]:
    """The network's scores (A,) of each row; of rows with the same place, each goes into another block.

    Args:
        network: as `made_ready` left it.
        rows: pairs of a place from 0 to 15 and an observation (D,), all of one shape.

    Raises:
        PolicyError: the network gives no 16 rows of scores for 16 observations.
    """
    taken: Counter[int] = Counter()
    blocks: list[NDArray[np.float32]] = []
    places: list[tuple[int, int]] = []
    for place, observation in rows:
        number = taken[place]
        taken[place] += 1
        if number == len(blocks):
            blocks.append(np.zeros((BLOCK_ROWS, *observation.shape), np.float32))
        blocks[number][place] = observation
        places.append((number, place))
    scores = [_forward(network, block) for block in blocks]
    return [scores[number][place] for number, place in places]


def _forward(network: torch.nn.Module, block: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores (16, A) of a block (16, D)."""
    import torch

    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    # A copy in torch's own memory: how an array happens to be aligned can change the bits of a product.
    observations = torch.from_numpy(block).clone().to(device)
    with torch.no_grad():
        given = network(observations)
    scores: NDArray[np.float32] = given.to("cpu", torch.float32).numpy()
    if scores.ndim != 2 or len(scores) != BLOCK_ROWS:  # noqa: PLR2004 - rows and scores
        raise PolicyError(f"a network gave scores of shape {scores.shape}; expected ({BLOCK_ROWS}, mutators)")
    return scores


def _network(policy: Policy) -> torch.nn.Module | None:
    """The policy's network, ready for use; nothing is one while nobody has imported torch."""
    network = getattr(policy, "network", None)
    torch = sys.modules.get("torch")
    return made_ready(network) if torch and isinstance(network, torch.nn.Module) else None
