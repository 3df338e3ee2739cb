"""The single environment: Gymnasium's rules, chance, observation, chats, state, the record."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs import ENV_ID
from envs.episode import begin_together
from envs.queries import load_queries
from envs.query_mutation import QueryMutationEnv
from envs.transitions import check_transition, transition_record
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from simulator.process import EmbeddedServer
from tests.envs.worlds import (
    BY_LABEL,
    CRASH,
    HOW,
    QUERIES,
    REWORDED,
    Script,
    make_env,
    prompt_of,
)

NOOP, PARAPHRASE = np.int64(0), np.int64(1)
actions_of_lane = st.lists(st.integers(0, 2), min_size=1, max_size=10)
salts = st.integers(0, 2**16)


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as made:
        yield made


def test_it_passes_gymnasiums_checks(
    simulator: EmbeddedServer, dispatcher: Dispatcher, encoder: Encoder
) -> None:
    host = simulator.host
    made = gymnasium.make(ENV_ID, hosts=host, target_model="sim-target", encoder="hashing:32")
    for env in (make_env(dispatcher, encoder), made.unwrapped):
        check_env(env, skip_render_check=True)


def test_misuse_is_a_clear_error(dispatcher: Dispatcher, encoder: Encoder) -> None:
    env = make_env(dispatcher, encoder)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.step(NOOP)
    with pytest.raises(ValueError, match=r"\['qeury'\]; expected 'query' alone"):
        env.reset(options={"qeury": "x"})
    env.reset(seed=0)
    actions: list[Any] = [6, -1, 0.5, "noop"]
    for action in actions:
        with pytest.raises(gymnasium.error.InvalidAction, match="an integer from 0 to 5, got"):
            env.step(action)
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        replace(env.rules, max_steps=0)
    with pytest.raises(ValueError, match="queries is empty"):
        QueryMutationEnv(env.rules, env.models, [])
    plain: Any = {"hosts": "localhost", "target_model": "m"}
    with pytest.raises(ValueError, match="renders nothing: leave render_mode out"):
        gymnasium.make(ENV_ID, render_mode="human", **plain)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_step'"):
        gymnasium.make(ENV_ID, max_step=2, **plain)


def test_an_environment_made_after_the_dispatcher_ended_has_a_new_one(script: Script) -> None:
    plain: Any = {"hosts": script.host, "target_model": "target", "encoder": "hashing:32"}
    first, second = (gymnasium.make(ENV_ID, **plain).unwrapped for _ in range(2))
    assert isinstance(first, QueryMutationEnv)
    assert isinstance(second, QueryMutationEnv)
    assert first.models.dispatcher is second.models.dispatcher
    first.models.dispatcher.close()
    third = gymnasium.make(ENV_ID, **plain).unwrapped
    assert isinstance(third, QueryMutationEnv)
    with third.models.dispatcher:
        third.reset(seed=0)
        assert not third.step(NOOP)[4]["unscored"]


ROLLOUT = """
import sys, numpy, gymnasium, envs
env = gymnasium.make_vec(
    envs.ENV_ID, num_envs=2, max_workers=1, hosts=sys.argv[1], target_model="target",
    mutator_model="mutator", encoder="hashing:32", mutators=["paraphrase"], max_steps=2,
    intent_threshold=0, target_temperature=0.5, queries=sys.argv[2:],
)
env.reset(seed=3)
for _ in range(6):
    env.step(numpy.zeros(2, int))
"""


def test_the_same_seed_makes_the_same_calls_in_every_process(script: Script) -> None:
    def reword(body: dict[str, Any]) -> str:
        return f"{prompt_of(body)[7:-8]} I am number {body['options']['seed']}."

    script.answers["mutator"] = reword
    command = [sys.executable, "-c", ROLLOUT, script.host, *QUERIES]
    for _ in range(2):
        subprocess.run(command, check=True, stderr=subprocess.PIPE)  # noqa: S603 - ours
    calls = [json.dumps(body) for body in script.bodies if body]
    first, again = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    assert first == again
    assert len(set(first)) == len(first) == 2 * 2 * 6  # two calls of each lane and step


def test_the_observation_has_each_entry_where_its_layout_says(script: Script) -> None:
    script.similarity = {HOW: 0.6, REWORDED: 0.9}
    env = script.env(max_steps=8)
    embedding = np.array([0.6, 0.8]) * np.sqrt(2)
    shown = [env.reset(seed=0)[0]]
    for action, answer, rewording in (
        (1, "partly_refused", REWORDED),
        (0, "undetermined", ""),
        (1, "refused", "Go on."),  # is not adopted
        (1, "refused", f"{REWORDED} Please."),
    ):
        script.answers |= {"target": answer, "mutator": rewording}
        shown.append(env.step(np.int64(action))[0])
    # Tried; of these those that left the query as it was; last action, reward, label; share.
    expected = [
        [*(0, 0, 0), *(0, 0, 0), *(0, 0, 0), 0, *(0, 0, 0), 0 / 8],
        [*(0, 1, 0), *(0, 0, 0), *(0, 1, 0), -0.05, *(0, 1, 0), 1 / 8],
        [*(1, 1, 0), *(1, 0, 0), *(1, 0, 0), -0.05, *(0, 0, 0), 2 / 8],
        [*(1, 1, 0), *(1, 1, 0), *(0, 1, 0), -0.05, *(0, 0, 1), 3 / 8],
        [*(1, 1, 0), *(1, 0, 0), *(0, 1, 0), -0.05, *(0, 0, 1), 4 / 8],
    ]
    for seen, entries in zip(shown, expected, strict=True):
        np.testing.assert_allclose(seen, [*embedding, *entries], rtol=1e-6, atol=1e-6)
        assert seen in env.observation_space
    dear = script.env(scorer=replace(BY_LABEL, step_cost=1e9))
    dear.reset(seed=0)
    seen = dear.step(NOOP)[0]
    assert (seen in dear.observation_space, seen[11]) == (True, -1000)


def test_earlier_turns_of_a_chat_reach_the_target_and_no_other_model(
    script: Script, tmp_path: Path
) -> None:
    turns = [("system", "Be brief."), ("user", "Early."), ("assistant", "Done."), ("user", HOW)]
    chat = [{"role": role, "content": content} for role, content in turns]
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([{"messages": chat}]))
    env = script.env(queries=load_queries(file), scorer="judge")
    assert env.reset(seed=0)[1]["original_query"] == HOW
    assert env.step(PARAPHRASE)[4]["adopted"]
    (asked,) = script.asked("target")
    assert asked["messages"] == [*chat[:-1], {"role": "user", "content": REWORDED}]
    others = json.dumps([script.asked(model) for model in ("mutator", "judge", "embed")])
    assert HOW in others
    assert "Early." not in others
    assert "Be brief." not in others


def played(env: QueryMutationEnv, actions: list[int]) -> list[tuple[bytes, dict[str, Any]]]:
    """What is shown after each step, as bytes, and the step's line of transitions.jsonl."""
    steps = []
    for action in actions:
        observation, _, *ends, info = env.step(np.int64(action))
        line = transition_record(0, 0, info, terminated=ends[0], truncated=ends[1])
        if any(ends):
            observation, _ = env.reset()
        steps.append((observation.tobytes(), json.loads(json.dumps(line))))
    return steps


@settings(max_examples=10)
@given(before=st.tuples(actions_of_lane, actions_of_lane), after=actions_of_lane, salt=salts)
def test_environments_that_are_restored_go_on_where_the_others_were(
    before: tuple[list[int], list[int]], after: list[int], salt: int
) -> None:
    with Script() as script:
        script.fail_some(salt)
        mutators = ("noop", "paraphrase", "crossover")  # which knows earlier rewordings
        lanes, others = (script.envs(2, QUERIES, mutators=mutators) for _ in range(2))
        shown: list[bytes] = []
        for env, actions in zip(lanes, before, strict=True):
            env.reset(seed=len(shown))
            shown.append(played(env, actions)[-1][0])
        states = json.loads(json.dumps([env.state() for env in lanes]))
        episodes = [env.restored(state) for env, state in zip(others, states, strict=True)]
        begun = begin_together(episodes, others[0].models)
        assert [observation.tobytes() for observation in begun] == shown
        for env, other in zip(lanes, others, strict=True):
            assert played(other, after) == played(env, after)
            assert other.state() == env.state()


@settings(max_examples=10)
@given(actions=actions_of_lane, salt=salts)
def test_steps_that_were_unscored_are_so_again_without_a_call(
    actions: list[int], salt: int
) -> None:
    with Script() as script:
        script.fail_some(salt)
        env, again = script.envs(2, QUERIES)
        env.reset(seed=1)
        again.reset(seed=1)
        steps = played(env, actions)
        lines = [line if line["unscored"] else None for _, line in steps]
        again.replay_unscored(lines)
        for action, step, line in zip(actions, steps, lines, strict=True):
            calls = len(script.bodies)
            assert played(again, [action]) == [step]
            assert line is None or len(script.bodies) == calls
        assert again.state() == env.state()


def test_a_line_of_transitions_has_all_of_a_step_and_a_damaged_one_is_refused_by_its_key(
    script: Script,
) -> None:
    env = script.env()
    env.reset(seed=0)
    script.answers["target"] = CRASH
    info = env.step(PARAPHRASE)[4]
    line = transition_record(7, 2, info, terminated=False, truncated=True)
    aside = {"queue_s": 0.0, "total_s": 0.0, "error_message": info["error"]}
    assert line == {key: value for key, value in info.items() if key != "usage"} | (
        {"row": 7, "lane": 2, "terminated": False, "truncated": True, "not_hashed": aside}
        | {"error": "ServerFaultError", "prompt_tokens": 0, "completion_tokens": 0}
    )
    check_transition(json.loads(json.dumps(line)))
    check_transition(line | {"more": "of a later version"})
    damaged: list[tuple[str, Any]] = [
        *(("row", -1), ("lane", "0"), ("prompt_tokens", 2**60), ("adopted", 1), ("reply", None)),
        *(("outcome", "lost"), ("reward", float("nan")), ("reward_parts", {"answered": "x"})),
        ("not_hashed", {**aside, "queue_s": "x"}),
    ]
    for key, value in damaged:
        with pytest.raises(ValueError, match=f"^'{key}[^:]*: .*, got "):
            check_transition(line | {key: value})
    with pytest.raises(ValueError, match=r"^'outcome': Field required"):
        check_transition({name: value for name, value in line.items() if name != "outcome"})


def test_what_the_package_exports_is_there_and_loads_late() -> None:
    assert all(hasattr(envs, name) for name in envs.__all__)
    assert not hasattr(envs, "NoSuchEnv")
    code = "import envs, gymnasium, sys; gymnasium.spec(envs.ENV_ID); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert not {"torch", "stable_baselines3", "httpx", "envs.batched"} & set(loaded.stdout.split())
