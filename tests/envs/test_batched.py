"""The vector environment is Gymnasium's own vector of its environments, its calls made together."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import ENV_ID
from envs.batched import BatchedQueryMutationEnv
from envs.query_mutation import QueryMutationEnv
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.errors import OllamaError
from simulator.process import EmbeddedServer
from tests.envs.worlds import MUTATORS, QUERIES, REJECTED, Script, make_env

LANES = 3
Plan = tuple[Any, dict[str, Any] | None, list[list[int]]]
"""Seeds and options of a second reset, and the actions of its rows."""
plans: st.SearchStrategy[Plan] = st.tuples(
    st.none()
    | st.integers(0, 2**31)
    | st.lists(st.none() | st.integers(0, 99), min_size=LANES, max_size=LANES),
    st.sampled_from([None, {}, {"query": "How so?"}]),
    st.lists(st.lists(st.integers(0, 2), min_size=LANES, max_size=LANES), max_size=9),
)
rounds = st.sampled_from(
    [("noop", "paraphrase", "synonym_replace"), ("noop", "translate_back", "keep_original")]
)
workers = st.sampled_from([1, 3, 8])
NOOPS: Plan = None, None, [[0] * LANES] * 4


@pytest.fixture
def envs(dispatcher: Dispatcher, encoder: Encoder) -> list[QueryMutationEnv]:
    return [make_env(dispatcher, encoder) for _ in range(LANES)]


def in_turn(envs: list[QueryMutationEnv]) -> SyncVectorEnv:
    """Gymnasium's vector of environments, which takes their steps one after the other."""
    makers = [lambda env=env: env for env in envs]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def timeless(value: Any) -> Any:
    """The same without seconds, by which equal runs differ."""
    if isinstance(value, dict):
        kept = {key for key in value if not key.endswith("_s") and key not in {"t", "_t"}}
        return {key: timeless(value[key]) for key in kept}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [timeless(part) for part in value]
    return tuple(map(timeless, value)) if isinstance(value, tuple) else value


def play(env: VectorEnv[Any, Any, Any], plan: Plan) -> list[Any]:
    """What a vector gives from a reset to a reset."""
    again, options, rows = plan
    given = [env.reset(seed=5), *(env.step(np.array(row)) for row in rows[::2])]
    given += [env.reset(seed=again, options=options), *(env.step(np.array(row)) for row in rows)]
    return [timeless(each) for each in (*given, env.reset())]


def same(one: list[Any], other: list[Any]) -> bool:
    return data_equivalence(one, other, exact=True)


@settings(max_examples=12)
@given(plan=plans, max_workers=workers, salt=st.integers(0, 2**16), mutators=rounds)
def test_it_gives_what_its_environments_give_one_by_one(
    plan: Plan, max_workers: int, salt: int, mutators: tuple[str, ...]
) -> None:
    """Whatever fails, once or each time, and in whatever order replies come."""
    with Script() as script:
        script.fail_some(salt)
        envs, others = (script.envs(LANES, QUERIES, mutators=mutators) for _ in range(2))
        batched = BatchedQueryMutationEnv(envs, max_workers=max_workers)
        assert same(play(batched, plan), play(in_turn(others), plan))


def test_it_is_a_vector_environment_to_gymnasium(envs: list[QueryMutationEnv]) -> None:
    env = BatchedQueryMutationEnv(envs)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.observation_space == batch_space(env.single_observation_space, LANES)
    assert env.action_space == batch_space(env.single_action_space, LANES)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    observations, *columns, _ = env.step(env.action_space.sample())
    assert [column.dtype for column in columns] == [np.float64, np.bool_, np.bool_]
    assert np.array_equal(first, kept)  # the step wrote into an array of its own
    assert np.array_equal(env.batch_reset(seed=0)[0], first)
    for shown in (first, observations, env.batch_step(np.zeros(LANES, np.int64))[0]):
        assert shown in env.observation_space


def test_made_by_name_its_spec_pickles_and_makes_it_again(simulator: EmbeddedServer) -> None:
    settings: Any = {"target_model": "sim-target", "mutators": ["noop"], "encoder": "hashing:32"}
    settings |= {"hosts": simulator.host, "queries": list(QUERIES), "reward": "keyword"}
    settings |= {"max_workers": 3, "max_episode_steps": 2}
    made = gymnasium.make_vec(ENV_ID, num_envs=LANES, **settings)
    spec = pickle.loads(pickle.dumps(made.spec))  # noqa: S301 - our own bytes
    assert json.loads(spec.to_json())["id"] == ENV_ID
    again = gymnasium.make_vec(spec)
    assert same(play(made, NOOPS), play(again, NOOPS))
    assert isinstance(again.unwrapped, BatchedQueryMutationEnv)
    assert again.unwrapped.max_workers == 3
    assert again.unwrapped.envs[0].rules.max_steps == 2


def test_an_action_outside_the_space_is_an_error_and_no_lane_takes_its_step(
    simulator: EmbeddedServer, envs: list[QueryMutationEnv]
) -> None:
    env = BatchedQueryMutationEnv(envs)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(LANES, np.int64))
    env.reset(seed=0)
    calls, states = simulator.stats()["calls"], [each.state() for each in envs]
    for actions, error in (
        ([0, 0, 9], r"expected an integer from 0 to 5, got .*9"),
        ([0, 1.5, 0], r"expected an integer from 0 to 5, got .*0\.0"),
        ([0, 0], "expected 3 actions, one a lane, got 2"),
    ):
        with pytest.raises(gymnasium.error.InvalidAction, match=error):
            env.step(np.array(actions))
    assert [each.state() for each in envs] == states
    assert simulator.stats()["calls"] == calls


def test_what_cannot_be_is_refused(
    dispatcher: Dispatcher, encoder: Encoder, envs: list[QueryMutationEnv]
) -> None:
    with pytest.raises(ValueError, match="expected 3 seeds, one a lane, got 2"):
        BatchedQueryMutationEnv(envs).reset(seed=[1, 2])
    with pytest.raises(ValueError, match="got 3 and 0"):
        BatchedQueryMutationEnv(envs, max_workers=0)
    for other in ({"target": "sim-other"}, {"mutators": MUTATORS[:2]}):
        with pytest.raises(ValueError, match="lane 1 has other"):
            BatchedQueryMutationEnv([envs[0], make_env(dispatcher, encoder, **other)])


@pytest.mark.parametrize("most", [1, 3])
def test_max_workers_is_the_most_calls_under_way(most: int) -> None:
    """The server answers once as many calls as may be have come; one more would be seen."""
    under_way, seen, lock = 0, list[int](), threading.Condition()

    def reply(_body: dict[str, Any]) -> str:
        nonlocal under_way
        with lock:
            under_way += 1
            seen.append(under_way)
            lock.notify_all()
            lock.wait_for(lambda: under_way >= most or len(seen) > most, timeout=10)
        with lock:
            under_way -= 1
        return "refused"

    with Script() as script:
        env = BatchedQueryMutationEnv(script.envs(8, scorer="judge"), max_workers=most)
        env.reset(seed=0)
        script.answers |= dict.fromkeys(("mutator", "target", "judge"), reply)
        env.step(np.ones(8, np.int64))
        assert {"mutator", "target", "judge"} <= {body["model"] for body in script.bodies if body}
        assert max(seen) == most


def test_a_query_that_cannot_be_embedded_is_an_error_and_a_reset_goes_on() -> None:
    with Script() as script:
        env = BatchedQueryMutationEnv(script.envs(LANES))
        good, script.answers["embed"] = script.answers["embed"], REJECTED
        with pytest.raises(OllamaError, match=r"'How so\?' could not be embedded: .*rejected"):
            env.reset(seed=0, options={"query": "How so?"})
        script.answers["embed"] = good
        env.reset(seed=0)
        env.step(np.zeros(LANES, np.int64))
