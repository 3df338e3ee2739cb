"""Advantage actor-critic in one plain loop over a vector environment, as CleanRL writes them."""

from typing import Any

import gymnasium
import torch
from torch.distributions import Categorical

from envs import ENV_ID
from simulator.process import EmbeddedServer
from simulator.settings import Settings


def main(steps: int = 512, lanes: int = 16) -> None:
    """Train on the simulator, and print the mean reward now and then."""
    with EmbeddedServer(Settings(slots=8, time_scale=0.0)) as server:
        world: Any = {"hosts": server.host, "target_model": "sim-model", "encoder": "hashing"}
        env: Any = gymnasium.make_vec(ENV_ID, num_envs=lanes, intent_threshold=0.1, **world)
        seen, rewards = torch.as_tensor(env.reset(seed=0)[0]), []
        net = torch.nn.Linear(seen.shape[1], env.single_action_space.n + 1)  # the last is the value
        optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
        for step in range(steps):
            *logits, value = net(seen).T
            chances: Any = Categorical(logits=torch.stack(logits, dim=1))
            action = chances.sample()
            later, reward, terminated, truncated, _ = env.step(action.numpy())
            seen, goes_on = torch.as_tensor(later), torch.as_tensor(~(terminated | truncated))
            gain = torch.as_tensor(reward) + 0.95 * goes_on * net(seen)[:, -1].detach() - value
            losses = gain.square() / 2 - gain.detach() * chances.log_prob(action)
            optimiser.zero_grad()
            (losses - 0.01 * chances.entropy()).mean().backward()
            optimiser.step()
            rewards.append(reward.mean())
            if (step + 1) % 64 == 0:
                print(f"step {step + 1}: mean reward {sum(rewards[-64:]) / 64:.3f}")


if __name__ == "__main__":
    main()
