"""The streams of a run's seed: each has a key of its own, and keeps the draws that it always had."""

from __future__ import annotations

import numpy as np
import pytest

from train.random_streams import Stream


def test_no_two_streams_share_a_key() -> None:
    keys = {name: int(stream) for name, stream in Stream.__members__.items()}  # aliases, too
    assert keys == {"NOISE": 0, "SHUFFLE": 1, "LANE": 2, "DROPOUT": 3, "AUDIT": 4, "WARM_START": 5, "KEPT": 6}


@pytest.mark.parametrize("stream", Stream)
def test_a_stream_draws_as_its_plain_number_does(stream: Stream) -> None:
    named = np.random.SeedSequence(7, spawn_key=(stream, 5))
    plain = np.random.SeedSequence(7, spawn_key=(stream.value, 5))
    assert np.array_equal(named.generate_state(4), plain.generate_state(4))
