"""Advantages over rows that did not happen: a case worked on paper, and the laws."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer

from train.rollout_buffer import MaskedRolloutBuffer

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (1,), np.float32)
ACTIONS = spaces.Discrete(5)
GAMMA, LAMBDA = 0.9, 0.8

# Worked on paper with gamma = 0.9 and lambda = 0.8, so gamma x lambda = 0.72; from the last row up, with
#   delta = r + 0.9 V' - V,  A = delta + 0.72 A',  R = A + V,  and V' = A' = 0 behind the end of an episode.
#
# Lane 0: terminates at row 1, row 3 is unscored, goes on behind row 5 (V' = 2).
#   row 5: delta = 0 + 0.9 x 2   - 1   =  0.8    A = 0.8                          R = 1.8
#   row 4: delta = 1 + 0.9 x 1   - 0.5 =  1.4    A = 1.4 + 0.72 x 0.8  = 1.976    R = 2.476
#   row 3: did not happen
#   row 2: delta = 0 + 0.9 x 0.5 - 1   = -0.55   A = -0.55 + 0.72 x 1.976 = 0.87272   R = 1.87272
#   row 1: delta = 1             - 2   = -1      A = -1                           R = 1
#   row 0: delta = 0 + 0.9 x 2   - 1   =  0.8    A = 0.8 - 0.72        = 0.08     R = 1.08
#
# Lane 1: truncated at row 2, where V(terminal observation) = 2 makes the reward 1 + 0.9 x 2 = 2.8; the first
# row of the next episode and the last row are unscored; goes on behind row 5 (V' = 3).
#   row 5: did not happen
#   row 4: delta = 1 + 0.9 x 3   - 0   =  3.7    A = 3.7                          R = 3.7
#   row 3: did not happen
#   row 2: delta = 2.8           - 1   =  1.8    A = 1.8                          R = 2.8
#   row 1: delta = 0 + 0.9 x 1   - 1   = -0.1    A = -0.1 + 0.72 x 1.8   = 1.196     R = 2.196
#   row 0: delta = 0 + 0.9 x 1   - 1   = -0.1    A = -0.1 + 0.72 x 1.196 = 0.76112   R = 1.76112
PAPER_SCORED = np.array([[1, 1], [1, 1], [1, 1], [0, 0], [1, 1], [1, 0]], np.bool_)
PAPER_ADVANTAGES = np.array(
    [[0.08, 0.76112], [-1, 1.196], [0.87272, 1.8], [0, 0], [1.976, 3.7], [0.8, 0]], np.float32
)
PAPER_RETURNS = np.array(
    [[1.08, 1.76112], [1, 2.196], [1.87272, 2.8], [0, 0], [2.476, 3.7], [1.8, 0]], np.float32
)


class Row(NamedTuple):
    """One row of one lane; `ends` counts only if it is scored."""

    reward: float
    value: float
    scored: bool
    ends: bool


FLOATS = st.floats(-10, 10, width=32)
LANE = st.lists(st.builds(Row, FLOATS, FLOATS, st.booleans(), st.booleans()), min_size=7, max_size=7)


def starts_of(lane: list[Row], *, keeps: bool) -> list[bool]:
    """For each row, and what follows, whether it starts an episode.

    An unscored row either `keeps` the flag until a row is scored, or passes False on, as SB3 would.
    """
    starts = [True]
    for row in lane:
        starts.append(row.ends if row.scored else keeps and starts[-1])
    return starts


def fill(buffer: RolloutBuffer, **columns: NDArray[Any]) -> None:
    """Add rows; each column is (n_steps, n_envs)."""
    scored = columns.pop("scored", None)
    for t in range(buffer.buffer_size):
        reward, start, value = (columns[name][t] for name in ("rewards", "starts", "values"))
        observation = np.full((buffer.n_envs, 1), t, np.float32)
        mask = () if scored is None else (scored[t],)
        tensor = torch.tensor(value, dtype=torch.float32)
        buffer.add(observation, np.arange(buffer.n_envs), reward, start, tensor, -tensor, *mask)


def buffer_of(n_steps: int, n_envs: int, seed: int = 0) -> MaskedRolloutBuffer:
    return MaskedRolloutBuffer(n_steps, OBSERVATIONS, ACTIONS, "cpu", LAMBDA, GAMMA, n_envs, seed=seed)


def sb3_buffer_of(n_steps: int, n_envs: int) -> RolloutBuffer:
    return RolloutBuffer(n_steps, OBSERVATIONS, ACTIONS, "cpu", LAMBDA, GAMMA, n_envs)


def masked_buffer(scored: list[list[bool]], seed: int = 0) -> MaskedRolloutBuffer:
    """A full buffer whose values tell its rows apart: row t of lane i has value n_envs * t + i."""
    mask = np.array(scored, np.bool_)
    buffer = buffer_of(len(mask), mask.shape[1], seed)
    values = np.arange(mask.size, dtype=np.float32).reshape(mask.shape)
    fill(buffer, rewards=np.ones(mask.shape), starts=np.zeros(mask.shape), values=values, scored=mask)
    buffer.compute_returns_and_advantage(torch.zeros(mask.shape[1]), np.zeros(mask.shape[1], np.bool_))
    return buffer


def epoch_of(buffer: MaskedRolloutBuffer, batch_size: int | None = None) -> list[list[float]]:
    return [batch.old_values.tolist() for batch in buffer.get(batch_size)]


@pytest.mark.parametrize("keeps", [True, False])
def test_termination_truncation_and_unscored_rows_give_the_numbers_worked_on_paper(keeps: bool) -> None:  # noqa: FBT001 - a parameter of the test
    kept = float(keeps)
    buffer = buffer_of(6, 2)
    fill(
        buffer,
        rewards=np.array([[0, 0], [1, 0], [0, 2.8], [7, 7], [1, 1], [0, 7]]),
        values=np.array([[1, 1], [2, 1], [1, 1], [99, 99], [0.5, 0], [1, 99]]),
        starts=np.array([[1, 1], [0, 0], [1, 0], [0, 1], [0, kept], [0, 0]]),
        scored=PAPER_SCORED,
    )
    buffer.compute_returns_and_advantage(torch.tensor([2.0, 3.0]), np.array([False, False]))
    np.testing.assert_allclose(buffer.advantages, PAPER_ADVANTAGES, rtol=1e-6)
    np.testing.assert_allclose(buffer.returns[PAPER_SCORED], PAPER_RETURNS[PAPER_SCORED], rtol=1e-6)


@given(st.lists(LANE, min_size=1, max_size=3), st.lists(FLOATS, min_size=3, max_size=3), st.booleans())
def test_unscored_rows_are_as_if_they_were_never_there(
    lanes: list[list[Row]],
    last_values: list[float],
    keeps: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    starts = np.array([starts_of(lane, keeps=keeps) for lane in lanes]).T
    columns = {
        name: np.array([[getattr(row, name) for row in lane] for lane in lanes]).T for name in Row._fields
    }
    buffer = buffer_of(7, len(lanes))
    fill(
        buffer,
        rewards=columns["reward"],
        values=columns["value"],
        starts=starts[:-1],
        scored=columns["scored"],
    )
    buffer.compute_returns_and_advantage(torch.tensor(last_values[: len(lanes)]), starts[-1])
    for i, lane in enumerate(lanes):
        rows = [row for row in lane if row.scored]
        if not rows:
            continue
        alone = sb3_buffer_of(len(rows), 1)
        ends = starts_of(rows, keeps=True)
        happened = {
            "rewards": [row.reward for row in rows],
            "values": [row.value for row in rows],
            "starts": ends,
        }
        fill(alone, **{name: np.array(column)[:, None] for name, column in happened.items()})
        alone.compute_returns_and_advantage(torch.tensor(last_values[i : i + 1]), np.array(ends[-1:]))
        kept = columns["scored"][:, i]
        np.testing.assert_array_equal(buffer.advantages[kept, i], alone.advantages[:, 0])
        np.testing.assert_array_equal(buffer.returns[kept, i], alone.returns[:, 0])


@given(st.lists(LANE, min_size=2, max_size=2))
def test_with_every_row_scored_the_buffer_is_sb3s_own(lanes: list[list[Row]]) -> None:
    lanes = [[row._replace(scored=True) for row in lane] for lane in lanes]
    starts = np.array([starts_of(lane, keeps=True) for lane in lanes]).T
    ours, theirs = buffer_of(7, 2), sb3_buffer_of(7, 2)
    for buffer in (ours, theirs):
        rewards, values = (np.array([[row[k] for row in lane] for lane in lanes]).T for k in (0, 1))
        fill(buffer, rewards=rewards, values=values, starts=starts[:-1])
        buffer.compute_returns_and_advantage(torch.tensor([0.5, -2.0]), starts[-1])
    for name in ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=8), st.integers(2, 9))
def test_an_epoch_gives_every_scored_row_once_in_even_minibatches(
    scored: list[list[bool]], batch_size: int
) -> None:
    buffer = masked_buffer(scored)
    batches = epoch_of(buffer, batch_size)
    assert sorted(chain.from_iterable(batches)) == np.flatnonzero(np.array(scored)).tolist()
    sizes = [len(batch) for batch in batches]
    assert max(sizes, default=0) <= batch_size
    if not np.all(scored):
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert len(buffer.values) == len(buffer.returns) == sum(sizes)


@pytest.mark.parametrize("batch_size", [1, 4, 5, 7, 12, 23, 24, 25, None])
def test_with_every_row_scored_the_minibatches_are_cut_as_sb3_cuts_them(batch_size: int | None) -> None:
    theirs = sb3_buffer_of(8, 3)
    fill(theirs, **{name: np.ones((8, 3)) for name in ("rewards", "starts", "values")})
    sizes = [len(batch.old_values) for batch in theirs.get(batch_size)]
    batches = epoch_of(masked_buffer([[True] * 3] * 8), batch_size)
    (order,) = epoch_of(masked_buffer([[True] * 3] * 8))
    assert [len(batch) for batch in batches] == sizes
    assert list(chain.from_iterable(batches)) == order


def test_each_sample_keeps_what_belongs_to_its_row_together() -> None:
    buffer = masked_buffer([[True, False], [False, True], [True, True]])
    advantages = {float(v): a for v, a in zip(buffer.values.flat, buffer.advantages.flat, strict=True)}
    (batch,) = buffer.get()
    for k, value in enumerate(batch.old_values.tolist()):
        row, lane = divmod(int(value), 2)
        assert batch.observations[k].tolist() == [row]
        assert batch.actions[k].tolist() == [lane]
        assert batch.old_log_prob[k] == -value
        assert batch.advantages[k] == advantages[value]
        assert batch.returns[k] == batch.advantages[k] + batch.old_values[k]


def test_shuffles_follow_from_seed_update_and_epoch_alone() -> None:
    def epochs(update: int, seed: int = 0, stir: int = 0) -> list[list[list[float]]]:
        buffer = masked_buffer([[True, True]] * 8, seed)
        buffer.update = update
        np.random.seed(stir)  # noqa: NPY002 - the global state that must not matter
        return [epoch_of(buffer, 4) for _ in range(2)]

    assert epochs(update=3) == epochs(update=3, stir=1)
    assert epochs(update=3)[0] != epochs(update=3)[1]
    assert epochs(update=3) != epochs(update=4)
    assert epochs(update=3) != epochs(update=3, seed=1)


def test_a_reset_counts_the_updates_unless_it_is_told_the_number() -> None:
    buffer = buffer_of(2, 1)
    assert buffer.update == 0
    buffer.reset()
    assert buffer.update == 1
    buffer.reset(update=7)
    assert buffer.update == 7


def test_a_lane_without_a_scored_row_leaves_the_others_alone() -> None:
    alone, beside = masked_buffer([[True], [True]]), masked_buffer([[True, False], [True, False]])
    assert len(next(alone.get()).advantages) == len(next(beside.get()).advantages) == 2
    assert masked_buffer([[False, False]]).advantages.tolist() == [[0, 0]]
    assert epoch_of(masked_buffer([[False, False]])) == []


def test_a_buffer_that_is_not_full_cannot_be_learned_from() -> None:
    with pytest.raises(ValueError, match="the buffer has 0 of 2 rows"):
        next(buffer_of(2, 1).get())
