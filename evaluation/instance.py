"""One instance of a policy: its actions, and the scores of its network."""

from __future__ import annotations

import operator
import reprlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from evaluation.errors import PolicyError
from evaluation.policies import PolicySource, View
from records.interrupt import Interrupted

if TYPE_CHECKING:
    import torch

Placed = tuple[int, NDArray[np.float32]]
"""A place from 0 to 15 and an observation (D,)."""
BLOCK_ROWS = 16
"""Rows of every forward pass."""


class Instance:
    """An instance of a policy; one with a network is stepped through it.

    Raises:
        Exception: whatever making it raises; PolicyError for SystemExit and its like.
    """

    def __init__(self, source: PolicySource, seed: int) -> None:
        self.name = source.name
        self.place = seed % BLOCK_ROWS
        """Its row in a block, which does not depend on who else is there."""
        self.policy: Any = self._call(source.make, seed)
        self.network = _ready(getattr(self.policy, "network", None))

    def step(self, view: View) -> int:
        """The action."""
        if self.network is not None:
            (scores,) = block_scores(self.network, [(self.place, view.observation)])
            return self.choose(scores, view)
        return checked(self._call(self.policy.step, view), self.name, view)

    def choose(self, scores: NDArray[np.float32], view: View) -> int:
        """The action for the network's scores (A,); the highest where the policy does not say."""
        if np.isnan(scores).any():
            raise PolicyError(
                f"the network of policy {self.name!r} gave scores that are not numbers"
            )
        choose = getattr(self.policy, "choose", None)
        action = int(np.argmax(scores)) if choose is None else self._call(choose, scores, view)
        return checked(action, self.name, view)

    def step_batch(self, views: Sequence[View]) -> list[object]:
        """What the policy gives for several agents' views, one each, not checked further."""
        actions = list(self._call(self.policy.step_batch, views))
        if len(actions) != len(views):
            raise PolicyError(
                f"policy {self.name!r} gave {len(actions)} actions for {len(views)} views; "
                "expected one each"
            )
        return actions

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - whatever a policy returns
        """Call the policy's code, which may not end the evaluation."""
        try:
            return function(*arguments)
        except (Exception, Interrupted):
            raise
        except BaseException as error:  # noqa: BLE001 - such as SystemExit or a CancelledError
            message = f"policy {self.name!r} raised {error!r}; expected an action"
            raise PolicyError(message).with_traceback(error.__traceback__) from None


def _ready(network: object) -> torch.nn.Module | None:
    """A network in evaluation mode, on a GPU where there is one; None for anything else."""
    if "torch" not in sys.modules:  # then nothing is a network
        return None
    import torch

    if not isinstance(network, torch.nn.Module):
        return None
    return (network.to("cuda") if torch.cuda.is_available() else network).eval()


def block_scores(network: torch.nn.Module, rows: Sequence[Placed]) -> list[NDArray[np.float32]]:
    """The network's scores (A,) of each row, with the same bits whatever rows are beside it.

    A matrix product of one shape gives a row the same bits whatever the other rows hold, but not in
    another shape, and not surely in another place. So there are always 16 rows, and a row keeps its
    place; of rows with the same place, each goes into another block.

    Args:
        network: in evaluation mode.
        rows: all with observations of one shape.

    Raises:
        PolicyError: the network gives no 16 rows of scores for 16 observations.
    """
    import torch

    blocks: list[dict[int, int]] = []
    """By place the number of the row that has it."""
    for number, (place, _) in enumerate(rows):
        free = next((block for block in blocks if place not in block), None)
        if free is None:
            blocks.append(free := {})
        free[place] = number
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    scores: dict[int, NDArray[np.float32]] = {}
    for block in blocks:
        # In torch's own memory: how an array is aligned can change the bits of a product.
        observations = torch.zeros(BLOCK_ROWS, *rows[0][1].shape)
        for place, number in block.items():
            observations[place] = torch.from_numpy(rows[number][1])
        with torch.no_grad():
            found = network(observations.to(device))
        if found.ndim != 2 or len(found) != BLOCK_ROWS:  # noqa: PLR2004 - rows and scores
            raise PolicyError(
                f"a network gave scores of shape {tuple(found.shape)}; "
                f"expected ({BLOCK_ROWS}, mutators)"
            )
        of_places = found.to("cpu", torch.float32).numpy()
        scores |= {number: of_places[place] for place, number in block.items()}
    return [scores[number] for number in range(len(rows))]


def checked(action: object, name: str, view: View) -> int:
    """The action as an int.

    Raises:
        PolicyError: it is no integer, or no mutator has this number.
    """
    try:
        number = -1 if isinstance(action, bool) else operator.index(cast("int", action))
    except TypeError:
        number = -1
    if 0 <= number < len(view.mutators):
        return number
    raise PolicyError(
        f"policy {name!r} chose {reprlib.repr(action)}; "
        f"expected an integer from 0 to {len(view.mutators) - 1}"
    )
