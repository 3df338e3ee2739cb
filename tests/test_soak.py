"""A training under all faults, killed again and again: the weights stay the same (`make soak`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.runs import outcome, summary

STEPS = int(480 * float(os.environ.get("MUTAGYM_SOAK_MINUTES", "2")))
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "rate": 0.005},
    {"kind": "status", "status": 503, "rate": 0.005},
    {"kind": "status", "status": 502, "rate": 0.002},
    {"kind": "late", "rate": 0.01, "seconds": 0.5},
    {"kind": "garbage", "rate": 0.002},
    {"kind": "garbage", "what": "enormous", "rate": 0.0005},
    {"kind": "garbage", "what": "wrong_type", "rate": 0.002},
    {"kind": "garbage", "what": "not_done", "rate": 0.002},
    {"kind": "garbage", "what": "cut", "rate": 0.002},
    *({"kind": "drop", "rate": 0.002, "at": at} for at in ("start", "body", "end", "after")),
    *({"kind": "hang", "rate": 0.0005, "at": at} for at in ("start", "body", "end")),
)
NEW = (
    *("--target-model=sim-target", "--mutator-model=sim-mutator", "--intent-threshold=0.1"),
    *("--num-processes=16", "--num-steps=8", "--encoder=hashing:32", "--ppo-epoch=2"),
)
PATIENCE = ("--call-timeout-s=5", "--call-attempts=8")


def server(time_scale: float) -> EmbeddedServer:
    tokens = "lognormal:mean=40,sigma=0.8"
    return EmbeddedServer(Settings(slots=8, reply_tokens=tokens, time_scale=time_scale))


def train(host: str, folder: Path) -> subprocess.Popen[bytes]:
    """Begin a training, or go on with it."""
    if (folder / "config.toml").exists():
        flags = ["--resume", str(folder)]
    else:
        flags = ["--run-dir", str(folder), "--num-env-steps", str(STEPS), *NEW]
    line = [sys.executable, "-m", "mutagym", "train", *flags, "--ollama-host", host, *PATIENCE]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(line, stdout=log, stderr=log)  # noqa: S603 - our own command


def steps_done(folder: Path) -> int:
    path = folder / "transitions.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_training_under_all_faults_and_kills_has_the_weights_of_one_without(
    tmp_path: Path,
) -> None:
    whole, struck = tmp_path / "whole", tmp_path / "struck"
    with server(time_scale=0.001) as sane:
        assert train(sane.host, whole).wait() == 0
    with server(time_scale=1.0) as faulty:
        faulty.set_faults(FAULTS)
        for share in (0.25, 0.5, 0.75):
            trainer = train(faulty.host, struck)
            while trainer.poll() is None and steps_done(struck) < STEPS * share:
                time.sleep(0.2)
            assert trainer.poll() is None
            trainer.kill()
            trainer.wait()
        assert train(faulty.host, struck).wait() == 0
    assert outcome(struck, "env_steps") == outcome(whole, "env_steps")
    assert summary(struck)["unscored_rate"] == 0
