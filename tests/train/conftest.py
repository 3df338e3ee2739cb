"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ollama_utils.simulator.process import EmbeddedServer
from train.cli import execute


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """The bits of a small network do not depend on how many cores the machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def trained_run(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 128 steps; its policy is hardly trained."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    server = (
        "--ollama-host",
        simulator.host,
        "--target-model",
        "sim-target",
        "--mutator-model",
        "sim-mutator",
    )
    shape = (
        "--num-processes",
        "4",
        "--num-steps",
        "32",
        "--num-env-steps",
        "128",
        "--encoder",
        "hashing",
        "--ppo-epoch",
        "4",
    )
    assert execute(("train", *server, *shape, "--intent-threshold", "0.1", "--run-dir", str(folder))) == 0
    return folder
