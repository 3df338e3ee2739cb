"""How often labels are right, from the file that `mutagym judge --json` wrote: --judge-accuracy."""

from __future__ import annotations

from pathlib import Path

from scorers.correction import LabelAccuracy
from train.errors import UserError


def read_accuracy(path: Path | str | None) -> LabelAccuracy | None:
    """What stands in the file; None where none is named.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    if path is None:
        return None
    try:
        return LabelAccuracy.from_json(Path(path))
    except (OSError, ValueError) as error:
        raise UserError(f"--judge-accuracy: {error}") from error
