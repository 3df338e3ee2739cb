"""The vector environment: Gymnasium's contract, and the law that it equals its single environments."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any, cast
from zlib import crc32

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs import ENV_ID
from envs.answering import Models
from envs.batched import SCHEDULES, BatchedQueryMutationEnv, Schedule
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from simulator.process import EmbeddedServer
from tests.envs.batches import Row, plain, row_info, step_rows, written
from tests.envs.worlds import CONFIG, MUTATORS, QUERIES, make_env
from tests.ollama_utils.scripted import SAID, ScriptedServer

LANES = 3


@pytest.fixture
def batched(dispatcher: Dispatcher, encoder: Encoder) -> BatchedQueryMutationEnv:
    return BatchedQueryMutationEnv([make_env(dispatcher, encoder) for _ in range(LANES)])


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**31 - 1),
    lanes=st.integers(1, 5),
    schedule=st.sampled_from(SCHEDULES),
    max_workers=st.none() | st.integers(1, 8),
    apart=st.booleans(),
    data=st.data(),
)
def test_batched_equals_single_row_by_row(
    simulator: EmbeddedServer,
    encoder: Encoder,
    seed: int,
    lanes: int,
    schedule: Schedule,
    max_workers: int | None,
    apart: bool,  # noqa: FBT001 - Hypothesis passes by name
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
            taken = step_rows(batched, np.array(actions), apart=apart and schedule == "lanes")
            for seen, env, action in zip(taken, singles, actions, strict=True):
                assert_same_step(seen, env, np.int64(action))
        batched.close()


def assert_same_step(row: Row, env: gymnasium.Env[Any, Any], action: np.int64) -> None:
    """One lane of a batched step against the same step of a single environment (and its reset)."""
    shown, *paid, told = row
    observation, reward, terminated, truncated, info = env.step(action)
    assert paid == [reward, terminated, truncated]
    if terminated or truncated:
        told = dict(told)
        assert np.array_equal(told.pop("final_obs"), observation)
        assert plain(told.pop("final_info")) == plain(info)
        observation, info = env.reset()
    assert np.array_equal(shown, observation)
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
        batched.step(np.int64(1))
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


def test_the_reference_documents_names_do_the_same(dispatcher: Dispatcher, encoder: Encoder) -> None:
    one, other = (BatchedQueryMutationEnv([make_env(dispatcher, encoder)]) for _ in range(2))
    one.reset(seed=2)
    other.reset(seed=2)
    actions = np.array([1])
    assert np.array_equal(one.step(actions)[0], other.batch_step(actions)[0])
    assert np.array_equal(one.reset()[0], other.batch_reset()[0])


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


def test_made_by_name_it_takes_what_the_command_takes(simulator: EmbeddedServer) -> None:
    made = gymnasium.make_vec(
        ENV_ID,
        num_envs=1,
        max_episode_steps=2,
        hosts=simulator.host,
        target_model="sim-target",
        encoder="hashing:32",
        target_system="Be brief.",
        num_predict=20,
        rewrite_num_predict=900,
    )
    (env,) = cast("BatchedQueryMutationEnv", made.unwrapped).envs
    assert env.rules.max_steps == 2
    assert env.answerer.models == Models(
        target="sim-target",
        mutator="sim-target",
        target_system="Be brief.",
        options={"num_predict": 20},
        rewrite_num_predict=900,
    )


@pytest.mark.parametrize("wrapper", ["RecordEpisodeStatistics", "NormalizeReward", "DictInfoToList"])
def test_gymnasiums_vector_wrappers_work_over_it(batched: BatchedQueryMutationEnv, wrapper: str) -> None:
    env = getattr(gymnasium.wrappers.vector, wrapper)(batched)
    first, _ = env.reset(seed=0)
    assert np.array_equal(first, batched.reset(seed=0)[0])
    ended = 0
    for _ in range(4):
        observations, _, terminations, truncations, _ = env.step(np.zeros(LANES, np.int64))
        assert observations in batched.observation_space
        ended += int((terminations | truncations).sum())
    assert ended >= LANES  # the limit is three steps


def test_environments_that_do_not_share_their_parts_are_an_error(
    dispatcher: Dispatcher, encoder: Encoder
) -> None:
    other = replace(CONFIG, models=replace(CONFIG.models, target="sim-other"))
    with pytest.raises(ValueError, match="lane 1 has other models"):
        BatchedQueryMutationEnv([make_env(dispatcher, encoder), make_env(dispatcher, encoder, other)])
    fewer = replace(CONFIG, mutators=MUTATORS[:2])
    with pytest.raises(ValueError, match="lane 1 has other"):
        BatchedQueryMutationEnv([make_env(dispatcher, encoder), make_env(dispatcher, encoder, fewer)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_action_that_is_none_stops_every_lane_before_its_step(
    dispatcher: Dispatcher, encoder: Encoder, schedule: Schedule
) -> None:
    lanes = [make_env(dispatcher, encoder) for _ in range(LANES)]
    batched = BatchedQueryMutationEnv(lanes, schedule=schedule)
    batched.reset(seed=0)
    for actions in ([0, 0, 9], [0.0, 1.0, 1.0]):
        with pytest.raises(gymnasium.error.InvalidAction):
            batched.step(np.array(actions))
    assert [env.episode and env.episode.step_count for env in lanes] == [0, 0, 0]


def test_what_fails_for_one_lane_fails_for_it_alone_under_every_schedule() -> None:
    """The server rejects some calls and some texts, always the same ones."""

    def rejects(body: dict[str, Any]) -> tuple[int, object]:
        body.pop("stream", None)  # how it is sent depends on the time that replies take
        said = [text for text in body.get("input", [str(body)]) if " and " in text]
        if any(crc32(text.encode()) % 3 == 0 for text in said):
            return 400, {"error": "rejected"}
        if "input" in body:
            return 200, {"model": "m", "embeddings": [[1.0, len(text)] for text in body["input"]]}
        seed = body["options"]["seed"]
        if "messages" in body:
            word = body["messages"][-1]["content"].removesuffix("</query>")[-9:]
            return 200, SAID | {"message": {"role": "assistant", "content": f"How is {word} and {seed}?"}}
        return 200, SAID | {"response": f"{body['prompt'][-9:]} and {seed}"}

    runs, failed = [], set[tuple[bool, ...]]()
    ways: list[tuple[Schedule, int | None, bool]] = [(schedule, None, False) for schedule in SCHEDULES]
    with ScriptedServer(rejects) as server:
        for schedule, max_workers, apart in (
            *ways,
            ("phased", 2, False),
            ("lanes", 1, False),
            ("lanes", 2, True),
        ):
            with Dispatcher([server.host]) as dispatcher:
                encoder = make_encoder("ollama:m", dispatcher)
                lanes = [make_env(dispatcher, encoder) for _ in range(LANES)]
                batched = BatchedQueryMutationEnv(lanes, schedule=schedule, max_workers=max_workers)
                batched.reset(seed=1)
                rows = [step_rows(batched, np.full(LANES, 1), apart=apart) for _ in range(8)]
                runs.append([written([(*row[:4], plain(row[4])) for row in step]) for step in rows])
                failed.update(
                    tuple("unscored" in row[4] and row[4]["unscored"] for row in step) for step in rows
                )
                batched.close()
    assert all(run == runs[0] for run in runs)
    assert any(0 < sum(lanes) < LANES for lanes in failed)
