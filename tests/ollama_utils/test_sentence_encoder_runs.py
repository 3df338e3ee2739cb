"""Runs on the packaged sentence encoder: beside its own tests, so that one process imports it for all."""

from __future__ import annotations

from pathlib import Path

from simulator.process import EmbeddedServer
from tests.runs import PASSES, WORLD, summary, train

SHAPE = (
    "--num-processes",
    "6",
    "--num-steps",
    "2",
    "--num-env-steps",
    "24",
    "--encoder",
    "all-MiniLM-L6-v2",
)


def test_with_a_sentence_encoder_lanes_change_nothing_either(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    runs = []
    for way in ("--no-batching", "--use-batching"):
        assert train(simulator.host, tmp_path / way, *WORLD[:4], *SHAPE, *PASSES, way) == 0
        runs.append(summary(tmp_path / way))
    assert runs[0]["transitions_sha256"] == runs[1]["transitions_sha256"]
    assert runs[0]["weights_sha256"] == runs[1]["weights_sha256"]
