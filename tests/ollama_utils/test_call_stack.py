"""The way of one question to the socket is short: at most 12 frames of ours from `env.step`.

A first call shows that replies are quick; where they take seconds, they are streamed, by one frame more.
"""

from __future__ import annotations

import gc
import sys
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.answering import Models
from envs.batched import BatchedQueryMutationEnv
from ollama_utils.batching import batch_query_target_model
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import HashingEncoder
from ollama_utils.types import Call
from tests.envs.worlds import CONFIG, make_env
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import wait_until

ROOT = Path(__file__).parents[2]
MOST_FRAMES = 12
ENV = replace(CONFIG, models=Models(target="m", mutator="m"), mutators=("noop",))


class Watched(ScriptedServer):
    """A server that looks, while it is asked, at what the thread does that waits for the answer."""

    def __init__(self) -> None:
        self.stacks: list[list[str]] = []
        super().__init__(self._answer)

    def _answer(self, _body: dict[str, Any]) -> tuple[int, object]:
        wait_until(lambda: bool(_stacks_at_the_socket()))
        self.stacks += _stacks_at_the_socket()
        return 200, SAID | {"total_duration": 10**6, "eval_count": 1, "eval_duration": 10**6}


def _stacks_at_the_socket() -> list[list[str]]:
    """Our frames of each thread that reads from a socket, the outermost first."""
    gc.disable()  # python/cpython #106883: a collection inside the next call may wait for itself, for ever
    frames = list(sys._current_frames().values())
    gc.enable()
    stacks = [[line for line in map(_of_ours, traceback.extract_stack(frame)) if line] for frame in frames]
    return [stack for stack in stacks if stack and stack[-1] == "ollama_utils/http.py:readinto"]


def _of_ours(frame: traceback.FrameSummary) -> str | None:
    """The file and function of a frame, where it is ours."""
    path = Path(frame.filename)
    if not path.is_relative_to(ROOT) or ".venv" in path.parts or "tests" in path.parts:
        return None
    return f"{path.relative_to(ROOT)}:{frame.name}"


def test_from_a_batch_to_the_socket_the_way_is_dispatcher_client_wire() -> None:
    with Watched() as server, Dispatcher([server.host], backoff_s=0.001) as dispatcher:
        dispatcher.generate(Call(model="m", prompt="How long do replies take?"))
        (completion,) = batch_query_target_model(dispatcher, ["How?"], model="m")
    assert completion.text == SAID["response"]
    assert server.stacks[1:] == [
        [
            "ollama_utils/batching.py:batch_query_target_model",
            "ollama_utils/parallel.py:map_parallel",
            "ollama_utils/dispatcher.py:generate",
            "ollama_utils/dispatcher.py:_send",
            "ollama_utils/client.py:generate",
            "ollama_utils/http.py:request",
            "ollama_utils/http.py:handle_request",
            "ollama_utils/http.py:handle_request",
            "ollama_utils/http.py:_begun",
            "ollama_utils/http.py:readinto",
        ]
    ]


@pytest.mark.parametrize("schedule", ["sequential", "lanes"])
def test_from_a_step_to_the_socket_there_are_twelve_frames_at_most(schedule: str) -> None:
    """From `QueryMutationEnv.step`, or from where a lane's thread begins."""
    with Watched() as server, Dispatcher([server.host], backoff_s=0.001) as dispatcher:
        dispatcher.generate(Call(model="m", prompt="How long do replies take?"))
        env = make_env(dispatcher, HashingEncoder(8), ENV)
        if schedule == "sequential":
            env.reset(seed=1)
            env.step(np.int64(0))
        else:
            with closing(BatchedQueryMutationEnv([env])) as envs:
                envs.reset(seed=1)
                envs.step(np.array([0]))
    _, stack = server.stacks
    print("\n".join(stack))  # noqa: T201 - seen with pytest -s
    assert len(stack) <= MOST_FRAMES, stack
