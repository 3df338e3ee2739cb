"""A training from several seeds, each a task of its own on a Ray cluster: `pip install 'mutagym[ray]'`.

On a cluster (`ray start` on each machine, mutagym installed there, RAY_ADDRESS set here) give each machine's
own server, `--ollama-host http://127.0.0.1:11434`, and a folder that all machines see.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.main import execute

SIMULATED = ("--ollama-host", "embedded", "--slots", "8", "--time-scale", "0", "--encoder", "hashing")


def train(seed: int, folder: str, flags: Sequence[str]) -> dict[str, Any]:
    """The summary of one run; one that was begun before, on a machine that died, goes on."""
    run = Path(folder) / f"seed-{seed}"
    where = "--resume" if (run / "config.toml").exists() else "--run-dir"
    code = execute(("train", *flags, "--seed", str(seed), where, str(run)))
    if code:
        raise RuntimeError(f"the run of seed {seed} ended with code {code}: see {run}")
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return summary


def main(seeds: int = 3, steps: int = 4096, folder: str | None = None) -> None:
    """Train on as many seeds side by side as the cluster has cores, and print how each ended."""
    import ray

    ray.init(log_to_driver=False)
    flags = (*SIMULATED, "--num-env-steps", str(steps))
    where = str(Path(folder or tempfile.mkdtemp()).absolute())
    runs = [ray.remote(train).options(max_retries=3).remote(seed, where, flags) for seed in range(seeds)]
    for seed, run in enumerate(runs):
        told = ray.get(run)
        print(f"seed {seed}: weights {told['weights_sha256'][:12]}, success {told['success_rate_end']}")
    ray.shutdown()


if __name__ == "__main__":
    main()
