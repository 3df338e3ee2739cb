"""A row of a block has the same bits whatever stands beside it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.policies.instance import BLOCK_ROWS, block_scores, made_ready
from tests.evaluation.network_policies import ReplicaNetwork, network
from tests.evaluation.policies_for_tests import DIMENSION


@settings(max_examples=50)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, BLOCK_ROWS - 1), max_size=40),
    st.integers(0, BLOCK_ROWS - 1),
    st.floats(1e-3, 1e3),
)
def test_the_scores_of_a_row_have_the_same_bits_alone_as_in_any_company(
    seed: int, company: list[int], place: int, size: float
) -> None:
    chance = np.random.default_rng(seed)
    mine = chance.normal(size=DIMENSION).astype(np.float32)
    others = [(each, (size * chance.normal(size=DIMENSION)).astype(np.float32)) for each in company]
    ready = made_ready(network(0))
    (alone,) = block_scores(ready, [(place, mine)])
    at = int(chance.integers(len(others) + 1))
    beside = block_scores(ready, [*others[:at], (place, mine), *others[at:]])
    assert beside[at].tobytes() == alone.tobytes()


def test_a_network_is_put_into_evaluation_mode() -> None:
    made = ReplicaNetwork()
    assert made.training
    assert not made_ready(made).training


def test_no_rows_are_no_scores() -> None:
    assert block_scores(network(0), []) == []
