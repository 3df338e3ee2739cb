"""Train PPO without a barrier inside the rollout, as `mutagym train` does, with Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from envs import ENV_ID, GymnasiumVecEnv, LaneVectorEnv
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from train.lanes import LanePPO


def main(total_steps: int = 4096, num_lanes: int = 16) -> None:
    """Train on a server of 8 slots, and print the mean return of the last episodes."""
    with EmbeddedServer(Settings(slots=8, time_scale=0.0)) as server:

        def make_env() -> gymnasium.Env[Any, Any]:
            env = gymnasium.make(ENV_ID, hosts=server.host, target_model="sim-model", encoder="hashing")
            return gymnasium.wrappers.RecordEpisodeStatistics(env)

        lanes = LaneVectorEnv([make_env] * num_lanes, autoreset_mode=AutoresetMode.SAME_STEP)
        env = GymnasiumVecEnv(lanes)
        LanePPO("MlpPolicy", env, n_steps=32, batch_size=64, seed=0, verbose=1).learn(total_steps)
        env.close()


if __name__ == "__main__":
    main()
