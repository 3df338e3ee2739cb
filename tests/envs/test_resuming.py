"""A lane that is put back where it was goes on bit for bit; steps on record are played without a call."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.batched import BatchedQueryMutationEnv
from envs.episode import transition_record
from envs.sb3 import GymnasiumVecEnv
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from simulator.process import EmbeddedServer
from tests.envs.worlds import MUTATORS, make_env

LANES = 2
rows_of_actions = st.lists(
    st.lists(st.integers(0, len(MUTATORS) - 1), min_size=LANES, max_size=LANES), min_size=1, max_size=5
)


def lanes(dispatcher: Dispatcher, encoder: Encoder) -> BatchedQueryMutationEnv:
    return BatchedQueryMutationEnv([make_env(dispatcher, encoder) for _ in range(LANES)])


def play(env: BatchedQueryMutationEnv, rows: list[list[int]]) -> list[tuple[bytes, list[dict[str, Any]]]]:
    """Each row's observations, and its lines of transitions.jsonl."""
    bridge = GymnasiumVecEnv(env)
    played = []
    for row, actions in enumerate(rows):
        observations, _, dones, infos = bridge.step(np.array(actions))
        steps = enumerate(zip(infos, dones, strict=True))
        written = [transition_record(row, lane, info, bool(done)) for lane, (info, done) in steps]
        played.append((np.asarray(observations).tobytes(), json.loads(json.dumps(written))))
    return played


def hashed(played: list[tuple[bytes, list[dict[str, Any]]]]) -> list[object]:
    """What two equal runs share."""
    return [(seen, [line | {"not_hashed": None} for line in written]) for seen, written in played]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=rows_of_actions, after=rows_of_actions, seed=st.integers(0, 2**31))
def test_lanes_put_back_where_they_were_go_on_bit_for_bit(
    simulator: EmbeddedServer, encoder: Encoder, before: list[list[int]], after: list[list[int]], seed: int
) -> None:
    with Dispatcher([simulator.host]) as one, Dispatcher([simulator.host]) as other:
        env, resumed = lanes(one, encoder), lanes(other, encoder)
        env.reset(seed=seed)
        seen = play(env, before)[-1][0]
        state = json.loads(json.dumps(env.state()))
        assert resumed.restore(state).tobytes() == seen
        assert hashed(play(resumed, after)) == hashed(play(env, after))
        assert resumed.state() == env.state()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=rows_of_actions, recorded=rows_of_actions, seed=st.integers(0, 2**31))
def test_steps_on_record_come_out_as_they_did_without_a_call_even_those_that_failed(
    simulator: EmbeddedServer, encoder: Encoder, before: list[list[int]], recorded: list[list[int]], seed: int
) -> None:
    simulator.set_faults([{"kind": "status", "rate": 0.2}])
    try:
        with Dispatcher([simulator.host], attempts=1) as one, Dispatcher([simulator.host]) as other:
            env, again = lanes(one, encoder), lanes(other, encoder)
            env.reset(seed=seed)
            play(env, before)
            again.restore(env.state())
            first = play(env, recorded)
            simulator.reset_stats()
            again.replay(written for _, written in first)
            assert hashed(play(again, recorded)) == hashed(first)
            assert simulator.stats()["calls"] == 0
            assert again.state() == env.state()
    finally:
        simulator.set_faults([])
