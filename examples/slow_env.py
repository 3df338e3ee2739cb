"""PPO on any slow Gymnasium environment, each lane at its own pace: here a CartPole behind a slow line."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from train import LanePPO


class Remote(gymnasium.Wrapper[NDArray[np.float32], int, NDArray[np.float32], int]):
    """Its steps take between nothing and twice the mean, as those of a model or a device do."""

    def __init__(self, env: gymnasium.Env[NDArray[np.float32], int], mean_s: float) -> None:
        super().__init__(env)
        self._mean_s = mean_s
        self._chance = np.random.default_rng()

    def step(self, action: int) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """The environment's own step, later."""
        time.sleep(self._chance.uniform(0.0, 2 * self._mean_s))
        return self.env.step(action)


def main(total_steps: int = 8192, num_lanes: int = 16, mean_s: float = 0.02) -> None:
    """Train in lanes, and print how much longer the steps took than the training waited for them."""
    lanes = [
        gymnasium.wrappers.RecordEpisodeStatistics(Remote(gymnasium.make("CartPole-v1"), mean_s))
        for _ in range(num_lanes)
    ]
    begin_s = time.perf_counter()
    model = LanePPO("MlpPolicy", lanes, n_steps=32, batch_size=64, seed=0, verbose=1).learn(
        total_steps
    )
    took_s = time.perf_counter() - begin_s
    slept_s = model.num_timesteps * mean_s
    print(
        f"{model.num_timesteps} steps of {mean_s:g} s each, {slept_s:.0f} s in all, took {took_s:.0f} s"
    )


if __name__ == "__main__":
    main()
