"""What each way to step policies does side by side, what it leaves behind, and what it cannot serve."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evaluation.errors import StepperClosedError, StepperError
from evaluation.policies.policy import Policy
from evaluation.stepping import Cost, PolicyStepper, count_cpus, make_stepper, pick_way
from ollama_utils.plans import PlanRunner
from tests.evaluation import policies_for_tests as policies
from tests.evaluation.network_policies import Likeliest, network
from tests.evaluation.policies_for_tests import Source, source
from tests.evaluation.stepping.playing import play, play_episode, step, stepper_of, view

ALL = ("serial", "thread", "process", "batch", "torch", "auto")


def children(parent: int | None = None) -> set[int]:
    """The processes that a process, or this one, has started and that have not been waited for."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            started_by = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if started_by == (parent or os.getpid()):
            found.add(int(stat.parent.name))
    return found


def test_all_policies_of_a_step_are_under_way_at_once() -> None:
    policies.Meeting.barrier = threading.Barrier(4)
    with stepper_of("thread", jobs=4) as stepper:
        found = play_episode(stepper, [source(policies.Meeting)] * 4, steps=2, jobs=4)
    assert found == [[agent, agent] for agent in range(4)]


@pytest.mark.parametrize("jobs", [1, 3])
def test_no_more_policies_step_at_once_than_there_are_jobs(jobs: int) -> None:
    policies.Crowd.most = 0
    with stepper_of("thread", jobs=jobs) as stepper:
        play(stepper, [source(policies.Crowd)] * 5, jobs=jobs)
    assert policies.Crowd.most <= jobs


@pytest.mark.parametrize("name", ["serial", "thread", "process", "batch", "torch"])
def test_no_instance_is_used_in_two_episodes(name: str, stepper: PolicyStepper) -> None:
    kinds: dict[str, Callable[..., Policy]] = {"batch": policies.Together, "torch": Likeliest}
    played = source(kinds.get(name, policies.Wanderer))
    first = play_episode(stepper, [played] * 2)
    assert play_episode(stepper, [played] * 2) == first


def test_a_batch_is_one_call_for_the_agents_of_a_step_that_have_the_same_policy() -> None:
    policies.Together.calls.clear()
    one, other = source(policies.Together), source(policies.Together)
    with stepper_of("batch") as stepper:
        play_episode(stepper, [one, other, one, one], steps=2)
    assert sorted(policies.Together.calls) == [1, 1, 3, 3]


def test_a_network_sees_blocks_of_16_rows_and_nothing_else() -> None:
    network(0).rows.clear()
    with stepper_of("torch") as stepper:
        play(stepper, [source(Likeliest)] * 5, episodes=4)
    assert set(network(0).rows) == {16}


@pytest.mark.parametrize(
    ("name", "timeout_ms"),
    [
        *((name, None) for name in ALL),
        *((name, 60_000.0) for name in ("serial", "thread", "batch", "torch")),
        *(pytest.param(name, 60_000.0, marks=pytest.mark.soak) for name in ("process", "auto")),
    ],
)
def test_a_closed_stepper_leaves_no_process_behind(name: str, timeout_ms: float | None) -> None:
    processes = children()
    kinds: list[Callable[..., Policy]] = [policies.Wanderer, policies.Waiting, policies.Busy]
    if name in {"batch", "torch"}:
        kinds = [policies.Together if name == "batch" else Likeliest]
    with stepper_of(name, action_timeout_ms=timeout_ms) as stepper:
        play(stepper, [source(kind) for kind in kinds])
        assert name != "process" or children() > processes
    assert children() == processes


def test_closing_a_stepper_ends_steps_under_way_in_processes() -> None:
    before = children()
    with PlanRunner[Any, Any](lambda call: call(), 1) as runner:
        with stepper_of("process", jobs=1) as stepper:
            hanging = stepper.begin([source(policies.Failing, fault=policies.hang, at=0)], [0])
            found = runner.submit(hanging.step([view()]))
            while children() == before:
                time.sleep(0.001)
        (error,) = found.result(20)
    assert isinstance(error, StepperClosedError)


def test_a_process_that_dies_between_two_steps_takes_no_policy_with_it() -> None:
    before = children()
    with stepper_of("process", jobs=1) as stepper:
        with stepper_of("serial") as serial:
            (expected,) = play_episode(serial, [source(policies.Wanderer)], steps=3)
        alone = stepper.begin([source(policies.Wanderer)], [0])
        actions = step(alone, view(0, 0)) + step(alone, view(0, 1))
        (worker,) = children() - before
        ended = os.pidfd_open(worker)
        os.kill(worker, signal.SIGKILL)
        assert select.select([ended], [], [], 20)[0]
        os.close(ended)
        assert actions + step(alone, view(0, 2)) == expected


LOST = """
import threading
from evaluation.stepping import make_stepper
from tests.evaluation import policies_for_tests as policies
from tests.evaluation.stepping.playing import step, view
stepper = make_stepper("process", jobs=1, action_timeout_ms=None, report=print)
hangs = policies.source(policies.Failing, fault=policies.hang, agent=1, at=0)
begun = stepper.begin([policies.source(policies.Wanderer), hangs], [0, 1])
step(begun, view())
threading.Thread(target=step, args=(begun, view(1)), daemon=True).start()
print(flush=True)
input()
"""


def test_a_process_ends_soon_after_the_evaluation_however_that_ends() -> None:
    evaluation = subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, "-c", LOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with evaluation:
        assert evaluation.stdout
        evaluation.stdout.readline()
        (child,) = children(evaluation.pid)
        worker = os.pidfd_open(child)
        evaluation.kill()
    assert select.select([worker], [], [], 20)[0]
    os.close(worker)


def test_auto_steps_the_rest_of_a_row_side_by_side_once_the_first_have_told_that_they_wait() -> None:
    policies.LateMeeting.barrier, policies.LateMeeting.steps = threading.Barrier(4), 0
    with stepper_of("auto", jobs=7) as stepper:
        found = play_episode(stepper, [source(policies.LateMeeting)] * 7, steps=1, jobs=7)
    assert found == [[agent] for agent in range(7)]


@pytest.mark.skipif(count_cpus() == 1, reason="auto picks no process where there is one CPU")
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (policies.Wanderer, "policy 'Wanderer' steps by serial: it is light: "),
        (policies.Waiting, "policy 'Waiting' steps by thread: it waits: "),
        (policies.Busy, "policy 'Busy' steps by process: it computes: "),
        (policies.Together, "policy 'Together' steps by batch: it has step_batch"),
        (Likeliest, "policy 'Likeliest' steps by torch: it has a network"),
    ],
)
def test_auto_says_once_how_a_policy_is_stepped_and_why(kind: Callable[..., Policy], line: str) -> None:
    said: list[str] = []
    with stepper_of("auto", report=said.append) as stepper:
        play(stepper, [source(kind)] * 3)
    assert len(said) == 1
    assert said[0].startswith(line)


@pytest.mark.skipif(count_cpus() == 1, reason="auto picks no process where there is one CPU")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (policies.Unpicklable, "cannot be pickled for a process of its own: TypeError: cannot pickle"),
        (policies.Homebody, "cannot be unpickled in a process: RuntimeError: nowhere but home"),
    ],
)
def test_auto_says_once_why_a_policy_that_computes_stays_where_it_is(
    kind: type[policies.Busy], reason: str
) -> None:
    said: list[str] = []
    with stepper_of("auto", report=said.append) as stepper:
        play(stepper, [source(kind, cpu_s=0.02)] if kind is not policies.Unpicklable else [source(kind)])
    assert [line.split(":")[0] for line in said] == [
        f"policy {kind.__name__!r} steps by process",
        f"policy {kind.__name__!r} steps by serial, not process",
    ]
    assert reason in said[1]


@pytest.mark.parametrize(
    ("costs", "jobs", "cpus", "pick"),
    [
        ([(0.05, 0.001)] * 3, 4, 2, "thread"),
        ([(1.0, 0.002), (0.0, 0.001), (0.0, 0.001)], 4, 2, "thread"),  # a known reply after the first
        ([(0.0, 0.05)] * 3, 4, 2, "process"),
        ([(0.03, 0.05)] * 3, 4, 2, "process"),
        ([(0.0, 0.05)] * 3, 4, 1, "serial"),
        ([(0.0, 0.05)] * 3, 1, 2, "serial"),
        ([(0.05, 0.0)] * 3, 1, 2, "serial"),
        ([(0.0, 2.0), (0.0, 0.001), (0.0, 0.001)], 4, 2, "serial"),  # an import in the first
        ([(-0.001, 0.0005)] * 3, 4, 2, "serial"),
    ],
)
def test_the_pick_follows_from_waiting_and_computing(
    costs: list[tuple[float, float]], jobs: int, cpus: int, pick: str
) -> None:
    measured = [Cost(wait_s=wait_s, cpu_s=cpu_s) for wait_s, cpu_s in costs]
    found, why = pick_way(measured, jobs=jobs, cpus=cpus)
    assert found == pick
    assert "ms of waiting" in why


def test_a_way_asked_for_by_name_that_cannot_serve_a_policy_says_so_in_one_line() -> None:
    asked: list[tuple[str, Callable[..., Policy], str]] = [
        (
            "process",
            partial(policies.Failing, fault=lambda: 0),
            "'f' cannot be pickled for a process of its own",
        ),
        ("batch", policies.Wanderer, "'f' has no step_batch: --policy-wrapper batch cannot serve it"),
        ("torch", policies.Wanderer, "'f' has no torch network: --policy-wrapper torch cannot serve it"),
    ]
    for name, make_policy, message in asked:
        with stepper_of(name) as stepper, pytest.raises(StepperError, match=message) as caught:
            stepper.begin([Source(name="f", make_policy=make_policy)], [0])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "threads"}, "unknown policy wrapper 'threads'; did you mean thread"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"action_timeout_ms": 0.0}, "got 0.0"),
        ({"action_timeout_ms": float("nan")}, "got nan"),
    ],
)
def test_a_way_to_step_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    asked: dict[str, object] = {"name": "serial", "jobs": 1, "action_timeout_ms": None, "report": print}
    with pytest.raises(ValueError, match=message):
        make_stepper(**(asked | changes))  # type: ignore[arg-type] # as the command line gives them


def test_a_process_starts_without_torch_and_without_the_commands() -> None:
    code = "import sys, evaluation.policy_process as _, evaluation.policies.specs as _; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)  # noqa: S603 - ours
    heavy = {"torch", "sklearn", "scipy", "gymnasium", "train", "envs"}
    assert heavy.isdisjoint(ran.stdout.split())
