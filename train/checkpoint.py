"""The state of a run between two rollouts, in one file: whole, or that of the rollout before."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import torch

from train.errors import UserError
from train.run_folder import RunFolder, replacing

UNREADABLE = (OSError, RuntimeError, EOFError, LookupError, TypeError, ValueError, pickle.UnpicklingError)
"""What torch raises for a damaged file."""
FORMAT = 1
"""Goes up when an older program could not read the file, or the other way round."""


def save_checkpoint(folder: RunFolder, learner: Mapping[str, Any], recorder: Mapping[str, Any]) -> None:
    """Write the state down, and what the transitions behind it stand on first.

    Args:
        folder: the run's.
        learner: `Learner.state()`.
        recorder: `Recorder.state()`.
    """
    folder.transitions.sync()
    state = {
        "format": FORMAT,
        "learner": learner,
        "recorder": recorder,
        "lines": {"transitions": folder.transitions.count, "metrics": folder.metrics.count},
    }
    with replacing(folder.checkpoint) as part:
        torch.save(state, part)


def load_checkpoint(folder: RunFolder) -> dict[str, Any] | None:
    """The state that was saved last; None for a run that ended before its first step.

    Nothing in the file is executed: it may hold tensors and plain data only.

    Raises:
        UserError: the file is damaged, or of another version of the program.
    """
    if not folder.checkpoint.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(folder.checkpoint, weights_only=True)
        version = state["format"]
    except (
        OSError,
        RuntimeError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    ) as error:
        why = str(error).partition("\n")[0]
        raise UserError(
            f"{str(folder.checkpoint)!r} cannot be read ({why}): the run cannot go on; begin a new one"
        ) from error
    if version != FORMAT:
        raise UserError(
            f"{str(folder.checkpoint)!r} has format {version!r}, this program has {FORMAT}: "
            "go on with the version of mutagym that began the run"
        )
    return state
