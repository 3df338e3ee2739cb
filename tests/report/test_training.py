"""What is counted of a training: every step once, and target calls as many as the log of replies has."""

from __future__ import annotations

import sqlite3

import pytest

from report.run_files import read_run
from report.tables import training_tables
from report.training import Training, count_training
from tests.report.made_runs import OLD

RUNS = ("train-finished", "train-seed-1")
RETURNS = (-0.25, 0.95)


def counted(name: str) -> Training:
    return count_training(read_run(OLD / name, name).transitions(), {}, 5, RETURNS)


@pytest.mark.parametrize("name", RUNS)
def test_target_calls_are_those_of_the_log(name: str) -> None:
    log = sqlite3.connect(f"{(OLD / name / 'replies.sqlite').as_uri()}?immutable=1", uri=True)
    asked = "SELECT count(*) FROM replies WHERE model = 'sim-target' AND attempts > 0"
    ((calls,),) = log.execute(asked).fetchall()
    log.close()
    counted_calls = sum(span.calls for span in counted(name).rows)
    assert calls - 1 <= counted_calls <= calls  # the preflight asks one question more


@pytest.mark.parametrize("rollout", [1, 5, 8, 24, 100])
def test_windows_part_the_rows_and_lose_none(rollout: int) -> None:
    training = counted("train-finished")
    windows = training.windows(rollout)
    assert sum(span.steps for span in windows) == 48
    assert sum(span.mutators.total() for span in windows) == sum(n for _, n in training.successes.values())
    assert sum(len(span.episodes) for span in windows) == sum(len(row.episodes) for row in training.rows)
    assert len(windows) <= 40


def test_a_row_that_is_missing_is_no_training() -> None:
    lines = [line for line in read_run(OLD / "train-finished", "x").transitions() if line["row"] != 3]
    with pytest.raises(ValueError, match="row 4 follows row 2"):
        count_training(lines, {}, 5, RETURNS)


def test_an_episode_that_a_failed_call_ended_is_none_and_the_next_one_begins_behind_it() -> None:
    line = next(iter(read_run(OLD / "train-finished", "x").transitions()))
    goes_on = {"reward": -0.05, "terminated": False, "success": False}
    failed = {"reward": 0.0, "terminated": False, "truncated": True, "unscored": True}
    steps = [goes_on, failed, {"reward": 0.95}]
    lines = [line | step | {"row": row} for row, step in enumerate(steps)]
    rows = count_training(lines, {}, 1, RETURNS).rows
    assert [[total for _, _, total in row.episodes] for row in rows] == [[], [], [0.95]]


def test_a_step_without_a_reply_is_no_target_call() -> None:
    lines = list(read_run(OLD / "train-finished", "x").transitions())
    unscored = [line | {"unscored": True, "adopted": False} for line in lines]
    training = count_training(unscored, {}, 5, RETURNS)
    assert sum(span.calls for span in training.rows) == 0
    assert sum(span.unscored for span in training.rows) == len(lines)


@pytest.mark.parametrize(("rollout", "overlap"), [(12, False), (24, True)])
def test_two_ends_with_steps_in_common_are_not_compared(rollout: int, overlap: bool) -> None:  # noqa: FBT001
    training = counted("train-finished")
    assert len(training.rows) == 24
    assert training.overlap(rollout, max_steps=1) is overlap
    both, paired = training_tables(*training.ends(rollout, max_steps=1), overlap=overlap)
    assert ("in common" in both.says) is overlap
    assert not (overlap and paired.rows)
