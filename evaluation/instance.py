"""One instance of a policy: its actions, the scores of its network, and what can go wrong."""

from __future__ import annotations

import operator
import reprlib
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from evaluation.policies import PolicySource, View
from records.interrupt import Interrupted

if TYPE_CHECKING:
    import torch

BLOCK_ROWS = 16
"""Rows of every forward pass."""
Placed = tuple[int, NDArray[np.float32]]
"""A place from 0 to 15 and an observation (D,)."""
_OUR_MODULES = ("evaluation.", "ollama_utils.threads", "concurrent.futures.")
"""Modules whose frames at the head of a traceback are not the policy's."""
_HEAD = "Traceback (most recent call last):\n"


class StepperError(ValueError):
    """A policy cannot be made or stepped in this way, or the evaluation has ended."""


class PolicyError(Exception):
    """A step overran its deadline, gave no mutator's number, exited, or ended its process."""


class RemotePolicyError(PolicyError):
    """A policy raised in its process; the one argument is the traceback there."""


def timeout_error(name: str, timeout_ms: float) -> PolicyError:
    """The error of a step of the policy `name` that overran its deadline."""
    return PolicyError(f"policy {name!r} took longer than {timeout_ms:g} ms over one step")


def raised_line(trace: str) -> str:
    """What a traceback ends with: the error's class and the first line of its message."""
    *_, last = trace.rpartition(_HEAD)
    lines = [line for line in last.splitlines() if line.strip()]
    return next((line for line in lines if not line[0].isspace()), "no error in the traceback")


def policy_traceback(error: BaseException) -> str:
    """The traceback of what a policy raised, from the policy's own first frame on, if any."""
    if isinstance(error, RemotePolicyError):
        return str(error)
    trace = error.__traceback__
    while trace and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OUR_MODULES):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


class Instance:
    """An instance of a policy; one with a network is stepped through it.

    Raises:
        Exception: whatever making it raises; PolicyError for what is no Exception.
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
        except BaseException as error:  # noqa: BLE001 - SystemExit, CancelledError, a panic in Rust
            message = f"policy {self.name!r} raised {error!r}; expected an action"
            raise PolicyError(message).with_traceback(error.__traceback__) from None


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

    used: Counter[int] = Counter()
    where = []
    for place, _ in rows:
        where.append((used[place], place))
        used[place] += 1
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    # In torch's own memory: how an array is aligned can change the bits of a product.
    blocks = torch.zeros(max(used.values()), BLOCK_ROWS, *rows[0][1].shape)
    for at, (_, observation) in zip(where, rows, strict=True):
        blocks[at] = torch.from_numpy(observation)
    scores = []
    for block in blocks:
        with torch.no_grad():
            found = network(block.to(device))
        if found.ndim != 2 or len(found) != BLOCK_ROWS:  # noqa: PLR2004 - rows and scores
            raise PolicyError(
                f"a network gave scores of shape {tuple(found.shape)}; "
                f"expected ({BLOCK_ROWS}, mutators)"
            )
        scores.append(found.to("cpu", torch.float32).numpy())
    return [scores[number][place] for number, place in where]
