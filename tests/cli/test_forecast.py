"""How far a forecast says that it may be off."""

from __future__ import annotations

import numpy as np

from cli.forecast import _margin


def test_the_mean_length_of_replies_is_mostly_within_the_margin() -> None:
    stream = np.random.default_rng(3)
    expected, held = float(np.exp(0.5)), 0
    for _ in range(400):
        lengths = stream.lognormal(size=(8, 1)) * 1000
        margin = _margin(lengths.astype(int).tolist())
        assert margin is not None
        held += abs(lengths.mean() / 1000 - expected) <= margin * lengths.mean() / 1000
    assert held > 0.85 * 400  # 8 of so skewed a distribution


def test_replies_of_one_query_and_those_without_a_token_tell_no_margin() -> None:
    assert _margin([[5, 7, 9]]) is None
    assert _margin([[0], [0]]) is None
    assert _margin([]) is None
