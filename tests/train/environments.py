"""Small genuine environments that tests of training play on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from envs.sb3 import GymnasiumVecEnv

Env = gymnasium.Env[Any, Any]
Seen = NDArray[np.float32]


class Turn(NamedTuple):
    """One step of a script: what is shown before it, what it pays, and how it goes."""

    shown: float
    reward: float
    goes: Literal["on", "terminated", "truncated", "unscored"] = "on"
    last: float = 0.0


class ScriptedEnv(gymnasium.Env[Seen, np.int64]):
    """Plays a script whatever the actions are; `reset` goes on where it stands."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, script: Sequence[Turn]) -> None:
        self.script = script
        self.played = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._seen(self.script[self.played].shown), {}

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:  # noqa: ARG002 - a script does not listen
        turn = self.script[self.played]
        self.played += 1
        over = turn.goes in {"terminated", "truncated"}
        seen = self._seen(turn.last if over else self.script[self.played].shown)
        info = {"unscored": turn.goes == "unscored"}
        return seen, turn.reward, turn.goes == "terminated", turn.goes == "truncated", info

    def _seen(self, value: float) -> Seen:
        return np.array([value], np.float32)


class StallingCartPole(gymnasium.Wrapper[Seen, np.int64, Seen, np.int64]):
    """CartPole of which every `every`-th step does not happen; such a step pays `junk`."""

    def __init__(self, every: int, junk: float = 0.0) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=30))
        self.every, self.junk = every, junk
        self.tried = 0
        self.seen = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        self.seen, info = self.env.reset(seed=seed, options=options)
        return self.seen, info

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        self.tried += 1
        if self.tried % self.every == 0:
            return self.seen, self.junk, False, False, {"unscored": True}
        self.seen, reward, terminated, truncated, info = self.env.step(action)
        return self.seen, float(reward), terminated, truncated, info


def bridge(makes: Sequence[Callable[[], Env]]) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(SyncVectorEnv(list(makes), autoreset_mode=AutoresetMode.SAME_STEP))


def cartpoles(every: int = 10**9, junk: float = 0.0) -> GymnasiumVecEnv:
    return bridge([lambda: StallingCartPole(every, junk)] * 4)
