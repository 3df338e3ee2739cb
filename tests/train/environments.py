"""Small genuine environments that tests of training play on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

Seen = NDArray[np.float32]
Taken = tuple[Seen, float, bool, bool, dict[str, Any]]


class Turn(NamedTuple):
    """One step of a script: what is shown before it, what it pays, and how it goes."""

    shown: float
    reward: float
    goes: Literal["on", "terminated", "truncated", "unscored", "given up"] = "on"
    last: float = 0.0


class ScriptedEnv(gymnasium.Env[Seen, np.int64]):
    """Plays a script whatever the actions are; `reset` goes on where it stands."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, script: Sequence[Turn]) -> None:
        self.script = script
        self.played = self.resets = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.resets += 1
        return self._seen(self.script[self.played].shown), {}

    def step(self, _action: np.int64) -> Taken:
        turn = self.script[self.played]
        self.played += 1
        truncated = turn.goes in {"truncated", "given up"}
        over = truncated or turn.goes == "terminated"
        seen = self._seen(turn.last if over else self.script[self.played].shown)
        info = {"unscored": turn.goes in {"unscored", "given up"}}
        return seen, turn.reward, turn.goes == "terminated", truncated, info

    def _seen(self, value: float) -> Seen:
        return np.array([value], np.float32)


class Order:
    """Lets waiting steps go one at a time, by a given choice among those that wait."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = list(choices) or [0]
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._taken = 0

    def wait(self) -> None:
        """Wait for my turn: another's step goes first as long as it is chosen and there."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting[self._next()] is me)
            self._waiting.remove(me)
            self._taken += 1
            self._changed.notify_all()

    def _next(self) -> int:
        return self._choices[self._taken % len(self._choices)] % len(self._waiting)


class StallingCartPole(gymnasium.Wrapper[Seen, np.int64, Seen, np.int64]):
    """CartPole of which every `every`-th step does not happen, and pays `junk`; it may wait."""

    def __init__(self, every: int = 10**9, junk: float = 0.0, order: Order | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=30))
        self.every, self.junk, self.order = every, junk, order
        self.tried = 0
        self.seen = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        self.seen, info = self.env.reset(seed=seed, options=options)
        return self.seen, info

    def step(self, action: np.int64) -> Taken:
        if self.order:
            self.order.wait()
        self.tried += 1
        if self.tried % self.every == 0:
            return self.seen, self.junk, False, False, {"unscored": True}
        self.seen, reward, terminated, truncated, info = self.env.step(action)
        return self.seen, float(reward), terminated, truncated, info
