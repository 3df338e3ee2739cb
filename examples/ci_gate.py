"""A gate for CI: does the policy of a run still reach a success rate, on the model of today?

The lower end of the interval decides, with failed steps counted against the policy. The process
ends with the exit code of `mutagym eval`: 0 it does, 4 it is not shown to.

    python -m examples.ci_gate runs/train-0 success=0.8 --ollama-host http://127.0.0.1:11434
"""

from __future__ import annotations

import sys

from cli.main import execute


def main(run: str, bound: str, *more: str) -> int:
    """Evaluate the policy of a run on the held-out queries; the exit code.

    Args:
        run: the folder of a training run.
        bound: the rate and the least that its lower bound may be.
        more: flags of `mutagym eval`; a run folder names no server, so `--ollama-host` is one.
    """
    return execute(["eval", "-p", run, "--baselines", "noop", "--fail-under", bound, *more])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
