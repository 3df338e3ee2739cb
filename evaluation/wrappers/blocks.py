"""Forward passes of a fixed number of rows: a row's bits do not depend on the rows beside it.

A matrix product of one shape gives a row the same bits whatever the other rows hold, but not in another
shape, and not surely in another place. So there are always 16 rows, and a row keeps its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evaluation.wrappers.errors import PolicyError

if TYPE_CHECKING:
    import torch

BLOCK_ROWS = 16
"""Rows of every forward pass."""


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
    seats: list[tuple[int, int]] = []
    for place, observation in rows:
        number = taken[place]
        taken[place] += 1
        if number == len(blocks):
            blocks.append(np.zeros((BLOCK_ROWS, *observation.shape), np.float32))
        blocks[number][place] = observation
        seats.append((number, place))
    scores = [_forward(network, block) for block in blocks]
    return [scores[number][place] for number, place in seats]


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
