"""The vector environment: Gymnasium's contract, and the law that it equals its single environments."""

from __future__ import annotations

import json
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.batched import BatchedQueryMutationEnv
from envs.registration import ENV_ID
from envs.schedules import SCHEDULES, Schedule
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.simulator.process import EmbeddedServer
from tests.envs.worlds import MUTATORS, QUERIES, make_env

LANES = 3


@pytest.fixture
def batched(dispatcher: Dispatcher, encoder: Encoder) -> BatchedQueryMutationEnv:
    return BatchedQueryMutationEnv([make_env(dispatcher, encoder) for _ in range(LANES)])


def plain(info: dict[str, Any]) -> dict[str, Any]:
    """An info without what may differ between equal runs: the seconds."""
    return info | {"usage": {k: v for k, v in info.get("usage", {}).items() if not k.endswith("_s")}}


def row_info(infos: dict[str, Any], lane: int) -> dict[str, Any]:
    """One lane's part of a vector environment's infos."""
    return {
        key: row_info(value, lane) if isinstance(value, dict) else value[lane]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][lane]
    }


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**31 - 1),
    lanes=st.integers(1, 5),
    schedule=st.sampled_from(SCHEDULES),
    max_workers=st.integers(1, 8),
    data=st.data(),
)
def test_batched_equals_single_row_by_row(
    simulator: EmbeddedServer,
    encoder: Encoder,
    seed: int,
    lanes: int,
    schedule: Schedule,
    max_workers: int,
    data: st.DataObject,
) -> None:
    row = st.lists(st.integers(0, len(MUTATORS) - 1), min_size=lanes, max_size=lanes)
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    with Dispatcher([simulator.host]) as one, Dispatcher([simulator.host]) as other:
        singles = [make_env(one, encoder) for _ in range(lanes)]
        batched = BatchedQueryMutationEnv(
            [make_env(other, encoder) for _ in range(lanes)], schedule=schedule, max_workers=max_workers
        )
        first, infos = batched.reset(seed=seed)
        for lane, env in enumerate(singles):
            observation, info = env.reset(seed=seed + lane)
            assert np.array_equal(first[lane], observation)
            assert row_info(infos, lane) == info
        for actions in rows:
            step = batched.step(np.array(actions))
            for lane, env in enumerate(singles):
                assert_same_step(step, lane, env, np.int64(actions[lane]))


def assert_same_step(step: Any, lane: int, env: gymnasium.Env[Any, Any], action: np.int64) -> None:  # noqa: ANN401
    """One lane of a batched step against the same step of a single environment (and its reset)."""
    observations, rewards, terminations, truncations, infos = step
    observation, reward, terminated, truncated, info = env.step(action)
    assert (rewards[lane], terminations[lane], truncations[lane]) == (reward, terminated, truncated)
    told = row_info(infos, lane)
    if terminated or truncated:
        assert np.array_equal(told["final_obs"], observation)
        assert plain(told["final_info"]) == plain(info)
        observation, info = env.reset()
        told = {k: v for k, v in told.items() if k not in {"final_obs", "final_info"}}
    assert np.array_equal(observations[lane], observation)
    assert plain(told) == plain(info)


def test_spaces_dtypes_and_autoreset_mode_are_declared(batched: BatchedQueryMutationEnv) -> None:
    observations, _ = batched.reset(seed=0)
    assert observations in batched.observation_space
    assert batched.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    step = batched.step(batched.action_space.sample())
    assert step[0] in batched.observation_space
    assert [part.dtype for part in step[:4]] == [np.float32, np.float64, np.bool_, np.bool_]
    assert batched.single_action_space == gymnasium.spaces.Discrete(len(MUTATORS))


def test_what_a_step_returned_is_not_changed_by_the_next(batched: BatchedQueryMutationEnv) -> None:
    first, _ = batched.reset(seed=0)
    kept = first.copy()
    batched.step(np.zeros(LANES, np.int64))
    assert np.array_equal(first, kept)


def test_a_reset_mask_resets_some_lanes_and_leaves_the_options_alone(
    batched: BatchedQueryMutationEnv,
) -> None:
    before, _ = batched.reset(seed=0)
    options = {"reset_mask": np.array([False, True, False]), "query": QUERIES[0]}
    after, infos = batched.reset(options=options)
    assert set(options) == {"reset_mask", "query"}
    assert infos["_original_query"].tolist() == [False, True, False]
    assert infos["original_query"][1] == QUERIES[0]
    assert np.array_equal(after[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False, True], TypeError),
        (np.array([1, 0, 1]), TypeError),
        (np.array([True]), ValueError),
        (np.zeros(LANES, np.bool_), ValueError),
    ],
)
def test_a_bad_reset_mask_is_an_error(
    batched: BatchedQueryMutationEnv,
    mask: Any,  # noqa: ANN401 - what a user might pass
    error: type[Exception],
) -> None:
    with pytest.raises(error, match="reset_mask"):
        batched.reset(options={"reset_mask": mask})


def test_seeds_may_be_one_number_or_one_for_each_lane(batched: BatchedQueryMutationEnv) -> None:
    by_number, _ = batched.reset(seed=5)
    by_list, _ = batched.reset(seed=[5, 6, 7])
    assert np.array_equal(by_number, by_list)
    with pytest.raises(ValueError, match="3 seeds"):
        batched.reset(seed=[1, 2])


def test_a_wrong_number_of_actions_is_an_error(batched: BatchedQueryMutationEnv) -> None:
    batched.reset(seed=0)
    with pytest.raises(ValueError, match="expected 3 actions"):
        batched.step(np.zeros(2, np.int64))
    with pytest.raises(TypeError, match="sequence of 3 actions"):
        batched.step(np.int64(1))  # type: ignore[arg-type]
    with pytest.raises(gymnasium.error.InvalidAction, match="from 0 to 5"):
        batched.step(np.array([0, 0, 9]))


def test_closing_twice_is_fine_and_stepping_afterwards_is_not(batched: BatchedQueryMutationEnv) -> None:
    batched.reset(seed=0)
    batched.close()
    batched.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        batched.step(np.zeros(LANES, np.int64))


def test_attributes_are_read_and_set_lane_by_lane(batched: BatchedQueryMutationEnv) -> None:
    batched.set_attr("note", [1, 2, 3])
    assert batched.get_attr("note") == (1, 2, 3)
    assert len(batched.call("reset")) == LANES


def test_the_reference_documents_names_do_the_same(batched: BatchedQueryMutationEnv) -> None:
    observations, _ = batched.batch_reset()
    assert observations.shape == (LANES, *batched.single_observation_space.shape)  # type: ignore[misc]
    assert len(batched.batch_step(np.zeros(LANES, np.int64))) == 5


def test_made_by_name_from_plain_data_its_spec_pickles_and_rebuilds_it(simulator: EmbeddedServer) -> None:
    made = gymnasium.make_vec(
        ENV_ID,
        num_envs=2,
        hosts=simulator.host,
        target_model="sim-target",
        mutator_model="sim-mutator",
        encoder="hashing:32",
        queries=list(QUERIES),
    )
    first, _ = made.reset(seed=3)
    spec = pickle.loads(pickle.dumps(made.spec))  # noqa: S301 - our own bytes
    assert json.loads(made.spec.to_json())["id"] == ENV_ID  # type: ignore[union-attr]
    again, _ = gymnasium.make_vec(spec).reset(seed=3)
    assert np.array_equal(first, again)


@pytest.mark.parametrize("wrapper", ["RecordEpisodeStatistics", "NormalizeReward", "DictInfoToList"])
def test_gymnasiums_vector_wrappers_work_over_it(batched: BatchedQueryMutationEnv, wrapper: str) -> None:
    env = getattr(gymnasium.wrappers.vector, wrapper)(batched)
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.zeros(LANES, np.int64))
