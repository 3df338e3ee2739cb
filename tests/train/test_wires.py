"""A run is the same run whichever wire its calls take."""

from __future__ import annotations

from pathlib import Path

from simulator.process import EmbeddedServer
from tests.runs import PASSES, WORLD, lines, summary, train

SHAPE = ("--num-processes", "4", "--num-steps", "16", "--num-env-steps", "128", "--encoder", "hashing")


def test_a_training_over_either_wire_gives_the_same_transitions_and_weights(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    hosts = {"ollama": simulator.host, "openai": f"openai:{simulator.host}/v1"}
    for name, host in hosts.items():
        assert train(host, tmp_path / name, *WORLD, *PASSES, *SHAPE) == 0
    ollama, openai = (tmp_path / name for name in hosts)
    assert lines(openai)
    for told in ("transitions_sha256", "weights_sha256"):
        assert summary(openai)[told] == summary(ollama)[told]
    assert summary(openai)["simulated"]
