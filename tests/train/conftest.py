"""Runs that several files of this folder compare theirs with, and a server with one model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.scripted import SAID
from tests.runs import LASTING, PASSES, WORLD, outcome, train

SHAPE = ("--num-processes", "4", "--num-steps", "8", "--encoder", "hashing:64")
STEPS = ("--num-env-steps", "64")
SMALL = (*WORLD, *PASSES, *SHAPE, "--kept", "0")
"""A run of four lanes and two rollouts, with STEPS."""
FAILING = (*SMALL, *STEPS, "--call-attempts", "1")
BANDIT = ("--bandit-env-steps", "32")
SEEDS = (5, 6)


@pytest.fixture(scope="package")
def failing() -> Iterator[EmbeddedServer]:
    """A server that fails a tenth of all requests, the same ones each time."""
    with EmbeddedServer(Settings(slots=16, time_scale=0.001)) as server:
        server.set_faults([LASTING])
        yield server


@pytest.fixture(scope="package")
def alone(failing: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of SEEDS on it from start to end, one after another, in folders `seed-5`, ..."""
    folder = tmp_path_factory.mktemp("alone")
    for seed in SEEDS:
        run = folder / f"seed-{seed}"
        assert train(failing.host, run, *FAILING, "--seed", str(seed)) == 0
        assert 0.05 < outcome(run, "unscored_rate")["unscored_rate"] < 0.35
    return folder


@pytest.fixture(scope="package")
def whole(alone: Path) -> Path:
    """The first of them."""
    return alone / "seed-5"


@pytest.fixture(scope="package")
def well(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a server that never fails."""
    folder = tmp_path_factory.mktemp("well") / "run"
    assert train(simulator.host, folder, *SMALL, *STEPS, "--save-interval", "1") == 0
    return folder


@pytest.fixture
def fits_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` fits its network to the bandit in fewer updates, which take less time."""
    monkeypatch.setattr("train.bandit.UPDATES", 60)


@pytest.fixture(scope="package")
def auto(failing: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seed 6 on the server that fails, by a bandit and PPO; it `fits_briefly`."""
    folder = tmp_path_factory.mktemp("auto") / "run"
    flags = (*FAILING, *BANDIT, "--algorithm", "auto", "--seed", "6")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.bandit.UPDATES", 60)
        assert train(failing.host, folder, *flags) == 0
    return folder


def answers(body: dict[str, Any]) -> tuple[int, object]:
    """What a ScriptedServer with one model says, which refuses everything."""
    if "model" not in body:
        return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
    if "input" in body:
        return 200, {"model": "m", "embeddings": [[1.0, float(len(x))] for x in body["input"]]}
    return 200, SAID | {"response": "I'm sorry, but I can't help with that."}
