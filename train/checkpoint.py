"""The state of a run between two rollouts, in one file: whole, or that of the rollout before."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch

from train.errors import UserError
from train.run_folder import RunFolder, replacing

FORMAT = 2
"""Goes up when an older program could not read the file, or the other way round."""
_HASH_BYTES = sha256().digest_size


def save_checkpoint(folder: RunFolder, learner: Mapping[str, Any], recorder: Mapping[str, Any]) -> None:
    """Write the state down, behind its SHA-256; the lines that it stands on are forced to the disk first.

    Args:
        folder: the run's.
        learner: `Learner.state()`.
        recorder: `Recorder.state()`.
    """
    transitions, metrics = folder.transitions, folder.metrics
    transitions.sync()
    metrics.sync()
    lines = {"transitions": transitions.count, "sha256": transitions.sha256, "metrics": metrics.count}
    content = io.BytesIO()
    torch.save({"format": FORMAT, "learner": learner, "recorder": recorder, "lines": lines}, content)
    with replacing(folder.checkpoint) as part:
        part.write_bytes(sha256(content.getvalue()).digest() + content.getvalue())


def load_checkpoint(folder: RunFolder) -> dict[str, Any] | None:
    """The state that was saved last; None for a run that ended before its first step.

    Nothing in the file is executed: it may hold tensors and plain data only.

    Raises:
        UserError: the file is damaged, or of another version of the program.
    """
    if not folder.checkpoint.exists():
        return None
    raw = folder.checkpoint.read_bytes()
    digest, content = raw[:_HASH_BYTES], raw[_HASH_BYTES:]
    damaged = f"{str(folder.checkpoint)!r} is damaged: the run cannot go on; begin a new one"
    if sha256(content).digest() != digest:
        raise UserError(damaged)
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
        version = state["format"]
    except (RuntimeError, TypeError, KeyError, pickle.UnpicklingError) as error:  # not a file of ours
        raise UserError(damaged) from error
    if version != FORMAT:
        raise UserError(
            f"{str(folder.checkpoint)!r} has format {version!r}, this program has {FORMAT}: "
            "go on with the version of mutagym that began the run"
        )
    return state
