"""Small environments for the tests of lanes: what they show tells which lane, episode, step and action."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

Shown = NDArray[np.float32]
FAILS = 4
"""The action whose step raises."""


class Counting(gymnasium.Env[Shown, np.int64]):
    """Counts its steps; an episode has `length` of them, and every second one is truncated."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - Gymnasium declares it so
    observation_space = Box(-1.0, 1e6, (4,), np.float32)
    action_space = Discrete(FAILS + 1)
    render_mode = "ansi"

    def __init__(self, lane: int = 0, length: int = 3) -> None:
        self.lane = lane
        self.length = length
        self.episode = self.time = 0
        self.closed_by: list[str] = []
        self.options: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shown, dict[str, Any]]:
        super().reset(seed=seed)
        self.options.append(options)
        if options and options.pop("fail", None) == self.lane:
            raise LookupError("no start")
        self.episode, self.time = self.episode + 1, 0
        return self.show(0), {"start": self.np_random.random(), "lane": f"lane {self.lane}"}

    def step(self, action: np.int64) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        if action == FAILS:
            raise ArithmeticError(f"no such step in {self.lane}")
        self.time += 1
        over = self.time == self.length
        last = over and self.episode % 2 == 1
        info = {"time": float(self.time), "nested": {"chance": self.np_random.random()}}
        if over:
            info |= {"row": np.arange(2)}
        return self.show(action), float(action), last, over and not last, info

    def show(self, action: int | np.int64) -> Shown:
        return np.array([self.lane, self.episode, self.time, action], np.float32)

    def render(self) -> str:
        return f"{self.lane}: {self.time}"

    def fail_in(self, lane: int) -> int:
        if lane == self.lane:
            raise LookupError(f"asked to, in {lane}")
        return self.lane

    def close(self) -> None:
        self.closed_by.append(threading.current_thread().name)


class Nested(Counting):
    """Shows a dict, within bounds of its own."""

    def __init__(self, high: float) -> None:
        super().__init__()
        self.observation_space = Dict(at=Box(0, high, (2,)), on=Discrete(2))  # type: ignore[assignment]

    def show(self, action: int | np.int64) -> Any:  # noqa: ANN401 - a dict where Counting has an array
        return {"at": np.full(2, self.time, np.float32), "on": int(action) % 2}


class Wide(Counting):
    """Has the observations of FrozenLake, and actions of its own."""

    observation_space = Discrete(16)  # type: ignore[assignment]


class Waiting(Counting):
    """A step waits until `go` is called for it; `begun` says that one waits."""

    def __init__(self, lane: int = 0, length: int = 3) -> None:
        super().__init__(lane, length)
        self.begun = threading.Event()
        self.closed = threading.Event()
        self._permits: SimpleQueue[None] = SimpleQueue()

    def go(self) -> None:
        self._permits.put(None)

    def step(self, action: np.int64) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        self.begun.set()
        self._permits.get()
        return super().step(action)

    def close(self) -> None:
        super().close()
        self.closed.set()


def same(one: Any, other: Any) -> bool:  # noqa: ANN401 - what a step returns
    """Whether two results are equal, in their types, too."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        if one.dtype == object:
            return other.dtype == object and same(list(one), list(other))
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)
