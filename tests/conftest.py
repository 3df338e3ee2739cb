"""What several folders' tests share: one simulator, real clients, a fast encoder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from cli.main import execute
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.sentence_encoder import MiniLMEncoder, local_encoder
from simulator.process import EmbeddedServer
from simulator.settings import Settings

# As the commands do: torch's threads must not spin beside other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Small networks on one thread, in child processes too: beside other work several threads wait for
# each other most of the time, and the bits do not depend on how many cores the machine has.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
# A shell's job in the background ignores Ctrl-C, and its children do; tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A law holds or it does not, however busy the machine is. The examples are the same each time, so
# that a change that breaks no law fails no test; `make soak` looks for new ones.
settings.register_profile("mutagym", deadline=None, derandomize=True)
# `pytest --hypothesis-profile fuzz`: for the tests that feed us rubbish (`make soak`).
settings.register_profile("fuzz", deadline=None, max_examples=10_000)
settings.load_profile("mutagym")


@pytest.fixture(scope="session")
def simulator() -> Iterator[EmbeddedServer]:
    """One simulator for the session: 16 slots, replies in well under a millisecond."""
    with EmbeddedServer(Settings(slots=16, time_scale=0.001)) as server:
        yield server


@pytest.fixture
def dispatcher(simulator: EmbeddedServer) -> Iterator[Dispatcher]:
    """A dispatcher of its own for each test: no reply is shared between tests."""
    with Dispatcher([simulator.host]) as made:
        yield made


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The hashing encoder: no model to load."""
    return make_encoder("hashing")


@pytest.fixture(scope="session")
def sentence_encoder() -> MiniLMEncoder:
    """The packaged all-MiniLM-L6-v2 in 8 bits, as commands have it; converted once, in seconds."""
    encoder = local_encoder("all-MiniLM-L6-v2")
    assert isinstance(encoder, MiniLMEncoder)
    return encoder


@pytest.fixture(scope="session")
def trained_run(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 128 steps; its policy is hardly trained."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    flags = "--target-model sim-target --mutator-model sim-mutator --intent-threshold 0.1 --kept 0"
    shape = "--num-processes 4 --num-steps 32 --num-env-steps 128 --ppo-epoch 4 --encoder hashing"
    places = ("--ollama-host", simulator.host, "--run-dir", str(folder))
    assert execute(("train", *places, *flags.split(), *shape.split())) == 0
    return folder
