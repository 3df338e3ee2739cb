"""A training under all faults, its processes killed and started again: the weights stay the same.

    python -m benchmarks.soak --minutes 20 --kills 20    # `make soak`
    python -m benchmarks.soak --minutes 2 --kills 3      # to try it out

Trainer and server are killed in turn, each so many times, at even distances in the first part of the run's
steps; the last part goes undisturbed but for the faults, and shows whether memory grows. The same training
on a server without faults runs beside it, as fast as it can: time changes nothing in a run's weights.
Exit status 1: the weights differ, memory grew, something was left unscored, or it took too long.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import read_json
from benchmarks.served_simulator import ServedSimulator

FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "rate": 0.005},
    {"kind": "status", "status": 503, "rate": 0.005},
    {"kind": "status", "status": 502, "rate": 0.002},
    {"kind": "garbage", "rate": 0.002},
    {"kind": "late", "rate": 0.01, "seconds": 0.5},
    {"kind": "garbage", "what": "enormous", "rate": 0.0005, "bytes": 2**26},
    {"kind": "garbage", "what": "wrong_type", "rate": 0.002},
    {"kind": "garbage", "what": "not_done", "rate": 0.002},
    {"kind": "garbage", "what": "cut", "rate": 0.002},
    {"kind": "drop", "rate": 0.002, "at": "start"},
    {"kind": "drop", "rate": 0.002, "at": "body"},
    {"kind": "drop", "rate": 0.002, "at": "end"},
    {"kind": "drop", "rate": 0.002, "at": "after"},
    {"kind": "hang", "rate": 0.0005, "at": "start"},
    {"kind": "hang", "rate": 0.0005, "at": "body"},
    {"kind": "hang", "rate": 0.0005, "at": "end"},
)
"""All kinds but `empty`: an empty reply to a call at temperature 0 is that call's reply, and is not asked
for again, so that a run in which one came is another run."""
STEPS_A_MINUTE = 480
DISTURBED = 0.6
"""The share of the steps in which processes are killed."""
GROWTH = 1.05
"""How many times as much memory as in the second quarter of the undisturbed steps may be held in the last."""
_LOOK_S = 0.5
_WORLD = (
    "--target-model",
    "sim-target",
    "--mutator-model",
    "sim-mutator",
    "--intent-threshold",
    "0.1",
)
_SHAPE = (
    "--num-processes",
    "16",
    "--num-steps",
    "8",
    "--encoder",
    "hashing:32",
    "--ppo-epoch",
    "2",
)
_PATIENCE = ("--call-timeout-s", "5", "--call-attempts", "8")
_SERVER = ("--slots", "8", "--reply-tokens", "lognormal:mean=40,sigma=0.8")


@dataclass
class Story:
    """What happened in the run that was disturbed."""

    trainer_kills: int = 0
    server_kills: int = 0
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """The steps that were done, and the MiB that trainer and server held then."""
    peaks: list[int] = field(default_factory=list)
    """The most MiB that each trainer held."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long it may take [20]")
    parser.add_argument(
        "--kills", type=int, default=20, help="of the trainer, and of the server [20]"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/soak"), help="a new folder for the runs"
    )
    given = parser.parse_args(argv)
    given.work.mkdir(parents=True)
    steps = int(given.minutes * STEPS_A_MINUTE)
    began_s = time.monotonic()
    faults = given.work / "faults.json"
    faults.write_text(json.dumps(FAULTS), encoding="utf-8")
    log = given.work / "servers.log"
    with (
        ServedSimulator((*_SERVER, "--time-scale", "0.001"), log) as sane,
        ServedSimulator((*_SERVER, "--time-scale", "1", "--faults", str(faults)), log) as struck,
    ):
        whole = _train(sane, given.work / "whole", steps)
        try:
            story = _disturbed(struck, given.work / "struck", steps, given.kills)
            struck_s = time.monotonic() - began_s
            whole.wait()
        finally:
            whole.kill()
    return _told(given.work, story, struck_s, given.minutes)


def _train(server: ServedSimulator, folder: Path, steps: int) -> subprocess.Popen[bytes]:
    """Begin a training, or go on with it."""
    began = (folder / "config.toml").exists()
    where = ["--resume", str(folder)] if began else ["--run-dir", str(folder)]
    new = () if began else (*_WORLD, *_SHAPE, "--num-env-steps", str(steps))
    flags = [*where, "--ollama-host", server.host, *new, *_PATIENCE]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        line = [sys.executable, "-m", "mutagym", "train", *flags]
        return subprocess.Popen(line, stdout=log, stderr=log)  # noqa: S603 - our own command


def _disturbed(server: ServedSimulator, folder: Path, steps: int, kills: int) -> Story:
    """Train, and kill trainer and server in turn; what happened."""
    story = Story()
    at = [round(DISTURBED * steps * (number + 1) / (2 * kills)) for number in range(2 * kills)]
    trainer = _train(server, folder, steps)
    peak = 0
    try:
        while trainer.poll() is None:
            done = _steps_done(folder)
            sizes = _mib(trainer.pid), _mib(server.pid)
            peak = max(peak, sizes[0])
            story.memory.append((done, *sizes))
            number = story.trainer_kills + story.server_kills
            if number < len(at) and done >= at[number]:
                if number % 2:
                    story.server_kills += 1
                    server.kill()
                    server.start()
                else:
                    story.trainer_kills += 1
                    trainer.kill()
                    trainer.wait()
                    story.peaks.append(peak)
                    trainer, peak = _train(server, folder, steps), 0
            time.sleep(_LOOK_S)
    finally:
        trainer.kill()
        story.peaks.append(peak)
    return story


def _steps_done(folder: Path) -> int:
    """The transitions that are written."""
    path = folder / "transitions.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _mib(pid: int) -> int:
    """The memory that a process holds; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS:")), 0)


def _told(work: Path, story: Story, struck_s: float, minutes: float) -> int:
    """Print what came of it; the exit status."""
    whole, struck = (read_json(work / name / "summary.json") for name in ("whole", "struck"))
    steps = struck["env_steps"]
    quarter = (1 - DISTURBED) * steps / 4
    grew: dict[str, list[float]] = {}
    for place, who in enumerate(("trainer", "server"), start=1):
        ends = [(steps - 3 * quarter, steps - 2 * quarter), (steps - quarter, steps)]
        grew[who] = [
            median(
                [row[place] for row in story.memory if low <= row[0] < high and row[place]] or [0]
            )
            for low, high in ends
        ]
    names = ("weights_sha256", "transitions_sha256")
    told = {
        "steps": steps,
        "seconds": round(struck_s),
        "trainer_kills": story.trainer_kills,
        "server_kills": story.server_kills,
        "calls": struck["llm_calls"],
        "unscored_rate": struck["unscored_rate"],
        **{f"{name} equal": whole[name] == struck[name] for name in names},
        "MiB in the second and the last quarter of the undisturbed steps": grew,
        "most MiB of each trainer": story.peaks,
    }
    print(json.dumps(told, indent=2))
    right = {
        "equal weights": all(whole[name] == struck[name] for name in names),
        "nothing unscored": not struck["unscored_rate"],
        "flat memory": all(late <= GROWTH * early for early, late in grew.values()),
        "in time": struck_s <= 60 * minutes,
    }
    print(*(f"{what}: {'yes' if is_so else 'NO'}" for what, is_so in right.items()), sep="\n")
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
