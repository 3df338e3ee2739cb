"""The folders of one training's seeds, inside that of the whole: `seed-0`, `seed-1`, ..."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"seed-(0|[1-9][0-9]{0,9})")


def seed_folder(run: Path, seed: int) -> Path:
    """Where one seed's run is."""
    return run / f"seed-{seed}"


def seed_folders(run: Path) -> list[Path]:
    """Those that are there, in the order of their seeds; none where the folder is of one run alone."""
    found = [path for path in run.glob("seed-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("seed-")))
