"""Train SB3's PPO in lanes that do not wait for each other, as `mutagym train` does."""

from __future__ import annotations

import gymnasium

from envs import ENV_ID
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from train import LanePPO


def main(total_steps: int = 4096, num_lanes: int = 16) -> None:
    """Train on a server of 8 slots, and print the mean return of the last episodes."""
    with EmbeddedServer(Settings(slots=8, time_scale=0.0)) as server:
        lanes = [
            gymnasium.wrappers.RecordEpisodeStatistics(
                gymnasium.make(
                    ENV_ID, hosts=server.host, target_model="sim-model", encoder="hashing"
                )
            )
            for _ in range(num_lanes)
        ]
        LanePPO("MlpPolicy", lanes, n_steps=32, batch_size=64, seed=0, verbose=1).learn(total_steps)


if __name__ == "__main__":
    main()
