"""How much of a training run's time the server's slots are busy: rollouts, updates, logs and checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rollouts import LOGNORMAL, Scale
from benchmarks.tables import Section, at_least
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.simulator.process import EmbeddedServer
from ollama_utils.simulator.settings import Settings
from train.bench import MODEL

LANES = 32
SLOTS = 8
TARGET = 0.90
COLUMNS = {
    "schedule": "schedule",
    "num_processes": "lanes",
    "slots": "slots",
    "rollouts": "rollouts",
    "env_steps": "steps",
    "llm_calls": "calls",
    "wall_s": "seconds",
    "env_steps_per_s": "steps/s",
    "bound_env_steps_per_s": "bound",
    "fraction_of_bound": "of the bound",
}


def time_training(scale: Scale) -> Section:
    """A whole training run under `lanes`."""
    row = _run(scale)
    return Section(
        title="Whole training runs",
        about=(
            f"`mutagym train` with {LANES} lanes on {SLOTS} slots, mutators by model, the hashing encoder "
            f"and everything else as it comes, on a simulator with replies of `{LOGNORMAL}` tokens. Its "
            "seconds go from the start of the first rollout to the end of the last update: rollouts, "
            "updates, logs, checkpoints. The bound is the pace at which no slot would be idle in them."
        ),
        rows=[row],
        columns=COLUMNS,
        checks=[at_least("share of the bound", TARGET, row["fraction_of_bound"])],
    )


def _run(scale: Scale) -> dict[str, Any]:
    steps = LANES * scale.num_steps * scale.rollouts
    settings = Settings(slots=SLOTS, reply_tokens=LOGNORMAL, time_scale=scale.time_scale)
    with EmbeddedServer(settings) as server, tempfile.TemporaryDirectory() as folder:
        flags = {
            "--ollama-host": server.host,
            "--target-model": MODEL,
            "--schedule": "lanes",
            "--num-processes": str(LANES),
            "--num-steps": str(scale.num_steps),
            "--num-env-steps": str(steps),
            "--mutators": ",".join(m.name for m in load_mutators(DEFAULT_MUTATORS) if m.kind == "model"),
            "--encoder": "hashing",
            "--run-dir": folder,
        }
        command = [
            sys.executable,
            "-m",
            "train.cli",
            "train",
            *(item for pair in flags.items() for item in pair),
        ]
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - our own command, our own flags
        busy_s = server.stats()["busy_slot_s"]
        summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
    pace, bound = steps / summary["wall_s"], steps * SLOTS / busy_s
    return {
        "slots": SLOTS,
        "rollouts": scale.rollouts,
        "env_steps_per_s": pace,
        "bound_env_steps_per_s": bound,
        "fraction_of_bound": pace / bound,
        **{key: summary[key] for key in ("schedule", "num_processes", "env_steps", "llm_calls", "wall_s")},
    }
