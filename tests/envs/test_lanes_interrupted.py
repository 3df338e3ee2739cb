"""Ctrl-C at every line of the code of lanes: calls have begun whole or not at all, and lanes go on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest

from envs import lanes
from envs.lanes import LaneVectorEnv
from tests.envs.lane_worlds import Counting

N = 3
GO = np.array([1, 2, 3])
OURS = {lanes.__file__}


def torn(call: Callable[[], object], line: int, files: Collection[str] = OURS) -> bool:
    """Whether a call was interrupted, which it is at a given line of those it runs on this thread."""
    lines = count()

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - itself, or nothing
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def everywhere(check: Callable[[int], bool]) -> None:
    """Check an interrupt at every line, until the call has no more.

    On a thread of its own: where the tracer raises in an `except`, Python 3.11 leaves the error behind as the
    context of every later one on that thread.
    """
    with ThreadPoolExecutor(1) as thread:
        line = 0
        while thread.submit(check, line).result():
            line += 1
    assert line > 10


def made() -> LaneVectorEnv:
    return LaneVectorEnv([partial(Counting, lane, 99) for lane in range(N)])


def steps(env: LaneVectorEnv, least: int) -> dict[int, float]:
    """What the lanes were paid for their steps."""
    came = env.recv(least, timeout_s=60)
    assert len(set(came.lanes.tolist())) == len(came.lanes)
    return dict(zip(came.lanes.tolist(), came.rewards.tolist(), strict=True))


def assert_well(env: LaneVectorEnv) -> None:
    """Nothing is left over, and everything works."""
    assert env.pending == ()
    assert env.step(GO)[1].tolist() == [1, 2, 3]
    shown, _ = env.reset(seed=1)
    assert shown[:, 2].tolist() == [0] * N
    env.close()


def test_send_begins_in_all_its_lanes_or_in_none() -> None:
    def check(line: int) -> bool:
        env = made()
        env.reset()
        env.send([1], [0])
        was_torn = torn(lambda: env.send([2, 3], [1, 2]), line)
        assert env.pending in {(0,), (0, 1, 2)}
        pending = env.pending
        assert steps(env, len(pending)) == {lane: lane + 1.0 for lane in pending}
        assert env.get_attr("time") == tuple(int(lane in pending) for lane in range(N))
        assert_well(env)
        return was_torn

    everywhere(check)


def test_recv_takes_all_that_it_would_give_or_nothing() -> None:
    def check(line: int) -> bool:
        env = made()
        env.reset()
        env.send(GO, range(N))
        was_torn = torn(lambda: env.recv(N), line)
        if env.pending:
            assert steps(env, N) == {0: 1.0, 1: 2.0, 2: 3.0}
        assert_well(env)
        return was_torn

    everywhere(check)


def test_step_async_begins_in_all_lanes_or_in_none_and_step_wait_gives_whole_rows() -> None:
    def check_start(line: int) -> bool:
        env = made()
        env.reset()
        was_torn = torn(lambda: env.step_async(GO), line)
        if env.pending:
            assert env.step_wait(timeout=60)[1].tolist() == [1, 2, 3]
        assert_well(env)
        return was_torn

    def check_wait(line: int) -> bool:
        env = made()
        env.reset()
        env.step_async(GO)
        was_torn = torn(env.step_wait, line)
        if env.pending:
            assert env.step_wait(timeout=60)[1].tolist() == [1, 2, 3]
        assert_well(env)
        return was_torn

    everywhere(check_start)
    everywhere(check_wait)


CALLS: dict[str, Callable[[LaneVectorEnv], object]] = {
    "reset": lambda env: env.reset()[0][:, 2].tolist() == [0] * N,
    "step": lambda env: env.step(GO)[1].tolist() == [1, 2, 3],
    "call": lambda env: env.get_attr("lane") == (0, 1, 2),
}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("step", "call"),
        ("call", "step"),
        ("reset", "reset"),
        pytest.param("step", "step", marks=pytest.mark.soak),
        pytest.param("call", "call", marks=pytest.mark.soak),
    ],
)
def test_after_a_torn_reset_step_or_call_the_next_call_begins_anew(first: str, then: str) -> None:
    def check(line: int) -> bool:
        env = made()
        if first != "reset":
            env.reset()
        was_torn = torn(lambda: CALLS[first](env), line)
        assert CALLS[then](env)
        assert_well(env)
        return was_torn

    everywhere(check)


def test_a_torn_close_is_finished_by_the_next() -> None:
    def check(line: int) -> bool:
        before = threading.active_count()
        env = made()
        env.reset()
        was_torn = torn(env.close, line)
        env.close()
        assert [each.closed_by for each in env.envs] == [["lane-0"], ["lane-1"], ["lane-2"]]
        assert threading.active_count() == before
        return was_torn

    everywhere(check)


@pytest.mark.parametrize("start", ["step_async", "call_async", "send"])
def test_reset_drops_whatever_is_under_way(start: str) -> None:
    env = made()
    env.reset()
    started: dict[str, Callable[[], object]] = {
        "step_async": lambda: env.step_async(GO),
        "call_async": lambda: env.call_async("fail_in", 1),
        "send": lambda: env.send(GO, range(N)),
    }
    started[start]()
    env.reset()
    assert_well(env)


LEAVES = """
import gymnasium, numpy, time, torch
from envs.lanes import LaneVectorEnv
torch.set_num_threads(1)
A = torch.randn(300, 300)
class E(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, numpy.float32), {}
    def step(self, action):
        print("begun", flush=True)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            torch.nn.functional.linear(A, A).sum().item()
        return numpy.zeros(1, numpy.float32), 0.0, False, False, {}
env = LaneVectorEnv([E] * 8)
env.reset()
env.step_async([0] * 8)
"""


def test_a_process_that_leaves_lanes_in_torch_ends_well() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("begun") == 8
