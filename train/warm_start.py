"""Fits PPO's network to what a contextual bandit learned, so that PPO begins where the bandit stands.

The states are imagined: episodes on the training queries in which nothing succeeds, mutators chosen as the
bandit would. Nothing is asked for them, and nothing has to be kept of what was played. The actor is fitted to
a softmax of the rewards that the bandit expects, the critic to what an episode would earn from there. Dropout
hides most of the embedding meanwhile, as in PPO's own updates.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from envs.observation import LABELS, Memory, observation
from train.actor_critic import QueryPolicy
from train.linear_bandit import LinearBandit
from train.random_streams import GLOBAL_RNG_LOCK, Stream

EPISODES = 2
"""Imagined episodes of each query."""
MOST_QUERIES = 2000
"""Queries that are imagined, at most."""
TEMPERATURE = 0.1
"""Of the softmax over expected rewards: a mutator that earns .1 less is taken a third as often."""
UPDATES, BATCH, LEARNING_RATE = 600, 128, 2e-3
LEARNING_RATE_SHARE = 0.25
"""Of PPO's learning rate, where it goes on with a network that is fitted already; tuned on `cautious`."""
VALUE_WEIGHT = 0.5
IDLE = 0.1
"""How often an imagined step leaves the query as it was."""
OUTCOMES = (0.0, 0.2, 0.75)
"""How often an imagined step is answered, partly refused, refused; undetermined else. It does not succeed."""


def fit_to_bandit(
    policy: QueryPolicy,
    bandit: LinearBandit,
    embeddings: NDArray[np.float32],
    *,
    max_steps: int,
    gamma: float,
    seed: int,
) -> None:
    """Fit actor and critic.

    Args:
        policy: the network.
        bandit: what it is fitted to.
        embeddings: (queries, D), those of the training queries, unit rows.
        max_steps: of an episode.
        gamma: the discount.
        seed: of all chance, in a stream of its own.
    """
    states, odds, worth = imagine(bandit, embeddings, max_steps=max_steps, gamma=gamma, seed=seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    policy.set_training_mode(True)
    key = np.random.SeedSequence(seed, spawn_key=(Stream.WARM_START, 0))
    with GLOBAL_RNG_LOCK, torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(int(key.generate_state(1)[0]))
        for _ in range(UPDATES):
            rows = torch.randint(len(states), (BATCH,))
            logits = policy.get_distribution(states[rows]).distribution.logits  # type: ignore[union-attr] # a Categorical
            values = policy.predict_values(states[rows]).flatten()
            loss = (
                -(odds[rows] * logits).sum(dim=1).mean()
                + VALUE_WEIGHT * (values - worth[rows]).square().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    policy.set_training_mode(False)


def imagine(
    bandit: LinearBandit, embeddings: NDArray[np.float32], *, max_steps: int, gamma: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Episodes in which nothing succeeds; see `fit_to_bandit`.

    Returns:
        Observations (N, size), the odds of actions (N, A), and what the episode is expected to earn from
        there (N,), float32.
    """
    chance = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(Stream.WARM_START,)))
    queries = embeddings if len(embeddings) <= MOST_QUERIES else chance.permutation(embeddings)[:MOST_QUERIES]
    queries = np.tile(queries, (EPISODES, 1))
    memories = [Memory()] * len(queries)
    shown, odds, earned = [], [], []
    for step in range(max_steps):
        shown.append(
            np.stack(
                [
                    observation(query, bandit.num_actions, memory, step / max_steps)
                    for query, memory in zip(queries, memories, strict=True)
                ]
            )
        )
        expected = bandit(torch.from_numpy(shown[-1]))
        odds.append(torch.softmax(expected / TEMPERATURE, dim=1))
        actions = _draw(odds[-1].numpy().astype(np.float64), chance)
        earned.append(expected.numpy()[np.arange(len(actions)), actions])
        memories = [_after(*each, chance) for each in zip(memories, actions.tolist(), strict=True)]
    worth = [np.zeros(len(queries), np.float32)]
    for rewards in reversed(earned):
        worth.insert(0, rewards + gamma * np.clip(1 - rewards, 0, 1) * worth[0])
    return (
        torch.from_numpy(np.concatenate(shown)),
        torch.cat(odds),
        torch.from_numpy(np.concatenate(worth[:-1]).astype(np.float32)),
    )


def _draw(odds: NDArray[np.float64], chance: np.random.Generator) -> NDArray[np.int64]:
    """One action for each row of odds (N, A)."""
    noise = chance.gumbel(size=odds.shape)
    drawn: NDArray[np.int64] = (np.log(np.maximum(odds, 1e-300)) + noise).argmax(axis=1)
    return drawn


def _after(memory: Memory, action: int, chance: np.random.Generator) -> Memory:
    """The memory after a step that did not succeed."""
    label = chance.choice([*LABELS, "undetermined"], p=[*OUTCOMES, 1 - sum(OUTCOMES)])
    return memory.after(action, 0.0, str(label), changed=chance.random() >= IDLE)
