"""The single environment against Gymnasium's own checks, on the simulator."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs import ENV_ID
from envs.query_mutation import EnvConfig
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from simulator.process import EmbeddedServer
from tests.envs.worlds import CONFIG, MUTATORS, QUERIES, make_env


def test_it_passes_gymnasiums_checks(dispatcher: Dispatcher, encoder: Encoder) -> None:
    check_env(make_env(dispatcher, encoder), skip_render_check=True)


def test_it_passes_gymnasiums_checks_when_made_by_name(simulator: EmbeddedServer) -> None:
    env = gymnasium.make(
        ENV_ID,
        hosts=simulator.host,
        target_model="sim-target",
        mutator_model="sim-mutator",
        encoder="hashing:32",
        queries=list(QUERIES),
    )
    check_env(env.unwrapped, skip_render_check=True)


def test_a_render_mode_is_an_error_that_says_what_to_do(simulator: EmbeddedServer) -> None:
    with pytest.raises(ValueError, match="renders nothing: leave render_mode out"):
        gymnasium.make(ENV_ID, render_mode="human", hosts=simulator.host, target_model="sim-target")


def test_an_episode_ends_in_success_or_at_the_step_limit(dispatcher: Dispatcher, encoder: Encoder) -> None:
    env = make_env(dispatcher, encoder)
    env.reset(seed=1)
    steps, over = 0, False
    while not over:
        _, reward, terminated, truncated, info = env.step(np.int64(steps % len(MUTATORS)))
        steps, over = steps + 1, terminated or truncated
        assert terminated == info["success"]
        assert reward == pytest.approx(0.95 if terminated else -0.05)
    assert steps <= CONFIG.max_steps


def test_the_same_seed_gives_the_same_episodes(dispatcher: Dispatcher, encoder: Encoder) -> None:
    env = make_env(dispatcher, encoder)
    runs = []
    for _ in range(2):
        shown = [env.reset(seed=11)[1]["original_query"]]
        shown += [env.reset()[1]["original_query"] for _ in range(6)]
        runs.append(shown)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


def test_a_query_can_be_given(dispatcher: Dispatcher, encoder: Encoder) -> None:
    _, info = make_env(dispatcher, encoder).reset(seed=0, options={"query": "How do I strike a match?"})
    assert info["original_query"] == "How do I strike a match?"


def test_misuse_is_a_clear_error(dispatcher: Dispatcher, encoder: Encoder) -> None:
    env = make_env(dispatcher, encoder)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(np.int64(0))
    with pytest.raises(ValueError, match="expected 'query' alone"):
        env.reset(options={"qeury": "x"})
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match="from 0 to 5"):
        env.step(np.int64(6))
    with pytest.raises(ValueError, match="max_steps"):
        EnvConfig(models=CONFIG.models, max_steps=0)


def test_calls_that_all_fail_leave_every_step_unscored(simulator: EmbeddedServer, encoder: Encoder) -> None:
    with Dispatcher([simulator.host], attempts=1) as dispatcher:
        env = make_env(dispatcher, encoder)
        first, _ = env.reset(seed=0)
        simulator.set_faults([{"kind": "status", "rate": 1.0}])
        try:
            for _ in range(5):
                observation, reward, terminated, truncated, info = env.step(np.int64(1))
                assert info["unscored"]
                assert "ServerFaultError" in info["error"]
                assert (reward, terminated, truncated) == (0.0, False, False)
                assert np.array_equal(observation, first)
        finally:
            simulator.set_faults([])
        assert not env.step(np.int64(1))[4]["unscored"]
