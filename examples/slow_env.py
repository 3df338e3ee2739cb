"""PPO on a slow Gymnasium environment, each lane at its own pace: a CartPole behind a slow line."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from train import LanePPO


class Remote(gymnasium.Wrapper[NDArray[np.float32], int, NDArray[np.float32], int]):
    """A CartPole whose steps take up to `most_s`, as those of a model or a device do."""

    def __init__(self, most_s: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._most_s, self._chance = most_s, np.random.default_rng()

    def step(self, action: int) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """The environment's own step, later."""
        time.sleep(self._chance.uniform(0.0, self._most_s))
        return self.env.step(action)


def main(total_steps: int = 8192, num_lanes: int = 16, most_s: float = 0.04) -> None:
    """Train in lanes, and print how much longer the steps took than the training."""
    lanes = [Remote(most_s) for _ in range(num_lanes)]
    model = LanePPO("MlpPolicy", lanes, n_steps=32, batch_size=64, seed=0, verbose=1)
    began_s = time.perf_counter()
    model.learn(total_steps)
    took_s = time.perf_counter() - began_s
    print(f"{model.num_timesteps * most_s / 2:.1f} s of steps took {took_s:.1f} s")


if __name__ == "__main__":
    main()
