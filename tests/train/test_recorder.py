"""The recorder: rows are whole, updates are not broken into, the hash is of what equal runs share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.logger import Logger

from envs.episode import transition_record
from ollama_utils.dispatcher import Dispatcher
from records.interrupt import Interrupted, interruptible
from records.run_folder import RunFolder
from train.recorder import Recorder

INFO: dict[str, Any] = {
    "original_query": "q",
    "query_before": "q",
    "mutated_query": "q",
    "mutator": "noop",
    "reply": "Yes.",
    "reply_truncated": False,
    "episode_number": 0,
    "step_number": 0,
    "attempt": 0,
    "adopted": True,
    "rejected": "",
    "outcome": "answered",
    "partial": False,
    "intent_similarity": 1.0,
    "success": True,
    "reward": 0.95,
    "unscored": False,
    "error": "",
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "queue_s": 0.1, "total_s": 0.2},
    "reward_parts": {"answered": 1.0},
    "TimeLimit.truncated": False,
}
LANES = 3


class Model:
    """What a callback reads of its model."""

    logger = Logger(None, [])
    num_timesteps = 0

    def get_env(self) -> None:
        """No environment."""


class SignalWriter(RunFolder):
    """A run folder in whose first write of a transition a signal arrives."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.open_lines()
        write = self.transitions.write

        def write_and_signal(record: Any) -> None:  # noqa: ANN401 - a record
            if not self.transitions.count:
                os.kill(os.getpid(), signal.SIGTERM)
            write(record)

        self.transitions.write = write_and_signal  # type: ignore[method-assign]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SignalWriter]:
    made = SignalWriter(tmp_path / "run")
    yield made
    made.close()


@contextmanager
def recording(folder: RunFolder, dispatcher: Dispatcher) -> Iterator[Recorder]:
    """A recorder of a run that may be interrupted, past its start."""
    with interruptible() as interrupt:
        recorder = Recorder(folder, dispatcher, interrupt, max_unscored=0.5)
        recorder.init_callback(Model())  # type: ignore[arg-type] # as much of one as a recorder looks at
        recorder.on_rollout_start()
        yield recorder


def test_a_signal_in_the_middle_of_a_row_stops_the_run_behind_it(
    folder: SignalWriter, dispatcher: Dispatcher
) -> None:
    with recording(folder, dispatcher) as recorder:
        recorder.locals = {"infos": [INFO] * LANES, "rewards": [0.95] * LANES, "dones": [True] * LANES}
        with pytest.raises(Interrupted):
            recorder.on_step()
    assert recorder.rows == 1
    assert [line["lane"] for line in folder.transitions.read()] == [0, 1, 2]


def test_a_signal_in_an_update_waits_for_the_next_rollout(
    folder: SignalWriter, dispatcher: Dispatcher
) -> None:
    with recording(folder, dispatcher) as recorder:
        recorder.on_rollout_end()
        os.kill(os.getpid(), signal.SIGTERM)  # in the update: nothing happens yet
        with pytest.raises(Interrupted):
            recorder.on_rollout_start()


def test_of_an_error_the_class_is_hashed_and_the_message_is_kept() -> None:
    error = "ServerFaultError: http://127.0.0.1:4711 failed"
    record = transition_record(0, 0, INFO | {"unscored": True, "error": error}, done=False)
    assert record["error"] == "ServerFaultError"
    assert record["not_hashed"]["error_message"] == error
    assert "4711" not in str({k: v for k, v in record.items() if k != "not_hashed"})
