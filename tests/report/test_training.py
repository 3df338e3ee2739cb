"""What is counted of a training: every step once, and target calls as the log of replies has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.transitions import check_transition
from records.json_lines import read_lines
from report.training import RETURN, SUCCESS, UNSCORED, Training
from tests.report.made_runs import lines_of

Line = Mapping[str, Any]


@pytest.fixture
def lines(runs: Path) -> list[dict[str, Any]]:
    """The 48 transitions of a run, in 24 rows."""
    return lines_of(runs / "train/seed-0")


def counted(
    lines: Iterable[Line], rollout: int = 8, max_steps: int = 5, looks: Iterable[Line] = ()
) -> Training:
    training = Training(rollout=rollout, max_steps=max_steps, returns=(-0.25, 0.95))
    for look in looks:
        training.add_look(look)
    for line in lines:
        training.add(line)
    return training


def trials(training: Training, measure: str) -> list[list[float]]:
    """In each window."""
    windows = (training.values(measure, window).values() for _, window in training.windows())
    return [[value for of_query in values for value in of_query] for values in windows]


def test_target_calls_are_those_of_the_log(runs: Path, lines: list[Line]) -> None:
    log = sqlite3.connect(
        f"{(runs / 'train/seed-0/replies.sqlite').as_uri()}?immutable=1", uri=True
    )
    asked = "SELECT count(*) FROM replies WHERE model = 'sim-target' AND attempts > 0"
    ((calls,),) = log.execute(asked).fetchall()
    log.close()
    looks = list(read_lines(runs / "train/seed-0/screen.jsonl", check_transition))
    *_, ((steps, counted_calls), _) = counted(lines, looks=looks).windows()
    assert steps == 48
    assert len(looks) < counted_calls
    assert calls - 1 <= counted_calls <= calls  # the first question is asked before the training


@pytest.mark.parametrize("rollout", [1, 5, 100])
def test_windows_part_the_rows(rollout: int, lines: list[Line]) -> None:
    training, (episodes,) = counted(lines, rollout), trials(counted(lines, 24), SUCCESS)
    assert sum(map(len, trials(training, UNSCORED))) == 48
    assert sum(map(len, trials(training, SUCCESS))) == len(episodes)
    assert len(list(training.windows())) <= 40


def test_an_episode_that_a_failed_call_ended_is_none_and_the_next_one_begins_behind_it(
    lines: list[Line],
) -> None:
    goes_on = {"reward": -0.05, "terminated": False, "truncated": False, "success": False}
    failed = {"reward": 0.0, "terminated": False, "truncated": True, "unscored": True}
    steps = [goes_on, failed, {"reward": 0.95, "terminated": True}]
    rows = [{**lines[0], **step, "row": row} for row, step in enumerate(steps)]
    assert trials(counted(rows, rollout=1, max_steps=1), RETURN) == [[], [], [0.95]]
