"""The query of a lane's next episode is embedded before the lane asks for it, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import CachedEncoder, Encoder, HashingEncoder
from tests.envs.worlds import make_env


class ForesightedEncoder(HashingEncoder):
    """Remembers what it is to expect."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[str] = []

    def prefetch(self, texts: Sequence[str]) -> None:
        self.expected += texts


class GroupingEncoder(HashingEncoder):
    """Has a thread of its own, as a model that computes here."""

    pass_size = 4

    def shapes(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]


def test_each_episode_expects_the_query_of_the_next(dispatcher: Dispatcher) -> None:
    encoder = ForesightedEncoder()
    env = make_env(dispatcher, encoder)
    begun = [env.reset(seed=5)[1]["original_query"]]
    begun += [env.reset()[1]["original_query"] for _ in range(8)]
    assert encoder.expected[:-1] == begun[1:]


def test_nothing_is_expected_of_whoever_names_the_queries(dispatcher: Dispatcher) -> None:
    encoder = ForesightedEncoder()
    make_env(dispatcher, encoder).reset(seed=5, options={"query": "How do I strike a match?"})
    assert encoder.expected == []


def test_episodes_are_the_same_with_and_without_foresight(dispatcher: Dispatcher, encoder: Encoder) -> None:
    runs = []
    for each in (encoder, CachedEncoder(GroupingEncoder())):
        env = make_env(dispatcher, each)
        shown = [env.reset(seed=3)[0]]
        for step in range(12):
            observation, _, terminated, truncated, _ = env.step(np.int64(step % env.num_actions))
            shown += [observation, *([env.reset()[0]] if terminated or truncated else [])]
        runs.append(np.stack(shown))
    np.testing.assert_array_equal(runs[0], runs[1])
