"""Evaluate a policy of your own, as `mutagym eval -p class=own_policy.py:PoliteFirst` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cli.main import execute
from evaluation.policies import View


class PoliteFirst:
    """Adds politeness first, then tries the other mutators one after another."""

    def __init__(self, mutators: Sequence[str], seed: int) -> None:
        self.mutators = list(mutators)
        self.seed = seed

    def step(self, view: View) -> int:
        """The number of the mutator that comes next."""
        return view.step_count if view.tried else self.mutators.index("add_politeness")


def main(episodes: int = 20) -> int:
    """Evaluate it on the embedded simulator; tables go to stdout. Returns the exit code."""
    simulator = ["--ollama-host", "embedded", "--time-scale", "0", "--encoder", "hashing"]
    policy = ["-p", f"class={Path(__file__)}:PoliteFirst", "--baselines", "noop"]
    return execute(["eval", *policy, *simulator, "--episodes", str(episodes)])


if __name__ == "__main__":
    sys.exit(main())
