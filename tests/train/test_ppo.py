"""LanePPO: SB3's PPO, whatever order steps end in, and as if failed steps were not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor

from tests.train.environments import Order, ScriptedEnv, StallingCartPole, Taken, Turn
from train.ppo import LanePPO, ScoredBuffer, Step, advantages, weights_sha256

GAMMA, LAMBDA, LANES = 0.9, 0.8, 4

# Worked on paper with gamma = 0.9 and lambda = 0.8, so gamma x lambda = 0.72; from the last row up,
#   delta = r + 0.9 V' - V,  A = delta + 0.72 A',  R = A + V,  V' = A' = 0 behind an episode's end.
#
# Lane 0: terminates at row 1, row 3 is unscored, goes on behind row 5 (V' = 2).
#   row 5: delta = 0 + 0.9 x 2   - 1   =  0.8    A = 0.8                              R = 1.8
#   row 4: delta = 1 + 0.9 x 1   - 0.5 =  1.4    A = 1.4 + 0.72 x 0.8  = 1.976        R = 2.476
#   row 2: delta = 0 + 0.9 x 0.5 - 1   = -0.55   A = -0.55 + 0.72 x 1.976 = 0.87272   R = 1.87272
#   row 1: delta = 1             - 2   = -1      A = -1                               R = 1
#   row 0: delta = 0 + 0.9 x 2   - 1   =  0.8    A = 0.8 - 0.72        = 0.08         R = 1.08
# Lane 1: truncated at row 2, where V(last observation) = 2 makes the reward 1 + 0.9 x 2 = 2.8; rows
# 3 and 5 are unscored; goes on behind row 5 (V' = 3).
#   row 4: delta = 1 + 0.9 x 3   - 0   =  3.7    A = 3.7                              R = 3.7
#   row 2: delta = 2.8           - 1   =  1.8    A = 1.8                              R = 2.8
#   row 1: delta = 0 + 0.9 x 1   - 1   = -0.1    A = -0.1 + 0.72 x 1.8   = 1.196      R = 2.196
#   row 0: delta = 0 + 0.9 x 1   - 1   = -0.1    A = -0.1 + 0.72 x 1.196 = 0.76112    R = 1.76112
# Lane 2: row 2 is given up: unscored, and the episode is over. Row 1 bootstraps from what it showed
# (4); row 3 is the first of another episode; goes on behind row 5 (V' = 1).
#   row 5: delta = 1 + 0.9 x 1   - 2   = -0.1    A = -0.1                             R = 1.9
#   row 4: delta = 0 + 0.9 x 2   - 1   =  0.8    A = 0.8 - 0.72 x 0.1    = 0.728      R = 1.728
#   row 3: delta = 0 + 0.9 x 1   - 1   = -0.1    A = -0.1 + 0.72 x 0.728 = 0.42416    R = 1.42416
#   row 1: delta = 1 + 0.9 x 4   - 2   =  2.6    A = 2.6                              R = 4.6
#   row 0: delta = 0 + 0.9 x 2   - 1   =  0.8    A = 0.8 + 0.72 x 2.6    = 2.672      R = 3.672
SCRIPTS = (
    [
        *(Turn(1, 0), Turn(2, 1, "terminated"), Turn(1, 0), Turn(0.5, 7, "unscored")),
        *(Turn(0.5, 1), Turn(1, 0), Turn(2, 0)),
    ],
    [
        *(Turn(1, 0), Turn(1, 0), Turn(1, 1, "truncated", last=2), Turn(0, 7, "unscored")),
        *(Turn(0, 1), Turn(3, 7, "unscored"), Turn(3, 0)),
    ],
    [
        *(Turn(1, 0), Turn(2, 1), Turn(4, 7, "given up", last=4), Turn(1, 0)),
        *(Turn(1, 0), Turn(2, 1), Turn(1, 0)),
    ],
)
SCORED = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1], [1, 0, 1]], np.bool_)
ADVANTAGES = [
    *([0.08, 0.76112, 2.672], [-1, 1.196, 2.6], [0.87272, 1.8, 0]),
    *([0, 0, 0.42416], [1.976, 3.7, 0.728], [0.8, 0, -0.1]),
]
RETURNS = [
    *([1.08, 1.76112, 3.672], [1, 2.196, 4.6], [1.87272, 2.8, 0]),
    *([0, 0, 1.42416], [2.476, 3.7, 1.728], [1.8, 0, 1.9]),
]


class Watch(BaseCallback):
    """Keeps its rows and each rollout's buffer; may stop after some rows."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.rows: list[tuple[Any, ...]] = []
        self.buffers: list[ScoredBuffer] = []

    def _on_step(self) -> bool:
        rewards, dones = self.locals["rewards"].tolist(), self.locals["dones"].tolist()
        self.rows.append((self.num_timesteps, rewards, dones))
        return self.stop_after is None or self.n_calls < self.stop_after

    def _on_rollout_end(self) -> None:
        self.buffers.append(deepcopy(self.locals["buffer"]))


def ppo(envs: Sequence[gymnasium.Env[Any, Any]], n_steps: int = 16, **more: Any) -> LanePPO:
    half = n_steps * len(envs) // 2
    options = {"n_steps": n_steps, "batch_size": half, "n_epochs": 2, "seed": 3} | more
    return LanePPO("MlpPolicy", envs, **options)


def cartpoles(
    every: int = 10**9, junk: float = 0.0, order: Order | None = None
) -> list[StallingCartPole]:
    return [StallingCartPole(every, junk, order) for _ in range(LANES)]


def weights_of(model: LanePPO, steps: int = 256, callback: Any = None) -> str:
    return weights_sha256(model.learn(steps, callback).policy)


def test_the_case_worked_on_paper_holds_from_the_environment_to_the_buffer() -> None:
    linear: dict[str, list[int]] = {"net_arch": []}
    envs = [ScriptedEnv(script) for script in SCRIPTS]
    model = ppo(envs, 6, gamma=GAMMA, gae_lambda=LAMBDA, policy_kwargs=linear)
    with torch.no_grad():  # an observation of one number is valued at that number
        model.policy.value_net.weight.fill_(1)
        model.policy.value_net.bias.fill_(0)
    model.learn(18, watch := Watch())
    (buffer,) = watch.buffers
    np.testing.assert_array_equal(buffer.scored, SCORED)
    np.testing.assert_allclose(buffer.advantages, ADVANTAGES, rtol=1e-5)
    np.testing.assert_allclose(buffer.returns[SCORED], np.array(RETURNS)[SCORED], rtol=1e-5)
    ended = [
        sum(turn.goes in {"terminated", "truncated", "given up"} for turn in s) for s in SCRIPTS
    ]
    assert [env.resets - 1 for env in envs] == ended  # each was begun once
    rewards = [list(row) for row in zip(*([t.reward for t in s[:6]] for s in SCRIPTS), strict=True)]
    assert [row[1] for row in watch.rows] == rewards  # callbacks get them as they were


FLOATS = st.floats(-10, 10, width=32)
ROW = st.tuples(FLOATS, FLOATS, st.booleans(), st.booleans())
"""A row of a lane: its reward, its value, whether it is scored, whether it ends the episode."""
Rows = Sequence[tuple[float, float, bool, bool]]


def gae(rows: Rows, last: float) -> NDArray[np.float32]:
    """The advantages of one lane's rows."""
    columns = [np.array(column)[:, None] for column in zip(*rows, strict=True)]
    rewards, values = (column.astype(np.float32) for column in columns[:2])
    found = advantages(
        rewards,
        values,
        np.array([last], np.float32),
        scored=columns[2],
        dones=columns[3],
        gamma=GAMMA,
        gae_lambda=LAMBDA,
    )
    return found[:, 0]


def buffer_of(kind: type[RolloutBuffer], rows: int) -> Any:
    shown, actions = spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(5)
    return kind(rows, shown, actions, "cpu", LAMBDA, GAMMA)


@given(st.lists(ROW, min_size=7, max_size=7), FLOATS)
def test_with_every_row_scored_the_advantages_are_sb3s(rows: Rows, last: float) -> None:
    buffer, started = buffer_of(RolloutBuffer, 7), np.ones(1)
    for reward, value, _, done in rows:
        known = torch.tensor([value])
        buffer.add(np.zeros(1), np.zeros(1), np.array([reward]), started, known, known)
        started = np.array([done])
    buffer.compute_returns_and_advantage(torch.tensor([last]), started)
    found = gae([(reward, value, True, done) for reward, value, _, done in rows], last)
    np.testing.assert_allclose(found, buffer.advantages[:, 0], rtol=1e-5, atol=1e-5)


@given(st.lists(ROW, min_size=7, max_size=7), FLOATS)
def test_rows_that_are_not_scored_are_as_if_they_were_not_there(rows: Rows, last: float) -> None:
    # A row that is not scored does not end an episode here: the case on paper has one that does.
    rows = [(reward, value, scored, done and scored) for reward, value, scored, done in rows]
    if happened := [row for row in rows if row[2]]:
        found = gae(rows, last)[[row[2] for row in rows]]
        np.testing.assert_array_equal(found, gae(happened, last))


@given(st.lists(st.booleans(), min_size=7, max_size=7), st.integers(1, 9))
def test_minibatches_are_even_and_have_each_scored_row_once(
    scored: list[bool], batch_size: int
) -> None:
    buffer = buffer_of(ScoredBuffer, 7)
    for row, is_scored in enumerate(scored):
        info = {"unscored": not is_scored}
        buffer.write([Step(np.full(1, row, np.float32), 0, 0.0, 0.0, 0.0, 0.0, False, info)])
    buffer.finish(np.zeros(1, np.float32))
    batches = [batch.observations[:, 0].tolist() for batch in buffer.get(batch_size)]
    assert np.sort(np.concatenate(batches)).tolist() == np.flatnonzero(scored).tolist()
    sizes = list(map(len, batches))
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= batch_size


@settings(max_examples=6)
@given(
    choices=st.lists(st.integers(0, LANES - 1), max_size=40),
    every=st.integers(1, 8),
    workers=st.sampled_from([None, 2]),
)
def test_whatever_order_steps_end_in_the_run_is_the_sequential_one(
    choices: list[int], every: int, workers: int | None
) -> None:
    alone, lanes = Watch(), Watch()
    expected = weights_of(ppo(cartpoles(every), workers=1), 128, alone)
    envs = cartpoles(every, order=Order(choices))
    assert weights_of(ppo(envs, workers=workers), 128, lanes) == expected
    assert lanes.rows == alone.rows
    for name in ("observations", "actions", "values", "log_probs", "rewards", "scored", "dones"):
        for mine, theirs in zip(lanes.buffers, alone.buffers, strict=True):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_the_weights_depend_on_the_seed_and_nothing_else() -> None:
    class Stir(BaseCallback):
        def _on_step(self) -> bool:
            np.random.rand(3)  # noqa: NPY002 - every global generator there is
            torch.rand(3)
            return True

    expected = weights_of(ppo(cartpoles(5)))
    assert weights_of(ppo(cartpoles(5)), callback=Stir()) == expected
    # What a failed step pays is nothing.
    assert weights_of(ppo(cartpoles(5, junk=-1e6))) == expected
    assert weights_of(ppo(cartpoles(5), seed=4)) != expected
    drawn = ppo(cartpoles(), seed=None)
    assert weights_of(drawn) == weights_of(ppo(cartpoles(), seed=drawn.seed))


def test_updates_without_a_scored_row_are_skipped_and_counted() -> None:
    model = ppo(cartpoles(every=1))
    before = weights_sha256(model.policy)
    assert weights_of(model, 128) == before
    assert model.skipped_updates == 2
    few = ppo([StallingCartPole(1), StallingCartPole(1), StallingCartPole(2)], 2).learn(12)
    assert all(torch.isfinite(weight).all() for weight in few.policy.parameters())


def test_a_callback_can_stop_the_training_within_a_rollout_and_learn_begins_anew() -> None:
    model = ppo(cartpoles(order=Order([0, 3])))
    model.learn(256, Watch(stop_after=20))
    assert (model.num_timesteps, model.rollouts) == (80, 1)
    model.learn(64)
    assert (model.num_timesteps, model.rollouts) == (64, 2)


def test_one_lane_after_another_stops_after_the_step_under_way() -> None:
    class Waits(StallingCartPole):
        def step(self, action: np.int64) -> Taken:
            time.sleep(0.02)
            return super().step(action)

    envs = [Waits() for _ in range(LANES)]
    ppo(envs, workers=1).learn(256, Watch(stop_after=2))
    assert sum(env.tried for env in envs) == 2 * LANES + 1


def test_an_error_in_a_lane_is_raised_and_training_can_go_on() -> None:
    class Breaks(StallingCartPole):
        def step(self, action: np.int64) -> Taken:
            if self.tried == 20:
                self.tried += 1
                raise ArithmeticError("broken")
            return super().step(action)

    model = ppo([*cartpoles(), Breaks()])
    with pytest.raises(ArithmeticError, match="broken"):
        model.learn(160)
    assert model.learn(160).num_timesteps == 160


def test_sb3s_callbacks_and_files_work_with_it(tmp_path: Path) -> None:
    evaluation = EvalCallback(
        Monitor(gymnasium.make("CartPole-v1")), eval_freq=16, verbose=0, log_path=str(tmp_path)
    )
    checkpoints = CheckpointCallback(16, str(tmp_path), "model")
    model = ppo([Monitor(env) for env in cartpoles(7)])
    model.learn(128, [evaluation, checkpoints])
    assert len(evaluation.evaluations_timesteps) == 2
    assert len(model.ep_info_buffer or []) > 3
    assert (tmp_path / "model_128_steps.zip").exists()
    model.save(tmp_path / "own.zip")
    loaded = LanePPO.load(tmp_path / "own.zip", envs=cartpoles(7), workers=2)
    assert weights_sha256(loaded.policy) == weights_sha256(model.policy)
    seen = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    mine, theirs = (m.predict(seen, deterministic=True)[0] for m in (model, loaded))
    np.testing.assert_array_equal(mine, theirs)
    assert loaded.learn(64, reset_num_timesteps=False).num_timesteps == 192


def test_it_learns_cartpole() -> None:
    returns = []
    for steps in (512, 6144):
        model = ppo([Monitor(gymnasium.make("CartPole-v1")) for _ in range(8)], 64, n_epochs=8)
        model.learn(steps)
        returns.append(np.mean([episode["r"] for episode in model.ep_info_buffer or []]))
    assert returns[1] > 2 * returns[0]


@pytest.mark.parametrize(
    ("envs", "error", "words"),
    [
        (list, ValueError, "at least one environment, got none"),
        (lambda: gymnasium.make_vec("CartPole-v1", 2), TypeError, "VectorEnv: wrap each"),
        (lambda: [gymnasium.make("Pendulum-v1")], TypeError, "expected Discrete actions from 0"),
    ],
)
def test_what_cannot_be_stepped_in_lanes_is_refused(
    envs: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        LanePPO("MlpPolicy", envs())


def test_lanes_and_neighbouring_seeds_share_no_chance() -> None:
    drawn = []
    for seed in (3, 4):
        envs = cartpoles()
        ppo(envs, seed=seed).learn(64)
        drawn += [tuple(env.unwrapped.np_random.random(3)) for env in envs]
    assert len(set(drawn)) == 2 * LANES
