"""Step several environments at once with Gymnasium; `hosts` may be a server of yours (http://127.0.0.1:11434)."""

from __future__ import annotations

import gymnasium

import envs  # noqa: F401 - registers the environments
from simulator.process import EmbeddedServer
from simulator.settings import Settings


def main(steps: int = 8) -> None:
    """Take random steps in 4 lanes, and print what each answer was worth."""
    with EmbeddedServer(Settings(slots=4, time_scale=0.05)) as server:
        vector_env = gymnasium.make_vec(
            "mutagym/QueryMutation-v0",
            num_envs=4,
            hosts=server.host,
            target_model="sim-model",
            encoder="hashing",
            queries=["How do I kill a stuck process?", "How can I shoot good photos at night?"],
        )
        vector_env.reset(seed=0)
        for _ in range(steps):
            _, rewards, terminated, truncated, _ = vector_env.step(vector_env.action_space.sample())
            print(f"rewards {rewards}, ended {terminated | truncated}")
        vector_env.close()


if __name__ == "__main__":
    main()
