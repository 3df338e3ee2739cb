"""Train and evaluate on a model of your own: `python -m examples.your_model http://127.0.0.1:11434 llama3.2`.

A bandit learns from few calls; a thousand steps are some two thousand calls.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cli.main import execute
from records.errors import RunStoppedError


def main(
    host: str, model: str, queries: str | None = None, *more: str, steps: int = 1024, episodes: int = 24
) -> None:
    """Train on a server's model, then compare the policy with doing nothing, chance and one fixed mutator.

    Args:
        host: the server's URL; `openai:URL` for an OpenAI-compatible one.
        model: whose answers count; it also rewords.
        queries: a file of prompts (CSV, JSONL, text, ...); None: the bundled ones.
        more: flags of `mutagym train`.
        steps: so many rewordings and answers.
        episodes: so many held-out queries are played by each policy.

    Raises:
        RunStoppedError: a command failed; it said why.
    """
    run = Path("runs") / f"your-model-{model.replace(':', '-')}"
    asked = ["--queries", queries] if queries else []
    server = ["--ollama-host", host, "--target-model", model, "--num-predict", "128"]
    learning = ["--algorithm", "auto", "--num-env-steps", str(steps), "--run-dir", str(run)]
    for command in (
        ["train", *server, *asked, *learning, *more],
        ["eval", "-p", str(run), "--episodes", str(episodes)],
    ):
        if code := execute(command):
            raise RunStoppedError(f"mutagym {command[0]} ended with exit code {code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
