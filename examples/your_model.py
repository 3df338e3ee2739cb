"""Train and evaluate on a model of your own; the queries are the bundled ones where none are named.

    python -m examples.your_model http://127.0.0.1:11434 llama3.2 --queries mine.csv

A bandit learns from few calls; a thousand steps are some two thousand calls.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp

from cli.main import execute


def main(host: str, model: str, *more: str, steps: int = 1024, episodes: int = 24) -> int:
    """Train, then compare the policy with doing nothing, chance and one fixed mutator.

    Args:
        host: the server's URL; `openai:URL` for an OpenAI-compatible one.
        model: whose answers count; it also rewords.
        more: flags of `mutagym train`, such as `--queries`.
        steps: so many rewordings and answers.
        episodes: so many held-out queries are played by each policy.
    """
    Path("runs").mkdir(exist_ok=True)
    run = mkdtemp(prefix="your-model-", dir="runs")
    server = ["--ollama-host", host, "--target-model", model, "--num-predict", "128"]
    learning = ["--algorithm", "auto", "--num-env-steps", str(steps), "--run-dir", run]
    code = execute(["train", *server, *learning, *more])
    return code or execute(["eval", "-p", run, *server[:2], "--episodes", str(episodes)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
