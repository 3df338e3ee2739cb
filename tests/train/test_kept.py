"""Looks at the kept queries: one whose calls were cancelled counts for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from records.errors import RunStoppedError
from records.interrupt import Interrupt
from train.gain import GainConfig, GainRecord, Results
from train.kept import Choose, KeptEpisodes, Looks

if TYPE_CHECKING:
    from train.rollouts import MaskedRollouts

QUERIES = ["a", "b", "c"]


class CancelledEpisodes(KeptEpisodes):
    """Episodes under which another run stops this one and cancels its calls, so that nothing is scored."""

    def __init__(self, interrupt: Interrupt, left: int) -> None:
        self._interrupt = interrupt
        self._left = left

    @property
    def mutators(self) -> tuple[str, ...]:
        return ("noop", "shorten")

    def play(self, choose: Choose) -> tuple[Results, int]:
        """All answered while there are some left; then stopped."""
        choose(np.zeros((1, 4), np.float32))
        self._left -= 1
        if self._left < 0:
            self._interrupt.stop(RunStoppedError("stopped with seed 5"))
            return [None] * len(QUERIES), 0
        return [1.0] * len(QUERIES), len(QUERIES)


class Greedy:
    """The part of a model that a look needs."""

    def greedy(self, observations: np.ndarray) -> np.ndarray:
        """The first mutator."""
        return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_look_whose_calls_were_cancelled_is_not_recorded(left: int) -> None:
    """Whether a mutator's turn was cancelled or the policy's."""
    interrupt, record = Interrupt(), GainRecord(QUERIES, GainConfig())
    looks = Looks(record, CancelledEpisodes(interrupt, left), interrupt, total_steps=100)
    with pytest.raises(RunStoppedError, match="seed 5"):
        looks.look(cast("MaskedRollouts", Greedy()), 32)
    assert record.looks == []
    assert record.knows_mutators == (left == 2)
