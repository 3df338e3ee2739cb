"""What several benchmarks share: commands of mutagym in processes of their own, and their load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mutators.registry import DEFAULT_MUTATORS, load_mutators

LOGNORMAL = "lognormal:mean=50,sigma=1.0"
"""Tokens of a reply: 200 ms in a slot on the mean, and some seconds for a few."""


def run_mutagym(command: str, flags: Mapping[str, object], *more: str) -> None:
    """Run a command of mutagym; what it prints goes to stderr.

    Args:
        command: such as `eval`.
        flags: by name with their dashes, and their values.
        more: flags without a value.

    Raises:
        subprocess.CalledProcessError: it failed; its message stands on stderr.
    """
    pairs = [str(item) for pair in flags.items() for item in pair]
    arguments = [sys.executable, "-m", "cli.main", command, *pairs, *more]
    subprocess.run(arguments, check=True, stdout=sys.stderr)  # noqa: S603 - our own command, our own flags


def model_mutators() -> str:
    """The default mutators that work by model, as `--mutators` takes them: all steps make as many calls."""
    return ",".join(m.name for m in load_mutators(DEFAULT_MUTATORS) if m.kind == "model")


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """What a file of JSON holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
