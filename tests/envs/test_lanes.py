"""Lanes keep Gymnasium's contract: they equal SyncVectorEnv step by step, and err as AsyncVectorEnv does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from envs.lanes import LaneVectorEnv
from tests.envs.lane_worlds import FAILS, Counting, Nested, Waiting, Wide, same

N = 3
MODES = list(AutoresetMode)
GO = np.array([1, 2, 3])
counting = [partial(Counting, lane, 2 + lane) for lane in range(N)]


@pytest.fixture
def lanes() -> Iterator[LaneVectorEnv]:
    made = LaneVectorEnv(counting)
    yield made
    made.close()


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 1000), actions=st.lists(st.integers(0, FAILS - 1), min_size=1, max_size=12))
def test_lanes_equal_gymnasiums_own_vector_step_by_step(
    mode: AutoresetMode, seed: int, actions: list[int]
) -> None:
    own, lanes = SyncVectorEnv(counting, autoreset_mode=mode), LaneVectorEnv(counting, autoreset_mode=mode)
    assert same(lanes.reset(seed=seed), own.reset(seed=seed))
    for action in actions:
        row = np.full(N, action)
        expected = own.step(row)
        assert same(lanes.step(row), expected)
        done = expected[2] | expected[3]
        if mode is AutoresetMode.DISABLED and done.any():
            masked = {"reset_mask": done}
            assert same(lanes.reset(options=masked), own.reset(options=dict(masked)))
    lanes.close()


@pytest.mark.parametrize("mode", MODES)
def test_they_equal_it_on_cartpole(mode: AutoresetMode) -> None:
    makers = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=9)] * 4
    own, lanes = SyncVectorEnv(makers, autoreset_mode=mode), LaneVectorEnv(makers, autoreset_mode=mode)
    assert same(lanes.reset(seed=[5, None, 7, 8])[0][[0, 2, 3]], own.reset(seed=[5, 6, 7, 8])[0][[0, 2, 3]])
    assert same(lanes.reset(seed=5), own.reset(seed=5))
    for step in range(8 if mode is AutoresetMode.DISABLED else 40):
        row = np.arange(4) // 2 ^ step % 2
        assert same(lanes.step(row), own.step(row))
    assert lanes.observation_space == own.observation_space
    assert lanes.action_space == own.action_space
    assert lanes.metadata["autoreset_mode"] is mode
    lanes.close()


def test_a_mask_resets_some_lanes_and_the_callers_options_stay(lanes: LaneVectorEnv) -> None:
    lanes.reset(seed=1)
    lanes.step(GO)
    options = {"reset_mask": np.array([True, False, True]), "other": 1}
    shown, infos = lanes.reset(options=options)
    assert set(options) == {"reset_mask", "other"}
    assert shown[:, 2].tolist() == [0, 1, 0]
    assert infos["_lane"].tolist() == [True, False, True]
    assert lanes.get_attr("options") == ([None, {"other": 1}], [None], [None, {"other": 1}])


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True] * N, TypeError),
        (np.ones(N), TypeError),
        (np.ones(N + 1, np.bool_), ValueError),
        (np.zeros(N, np.bool_), ValueError),
        (np.array([True, False, True]), ResetNeeded),
    ],
)
def test_a_mask_that_cannot_be_followed_is_an_error(
    lanes: LaneVectorEnv,
    mask: Any,  # noqa: ANN401 - what a user might pass
    error: type[Exception],
) -> None:
    with pytest.raises(error, match="reset"):
        lanes.reset(options={"reset_mask": mask})
    lanes.reset()


def test_bad_seeds_and_actions_are_errors_and_no_lane_moves(lanes: LaneVectorEnv) -> None:
    with pytest.raises(ValueError, match="expected 3 seeds"):
        lanes.reset(seed=[1, 2])
    lanes.reset(seed=0)
    with pytest.raises(ValueError, match="expected 3 actions"):
        lanes.step(np.array([1, 2]))
    with pytest.raises(TypeError, match="sequence of 3 actions"):
        lanes.step(np.int64(1))
    assert lanes.get_attr("time") == (0, 0, 0)


def test_with_autoreset_disabled_a_lane_that_is_over_stops_all_before_their_step() -> None:
    lanes = LaneVectorEnv(counting, autoreset_mode="Disabled")
    lanes.reset()
    lanes.step(GO)
    lanes.step(GO)
    for step in (lanes.step, partial(lanes.send, lanes=range(N))):
        with pytest.raises(ResetNeeded, match="lane 0"):
            step(GO)
    assert lanes.get_attr("time") == (2, 2, 2)
    lanes.close()


def test_observations_are_copies_unless_that_is_not_wanted() -> None:
    for copy in (True, False):
        lanes = LaneVectorEnv(counting, copy=copy)
        first, _ = lanes.reset()
        kept = first.copy()
        second = lanes.step(GO)[0]
        assert np.array_equal(first, kept) == copy
        assert (first is second) != copy
        lanes.close()


def test_spaces_may_be_nested_and_differ_in_their_bounds_where_that_is_allowed() -> None:
    makers = [partial(Nested, high) for high in (9.0, 99.0)]
    with pytest.raises(RuntimeError, match="lane 1"):
        LaneVectorEnv(makers)
    one = Nested(1).observation_space
    for mode in ("different", (gymnasium.vector.utils.batch_space(one, 2), one)):
        own = SyncVectorEnv(makers, observation_mode=mode)
        lanes = LaneVectorEnv(makers, observation_mode=mode)
        assert lanes.observation_space == own.observation_space
        assert same(lanes.reset(seed=1), own.reset(seed=1))
        assert same(lanes.step(np.array([0, 1])), own.step(np.array([0, 1])))
        lanes.send([1], [1])
        assert lanes.recv().observations["at"].tolist() == [[2.0, 2.0]]
        lanes.close()


def test_what_does_not_fit_together_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LaneVectorEnv([])
    with pytest.raises(ValueError, match="observation_mode"):
        LaneVectorEnv(counting, observation_mode="equal")
    with pytest.raises(TypeError, match="two spaces"):
        LaneVectorEnv(counting, observation_mode=(1, 2))  # type: ignore[arg-type]
    pole, car = (partial(gymnasium.make, name) for name in ("CartPole-v1", "MountainCar-v0"))
    for mode in ("same", "different"):
        with pytest.raises(RuntimeError, match="lane 2 has the observation space"):
            LaneVectorEnv([pole, pole, car], observation_mode=mode)
    with pytest.raises(RuntimeError, match="lane 1 has the action space"):
        LaneVectorEnv([partial(gymnasium.make, "FrozenLake-v1"), Wide])


@pytest.mark.parametrize("wrapper", ["RecordEpisodeStatistics", "NormalizeReward", "DictInfoToList"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_gymnasiums_vector_wrappers_do_over_lanes_what_they_do(wrapper: str, mode: AutoresetMode) -> None:
    wrap = getattr(gymnasium.wrappers.vector, wrapper)
    made = (kind(counting, autoreset_mode=mode) for kind in (SyncVectorEnv, LaneVectorEnv))
    own, lanes = map(wrap, made)
    assert same(lanes.reset(seed=1), own.reset(seed=1))
    for _ in range(7):
        results = [list(env.step(GO)) for env in (lanes, own)]
        for result in results:
            if wrapper == "RecordEpisodeStatistics":
                result[4].get("episode", {}).pop("t", None)  # seconds
        assert same(*results)
    lanes.close()


def test_attributes_and_methods_are_used_lane_by_lane(lanes: LaneVectorEnv) -> None:
    lanes.set_attr("length", [7, 8, 9])
    assert lanes.get_attr("length") == (7, 8, 9)
    lanes.set_attr("length", 5)
    assert lanes.call("length") == (5, 5, 5)
    assert lanes.render() == ("0: 0", "1: 0", "2: 0")
    lanes.reset(seed=3)
    assert lanes.np_random_seed == (3, 4, 5)
    assert len({id(stream) for stream in lanes.np_random}) == N
    with pytest.raises(ValueError, match="expected 3 values of 'length'"):
        lanes.set_attr("length", [1])
    with pytest.raises(LookupError, match="in 1") as raised:
        lanes.call("fail_in", 1)
    assert raised.value.__notes__ == ["raised in lane 1"]
    assert lanes.call("fail_in", 9) == (0, 1, 2)


def test_one_call_is_pending_at_a_time() -> None:
    lanes = LaneVectorEnv([partial(Waiting, lane) for lane in range(N)])
    starts: dict[str, Any] = {
        "reset": lanes.reset_async,
        "step": partial(lanes.step_async, GO),
        "call": partial(lanes.call_async, "time"),
    }
    waits = {"reset": lanes.reset_wait, "step": lanes.step_wait, "call": lanes.call_wait}
    for name, start in starts.items():
        for wait in waits.values():
            with pytest.raises(NoAsyncCallError):
                wait()
        start()
        for other in (*starts.values(), partial(lanes.send, GO, range(N)), partial(lanes.set_attr, "a", 1)):
            with pytest.raises(AlreadyPendingCallError, match=f"`{name}` is pending in 3 lanes"):
                other()
        with pytest.raises(NoAsyncCallError):
            lanes.recv()
        if name == "step":
            with pytest.raises(TimeoutError, match="0 of 3"):
                lanes.step_wait(timeout=0.01)
            for env in lanes.envs:
                env.go()
        waits[name]()
    assert lanes.get_attr("time") == (1, 1, 1)
    lanes.close()


def test_an_error_in_a_reset_names_its_lane_and_the_others_are_reset(lanes: LaneVectorEnv) -> None:
    with pytest.raises(LookupError, match="no start") as raised:
        lanes.reset(seed=0, options={"fail": 1})
    assert raised.value.__notes__ == ["raised in lane 1"]
    assert lanes.get_attr("episode") == (1, 0, 1)
    shown, _ = lanes.reset(options={"reset_mask": np.array([False, True, False])})
    assert shown[:, 1].tolist() == [1, 1, 1]


def test_an_error_in_a_step_leaves_the_other_lanes_results_to_recv_or_to_a_reset(
    lanes: LaneVectorEnv,
) -> None:
    for _ in range(2):
        lanes.reset(seed=0)
        with pytest.raises(ArithmeticError, match="in 1") as raised:
            lanes.step(np.array([1, FAILS, 2]))
        assert raised.value.__notes__ == ["raised in lane 1"]
        assert lanes.pending == (0, 2)
        with pytest.raises(AlreadyPendingCallError):
            lanes.step(GO)
    came = lanes.recv(2)
    assert sorted(zip(came.lanes.tolist(), came.rewards.tolist(), strict=True)) == [(0, 1.0), (2, 2.0)]
    assert lanes.step(GO)[1].tolist() == [1, 2, 3]


def test_a_lane_is_one_thread_for_good_and_an_environment_knows_no_other() -> None:
    class Known(Counting):
        def step(self, action: np.int64) -> Any:  # noqa: ANN401 - Gymnasium's five values
            self.threads = {*getattr(self, "threads", ()), threading.get_ident()}
            return super().step(action)

    before = threading.active_count()
    lanes = LaneVectorEnv([Known] * N)
    assert threading.active_count() == before
    lanes.reset()
    for _ in range(9):
        lanes.step(GO)
    assert threading.active_count() == before + N
    assert len(set.union(*lanes.get_attr("threads"))) == N
    lanes.close()
    assert threading.active_count() == before


def test_after_close_everything_but_close_is_an_error(lanes: LaneVectorEnv) -> None:
    lanes.reset()
    lanes.close()
    lanes.close()
    assert [env.closed_by for env in lanes.envs] == [["lane-0"], ["lane-1"], ["lane-2"]]
    calls: list[Any] = [
        lanes.reset,
        lanes.recv,
        lanes.step_wait,
        lanes.reset_wait,
        lanes.call_wait,
        lanes.render,
    ]
    for call in (*calls, *(partial(f, GO) for f in (lanes.step, partial(lanes.send, lanes=range(N))))):
        with pytest.raises(ClosedEnvironmentError):
            call()
