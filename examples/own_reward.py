"""Train on a reward of your own, as `mutagym train --reward own_reward.py:useful` does."""

from __future__ import annotations

import sys
from pathlib import Path

from cli.main import execute
from scorers.refusal import label_refusal

ENOUGH_WORDS = 12


def useful(query: str, reply: str) -> str | float:
    """A label where the reply refuses, else a score from 0 to 1: here by its length."""
    label = label_refusal(reply)
    if label != "answered":
        return label
    words = len(reply.split()) - len(query.split())
    return min(1.0, max(0.0, words / ENOUGH_WORDS))


def main(total_steps: int = 64) -> int:
    """Train with it on the embedded simulator; print the summary. Returns the exit code."""
    simulator = ["--ollama-host", "embedded", "--time-scale", "0", "--encoder", "hashing"]
    reward = ["--reward", f"{Path(__file__)}:useful", "--num-processes", "2"]
    shape = ["--num-env-steps", str(total_steps), "--num-steps", "16"]
    return execute(["train", *reward, *simulator, *shape])


if __name__ == "__main__":
    sys.exit(main())
