"""PPO in one plain loop over `gym.make_vec`, in the manner of CleanRL: all that learns stands here.

A step whose call failed did not happen: `unscored` in its info marks it, and it is left out of the update.
`train.LanePPO` is PPO without a barrier after each step, with the advantages joined over such steps.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn
from torch.distributions import Categorical

import envs
from simulator.process import EmbeddedServer
from simulator.settings import Settings

GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 0.95, 0.95, 0.2, 0.01, 0.5
EPOCHS, ROWS = 4, 64
"""Passes over a rollout, and rows of a minibatch."""


class Agent(nn.Module):
    """A policy and a value function that share nothing."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, actions))
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, seen: Tensor) -> tuple[Categorical, Tensor]:
        """The chances of the actions, and the return that is expected (N,)."""
        return Categorical(logits=self.actor(seen)), self.critic(seen).squeeze(-1)


def rollout(
    env: gymnasium.vector.VectorEnv[Any, Any, Any], agent: Agent, seen: Any, steps: int
) -> Any:  # noqa: ANN401 - arrays
    """Rows of observation, action, log chance, advantage, return; the rewards; and what is seen then."""
    taken = []
    for _ in range(steps):
        chances, value = agent(torch.as_tensor(seen))
        action = chances.sample()
        now, reward, terminated, truncated, infos = env.step(action.numpy())
        none, last = np.zeros(env.num_envs), infos.get("final_info", {})  # of episodes that ended
        failed = [np.asarray(each.get("unscored", none), dtype=bool) for each in (infos, last)]
        scored = ~(failed[0] | failed[1])
        arrays = (
            seen,
            reward.astype(np.float32),
            (terminated | truncated).astype(np.float32),
            scored,
        )
        taken.append((*map(torch.as_tensor, arrays), action, chances.log_prob(action), value))
        seen = now
    observed, rewards, dones, kept, actions, logs, values = map(
        torch.stack, zip(*taken, strict=True)
    )
    gained, next_values = torch.zeros_like(rewards), [*values[1:], agent(torch.as_tensor(seen))[1]]
    later = torch.zeros(env.num_envs)
    for t in reversed(range(steps)):  # GAE, arXiv 1506.02438
        goes_on = GAMMA * (1.0 - dones[t])
        gained[t] = later = rewards[t] + goes_on * (next_values[t] + LAMBDA * later) - values[t]
    return (
        [each[kept] for each in (observed, actions, logs, gained, gained + values)],
        rewards[kept],
        seen,
    )


def update(agent: Agent, optimiser: torch.optim.Optimizer, rows: list[Tensor]) -> None:
    """Some passes of PPO's clipped update, arXiv 1707.06347."""
    for _ in range(EPOCHS):
        order = torch.randperm(len(rows[0]))
        for begin in range(0, len(order), ROWS):
            seen, actions, before, gained, returns = (
                each[order[begin : begin + ROWS]] for each in rows
            )
            chances, values = agent(seen)
            ratio = (chances.log_prob(actions) - before).exp()
            gained = (gained - gained.mean()) / (gained.std(correction=0) + 1e-8)
            policy_loss = -torch.min(
                gained * ratio, gained * ratio.clamp(1 - CLIP, 1 + CLIP)
            ).mean()
            value_loss = (values - returns).square().mean()
            loss = policy_loss + VALUE * value_loss - ENTROPY * chances.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimiser.step()


def main(rollouts: int = 20, steps: int = 32, lanes: int = 8) -> None:
    """Train on the simulator, and print the mean reward of each rollout."""
    torch.manual_seed(0)
    with EmbeddedServer(Settings(slots=8, time_scale=0.0)) as server:
        world: dict[str, Any] = {
            "hosts": server.host,
            "target_model": "sim-model",
            "encoder": "hashing",
        }
        env = gymnasium.make_vec(envs.ENV_ID, num_envs=lanes, intent_threshold=0.1, **world)
        agent = Agent(flatdim(env.single_observation_space), flatdim(env.single_action_space))
        optimiser = torch.optim.Adam(agent.parameters(), lr=1e-3)
        seen, _ = env.reset(seed=0)
        for number in range(rollouts):
            with torch.no_grad():
                rows, rewards, seen = rollout(env, agent, seen, steps)
            update(agent, optimiser, rows)
            print(f"rollout {number}: mean reward {rewards.mean():.3f}")
        env.close()


if __name__ == "__main__":
    main()
