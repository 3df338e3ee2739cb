"""Lanes stepped one by one, closed while they are busy, and left by Ctrl-C: no result is lost or doubled."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.lanes import Arrivals, LaneVectorEnv
from tests.envs.lane_worlds import FAILS, Counting, Waiting, same
from tests.ollama_utils.threads import interrupted_once

N = 4
SAME_STEP = AutoresetMode.SAME_STEP


def waiting() -> LaneVectorEnv:
    return LaneVectorEnv([partial(Waiting, lane) for lane in range(N)], autoreset_mode=SAME_STEP)


@pytest.fixture
def lanes() -> Iterator[LaneVectorEnv]:
    """Reset lanes; what still waits at the end is let go."""
    made = waiting()
    made.reset(seed=0)
    yield made
    for env in made.envs:
        env.go()
    if not made.closed:
        made.call("length") if not made.pending else made.reset()
        made.close()


def steps(came: Arrivals) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Each lane's part of what arrived."""
    for lane, *step in zip(*came, strict=True):
        yield int(lane), tuple(step)


def alone(lane: int, seed: int, actions: list[int]) -> list[tuple[Any, ...]]:
    """What a lane gives when nobody else is there."""
    env = Counting(lane)
    env.reset(seed=seed)
    rows = []
    for action in actions:
        shown, reward, terminated, truncated, info = env.step(np.int64(action))
        if terminated or truncated:
            first, reset_info = env.reset()
            shown, info = first, {"final_obs": shown, "final_info": info} | reset_info
        rows.append((shown, np.float64(reward), np.bool_(terminated), np.bool_(truncated), info))
    return rows


@settings(max_examples=60)
@given(
    service=st.lists(st.tuples(st.sets(st.integers(0, N - 1)), st.integers(1, N)), min_size=1),
    seed=st.integers(0, 100),
    length=st.integers(1, 7),
)
def test_in_any_order_of_service_each_lane_gives_what_it_gives_alone(
    service: list[tuple[set[int], int]], seed: int, length: int
) -> None:
    """Lanes are let go in any order, and any number of results is waited for."""
    actions = [[(seed + lane * step) % FAILS for step in range(length)] for lane in range(N)]
    seen: list[list[tuple[Any, ...]]] = [[] for _ in range(N)]
    lanes = waiting()
    lanes.reset(seed=seed)
    lanes.send([actions[lane][0] for lane in range(N)], range(N))
    held, free = set(range(N)), set[int]()
    for chosen, least in cycle(service):
        for lane in (held & chosen) or sorted(held)[: 0 if free else 1]:
            lanes.envs[lane].go()
            held.remove(lane)
            free.add(lane)
        if not free:
            break
        came = lanes.recv(min(least, len(free)))
        assert min(least, len(free)) <= len(set(came.lanes.tolist())) == len(came.lanes)
        assert free.issuperset(came.lanes.tolist())
        for lane, step in steps(came):
            seen[lane].append(step)
            free.remove(lane)
        again = [lane for lane in came.lanes if len(seen[lane]) < length]
        lanes.send([actions[lane][len(seen[lane])] for lane in again], again)
        held.update(map(int, again))
    lanes.close()
    assert all(same(seen[lane], alone(lane, seed + lane, actions[lane])) for lane in range(N))


def test_results_come_in_the_order_of_arrival_with_their_types(lanes: LaneVectorEnv) -> None:
    lanes.send([1, 2, 3], [3, 0, 2])
    for count, lane in enumerate((2, 3, 0), start=1):
        lanes.envs[lane].go()
        lanes._calls.wait(count)
    came = lanes.recv(2)
    assert came.lanes.tolist() == [2, 3, 0]
    assert came.rewards.tolist() == [3, 1, 2]
    assert came.observations[:, 0].tolist() == [2, 3, 0]
    assert [part.dtype for part in came[:5]] == [np.int64, np.float32, np.float64, np.bool_, np.bool_]
    assert [info["time"] for info in came.infos] == [1.0, 1.0, 1.0]


def test_a_timeout_loses_nothing(lanes: LaneVectorEnv) -> None:
    lanes.send([1, 2], [0, 1])
    lanes.envs[1].go()
    lanes._calls.wait(1)
    with pytest.raises(TimeoutError, match="1 of 2"):
        lanes.recv(2, timeout_s=0.001)
    assert lanes.recv().lanes.tolist() == [1]
    lanes.envs[0].go()
    assert lanes.recv(timeout_s=60).rewards.tolist() == [1]


@pytest.mark.parametrize(
    ("actions", "numbers", "said"),
    [
        ([1], [4], "from 0 to 3"),
        ([1], [-1], "from 0 to 3"),
        ([1, 1], [2, 2], "expected different ones"),
        ([1], [0, 1], "expected 2 actions"),
        ([1, 1, 1], [0, 1], "expected 2 actions"),
    ],
)
def test_what_cannot_be_sent_starts_no_lane(
    lanes: LaneVectorEnv, actions: list[int], numbers: list[int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        lanes.send(actions, numbers)
    assert lanes.pending == ()


def test_a_lane_takes_one_step_at_a_time_and_no_other_call_beside_it(lanes: LaneVectorEnv) -> None:
    with pytest.raises(NoAsyncCallError):
        lanes.recv()
    lanes.send([], [])
    lanes.send([1, 2], [2, 0])
    with pytest.raises(AlreadyPendingCallError, match=r"lanes \[2\]"):
        lanes.send([1, 1], [1, 2])
    for call in (partial(lanes.step, np.ones(N, np.int64)), partial(lanes.get_attr, "time")):
        with pytest.raises(AlreadyPendingCallError, match="`send` is pending in 2 lanes"):
            call()
    for least in (0, 3):
        with pytest.raises(ValueError, match="expected 1 to 2"):
            lanes.recv(least)
    lanes.send([3], [1])
    assert lanes.pending == (0, 1, 2)


def test_a_reset_waits_for_what_was_sent_and_drops_it(lanes: LaneVectorEnv) -> None:
    lanes.send([1, 2], [2, 0])
    for lane in (0, 2):
        lanes.envs[lane].go()
    shown, _ = lanes.reset(seed=0)
    assert shown[:, 2].tolist() == [0] * N
    with pytest.raises(NoAsyncCallError):
        lanes.recv()


def test_an_error_is_raised_by_the_recv_that_would_give_the_step_and_the_others_stay() -> None:
    lanes = LaneVectorEnv([partial(Counting, lane) for lane in range(N)])
    lanes.reset(seed=0)
    lanes.send([1, FAILS, FAILS, 2], range(N))
    lanes._calls.wait(N)
    failed = []
    for _ in range(2):
        with pytest.raises(ArithmeticError) as raised:
            lanes.recv(1)
        failed += raised.value.__notes__
    assert sorted(failed) == ["raised in lane 1", "raised in lane 2"]
    assert sorted(lanes.recv(2).lanes.tolist()) == [0, 3]
    lanes.send([1, 1], [1, 2])
    assert lanes.recv(2).observations[:, 2].tolist() == [1, 1]
    lanes.close()


def test_ctrl_c_while_waiting_leaves_lanes_that_go_on(lanes: LaneVectorEnv) -> None:
    def all_begun() -> None:
        for env in lanes.envs:
            env.begun.wait()

    row = np.ones(N, np.int64)

    def interrupted(wait: Callable[[], object]) -> None:
        with interrupted_once(all_begun):
            wait()
        for env in lanes.envs:
            env.begun.clear()
            env.go()

    interrupted(lambda: lanes.step(row))
    assert lanes.reset(seed=0)[0][:, 2].tolist() == [0] * N

    def send_and_receive() -> None:
        lanes.send(row, range(N))
        lanes.recv(N)

    interrupted(send_and_receive)
    assert sorted(lanes.recv(N).lanes.tolist()) == list(range(N))


@pytest.mark.parametrize("start", ["step_async", "send"])
def test_close_with_lanes_busy_warns_and_waits_no_longer_than_told(lanes: LaneVectorEnv, start: str) -> None:
    row = np.ones(N, np.int64)
    lanes.step_async(row) if start == "step_async" else lanes.send(row, range(N))
    lanes.envs[0].go()
    with (
        pytest.warns(UserWarning, match="pending"),
        pytest.warns(UserWarning, match=r"lanes \[1, 2, 3\] are still busy"),
    ):
        lanes.close(timeout=0.05)
    for lane, env in enumerate(lanes.envs):
        env.go()
        assert env.closed.wait(60)
        assert env.closed_by == [f"lane-{lane}"]


def test_close_that_terminates_neither_waits_nor_warns(lanes: LaneVectorEnv) -> None:
    lanes.send([1], [0])
    lanes.close(terminate=True)
    lanes.envs[0].go()
    assert all(env.closed.wait(60) for env in lanes.envs)


def test_an_error_in_a_close_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Waiting):
        def close(self) -> None:
            raise OSError("will not close")

    before = {*threading.enumerate()}
    lanes = LaneVectorEnv([Stuck])
    lanes.reset()
    lanes.send([1], [0])
    (thread,) = (each for each in {*threading.enumerate()} - before if each.name == "lane-0")
    lanes.close(terminate=True)
    lanes.envs[0].go()
    thread.join(60)
    assert "lane 0 could not be closed" in caplog.text


def test_an_error_in_close_is_raised_once_all_are_closed() -> None:
    class Stuck(Waiting):
        def close(self) -> None:
            super().close()
            if self.lane == 1:
                raise OSError("will not close")

    for used in (True, False):
        lanes = LaneVectorEnv([partial(Stuck, lane) for lane in range(N)])
        if used:
            lanes.reset()
        with pytest.raises(OSError, match="will not close"):
            lanes.close()
        assert all(env.closed.is_set() for env in lanes.envs)
        lanes.close()


def test_lanes_that_nobody_holds_any_more_close_themselves() -> None:
    lanes = waiting()
    lanes.reset()
    envs, held = lanes.envs, weakref.ref(lanes)
    del lanes
    gc.collect()
    assert held() is None
    assert all(env.closed.wait(60) for env in envs)
