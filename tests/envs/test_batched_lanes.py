"""The schedule `lanes` of the vector environment: steps apart, a ceiling on calls, steps on record."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs import batched, lanes
from envs.batched import SCHEDULES, BatchedQueryMutationEnv, Schedule
from envs.episode import transition_record
from envs.mission import MissionConfig
from envs.parts import make_parts
from ollama_utils.connect import Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.errors import OllamaError
from ollama_utils.types import Completion
from scorers.reward import Verdict
from simulator.process import EmbeddedServer
from tests.envs.batches import Row, step_rows
from tests.envs.test_lanes_interrupted import torn
from tests.envs.worlds import MUTATORS, SCORER, make_env
from tests.ollama_utils.scripted import SAID, ScriptedServer

LANES = 3
row_of_actions = st.lists(st.integers(0, len(MUTATORS) - 1), min_size=LANES, max_size=LANES)


def make(dispatcher: Dispatcher, encoder: Encoder, schedule: Schedule = "lanes") -> BatchedQueryMutationEnv:
    return BatchedQueryMutationEnv([make_env(dispatcher, encoder) for _ in range(LANES)], schedule=schedule)


def recorded(number: int, rows: list[Row]) -> list[dict[str, Any]]:
    """The lines of transitions.jsonl that tell of one step in every lane."""
    lines = []
    for lane, (_, _, terminated, truncated, told) in enumerate(rows):
        info = told.get("final_info", told) | {"TimeLimit.truncated": truncated and not terminated}
        lines.append(transition_record(number, lane, info, bool(terminated or truncated)))
    return json.loads(json.dumps(lines, default=lambda value: value.tolist()))  # type: ignore[no-any-return]


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line | {"not_hashed": None} for line in lines]


@pytest.mark.parametrize("schedule", ["sequential", "phased"])
def test_where_lanes_wait_for_each_other_there_is_no_send(
    dispatcher: Dispatcher, encoder: Encoder, schedule: Schedule
) -> None:
    env = make(dispatcher, encoder, schedule)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="schedule='lanes'"):
        env.send([0], [0])
    with pytest.raises(ValueError, match="schedule='lanes'"):
        env.recv()
    env.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_environment_has_a_thread_of_its_own(
    dispatcher: Dispatcher, encoder: Encoder, schedule: Schedule
) -> None:
    env = make(dispatcher, encoder, schedule)
    assert BatchedQueryMutationEnv(env.envs).schedule == "lanes"
    env.reset(seed=0)
    env.step(np.zeros(LANES, np.int64))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("lane-")]
    env.close()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(row_of_actions, min_size=1, max_size=5),
    schedule=st.sampled_from(SCHEDULES),
    ahead=st.integers(0, 5),
    apart=st.booleans(),
)
def test_each_lane_plays_its_lines_on_record_and_then_goes_on(
    simulator: EmbeddedServer,
    encoder: Encoder,
    rows: list[list[int]],
    schedule: Schedule,
    ahead: int,
    apart: bool,  # noqa: FBT001 - Hypothesis passes by name
) -> None:
    """Whatever the schedule; lanes step apart where they can; the first steps are on record."""
    with Dispatcher([simulator.host]) as one, Dispatcher([simulator.host]) as other:
        first, again = make(one, encoder, "sequential"), make(other, encoder, schedule)
        first.reset(seed=5)
        again.reset(seed=5)
        played = [step_rows(first, np.array(row), apart=False) for row in rows]
        lines = [recorded(number, row) for number, row in enumerate(played)]
        again.replay(lines[:ahead])
        for number, (row, actions) in enumerate(zip(played, rows, strict=True)):
            assert all(env.replays for env in again.envs) == (number < ahead)
            repeated = step_rows(again, np.array(actions), apart=apart and schedule == "lanes")
            assert all(np.array_equal(a[0], b[0]) for a, b in zip(row, repeated, strict=True))
            assert timeless(recorded(number, repeated)) == timeless(lines[number])
        assert again.state() == first.state()
        again.close()


def test_rows_on_record_are_of_all_lanes(dispatcher: Dispatcher, encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="zip"):
        make(dispatcher, encoder).replay([[{}]])


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_model_calls_are_under_way_than_max_workers(encoder: Encoder, most: int) -> None:
    """The server answers a call once as many as may come have come; one more would be seen."""
    under_way: list[int] = [0]
    seen: list[int] = []
    lock = threading.Condition()

    def reply(_body: dict[str, object]) -> tuple[int, object]:
        with lock:
            under_way[0] += 1
            seen.append(under_way[0])
            lock.notify_all()
            lock.wait_for(lambda: under_way[0] >= most or len(seen) > most, timeout=10)
        with lock:
            under_way[0] -= 1
        return 200, SAID | {"message": {"role": "assistant", "content": "Here is how."}}

    with ScriptedServer(reply) as server, Dispatcher([server.host]) as dispatcher:
        lanes = [make_env(dispatcher, encoder) for _ in range(8)]
        env = BatchedQueryMutationEnv(lanes, max_workers=most)
        env.reset(seed=0)
        env.step(np.ones(8, np.int64))
        env.close()
        assert dispatcher.max_in_flight_seen == max(seen) == most


def test_a_query_that_cannot_be_embedded_is_an_error_of_its_lane() -> None:
    def only_short(body: dict[str, object]) -> tuple[int, object]:
        texts = body["input"]
        assert isinstance(texts, list)
        if any("rejected" in text for text in texts):
            return 400, {"error": "rejected"}
        return 200, {"model": "m", "embeddings": [[1.0, 2.0] for _ in texts]}

    with ScriptedServer(only_short) as server:
        for schedule in SCHEDULES:
            with Dispatcher([server.host]) as dispatcher:
                env = make(dispatcher, make_encoder("ollama:m", dispatcher), schedule)
                env.reset(seed=0)
                masked = {"query": "rejected", "reset_mask": np.array([False, True, False])}
                with pytest.raises(OllamaError, match="could not be embedded") as raised:
                    env.reset(options=masked)
                assert raised.value.__notes__ == ["raised in lane 1"]
                env.reset(seed=0)
                env.close()


def test_made_from_a_config_the_lanes_share_their_queries_and_mutators(
    dispatcher: Dispatcher, encoder: Encoder
) -> None:
    roles = Roles(target="sim-target", mutator="sim-target", judge=None)
    config, parts = make_parts(MissionConfig(), dispatcher, roles, ["one", "two"], encoder=encoder)
    parts["queries"] = ["one", "two"]
    env = BatchedQueryMutationEnv(config, 3, **parts)
    for one, other in pairwise(env.envs):
        assert one.queries is other.queries
        assert all(a is b for a, b in zip(one.rules.mutators, other.rules.mutators, strict=True))


def test_state_is_not_told_while_a_lane_is_under_way(dispatcher: Dispatcher, encoder: Encoder) -> None:
    env = make(dispatcher, encoder)
    env.reset(seed=0)
    env.send([0], [1])
    with pytest.raises(gymnasium.error.AlreadyPendingCallError):
        env.state()
    env.recv()
    assert len(env.state()) == LANES
    env.close()


def test_an_interrupt_in_one_lane_of_a_sequence_makes_no_call_of_a_later_lane(
    dispatcher: Dispatcher, encoder: Encoder, simulator: EmbeddedServer
) -> None:
    interrupts = [KeyboardInterrupt()]

    def scorer(original: str, query: str, reply: Completion, similarity: float) -> Verdict:
        if interrupts:
            raise interrupts.pop()
        return SCORER(original, query, reply, similarity)

    lanes = [make_env(dispatcher, encoder, scorer=scorer) for _ in range(LANES)]
    env = BatchedQueryMutationEnv(lanes, schedule="sequential")
    env.reset(seed=0)
    calls = simulator.stats()["calls"]
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(LANES, np.int64))  # no model rewords
    assert simulator.stats()["calls"] == calls + 1
    env.step(np.zeros(LANES, np.int64))
    env.close()


def test_after_ctrl_c_in_restore_it_can_be_called_again(dispatcher: Dispatcher, encoder: Encoder) -> None:
    env = make(dispatcher, encoder)
    shown, _ = env.reset(seed=0)
    state = env.state()
    line = 0
    while torn(lambda: env.restore(state), line):
        assert np.array_equal(env.restore(state), shown)
        line += 1
    assert line > 10
    env.close()


@pytest.mark.parametrize("max_workers", [None, pytest.param(1, marks=pytest.mark.soak)])
def test_ctrl_c_at_any_line_of_send_or_recv_loses_no_step_and_doubles_none(
    dispatcher: Dispatcher, encoder: Encoder, max_workers: int | None
) -> None:
    """All lanes take their step once, or none does."""
    files = {batched.__file__, lanes.__file__}
    env = BatchedQueryMutationEnv(
        [make_env(dispatcher, encoder) for _ in range(LANES)], max_workers=max_workers
    )
    env.reset(seed=0)
    before = env.state()
    env.step([1, 1, 1])
    after = env.state()
    for wait in (False, True):
        line, was_torn = 0, True
        while was_torn:
            env.reset(seed=0)
            if wait:
                env.send([1, 1, 1], range(LANES))
            call = (lambda: env.recv(LANES)) if wait else (lambda: env.send([1, 1, 1], range(LANES)))
            was_torn = torn(call, line, files)
            begun = wait or bool(env.pending)
            if env.pending:
                assert sorted(env.recv(LANES, timeout_s=60).lanes) == [0, 1, 2]
            assert env.state() == (after if begun else before)
            line += 1
        assert line > 10
    env.close()


def test_an_action_that_is_none_takes_no_line_on_record(dispatcher: Dispatcher, encoder: Encoder) -> None:
    env = make_env(dispatcher, encoder)
    env.reset(seed=0)
    env.replay([{}])
    with pytest.raises(gymnasium.error.InvalidAction):
        env.step(np.int64(99))
    assert env.replays
