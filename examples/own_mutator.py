"""Train with mutators of your own beside built-in ones, and a reward of your own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cli.main import execute
from mutators.mutator import by_model, by_rule
from ollama_utils.prompts import fenced


@by_rule
def as_a_beginner(query: str, earlier: Sequence[str], seed: int) -> str:  # noqa: ARG001 - a mutator's signature
    """The query, by somebody who begins."""
    return f"I am new to this. {query}"


@by_model
def in_one_sentence(query: str, earlier: Sequence[str], seed: int) -> str:  # noqa: ARG001 - likewise
    """The query in one sentence, by the mutator model."""
    shown = fenced({"query": query})["query"]
    return f"Shorten the query below to one sentence. Reply with it alone.\n\n{shown}"


def main(total_steps: int = 512) -> int:
    """Train with them on the embedded simulator; print the summary. Returns the exit code."""
    here = Path(__file__)
    mutators = ["--mutators", f"noop,paraphrase,{here}:as_a_beginner,{here}:in_one_sentence"]
    reward = ["--reward", f"{here.with_name('own_reward.py')}:useful"]
    simulator = ["--ollama-host", "embedded", "--time-scale", "0", "--encoder", "hashing"]
    shape = ["--num-processes", "4", "--num-steps", "16", "--num-env-steps", str(total_steps)]
    return execute(["train", *mutators, *reward, *simulator, *shape])


if __name__ == "__main__":
    sys.exit(main())
