"""Each way to step policies gives the same actions, and what goes wrong stays with its agent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.instance import StepperError
from evaluation.policies import OrderedPolicy, PolicySource
from evaluation.stepping import PolicyStepper, StepperName
from tests.evaluation import policies_for_tests as policies
from tests.evaluation.network_policies import NETWORKS, Likeliest, Networked
from tests.evaluation.policies_for_tests import (
    Outcome,
    Together,
    Wanderer,
    play,
    source,
    view,
)

FAULTS = (policies.raise_odd_error, policies.leave, policies.choose_7)
"""Likewise at the command, see test_eval_failures.py."""
BY_STEP = [
    source(Wanderer),
    PolicySource(name="cascade", make=partial(OrderedPolicy, (3, 1, 4))),
    *(source(Wanderer, fault=fault) for fault in FAULTS),
]
BY_BATCH = [source(Together), *(source(Together, fault=fault) for fault in FAULTS)]
BY_NETWORK = [
    source(Likeliest),
    *(source(Networked, kind=kind) for kind in range(len(NETWORKS))),
    *(source(Networked, fault=fault) for fault in FAULTS),
]
WAYS = {"batch": BY_BATCH + BY_NETWORK, "torch": BY_NETWORK}
"""The policies that a wrapper can serve, where it cannot serve all."""

GROWING = """
import types
size = 0
class Process:
    def __init__(self, number): pass
    def memory_info(self):
        global size
        size += 2**30
        return types.SimpleNamespace(rss=size)
"""
"""A psutil by which every process grows."""


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Let policies that hang go at the end."""
    policies.release.clear()
    yield
    policies.release.set()


def serial(
    sources: Sequence[PolicySource], episodes: int = 1, steps: int = 4
) -> list[list[Outcome]]:
    stepper = PolicyStepper("serial", jobs=1)
    return play(stepper, sources, episodes=episodes, steps=steps)


@pytest.mark.parametrize("name", get_args(StepperName))
def test_actions_and_errors_are_the_same_however_policies_are_stepped(name: StepperName) -> None:
    with closing(PolicyStepper(name, jobs=4, action_timeout_ms=60_000.0)) as stepper:

        @settings(max_examples=5, deadline=None)
        @given(
            st.lists(
                st.sampled_from(WAYS.get(name, BY_STEP + BY_BATCH + BY_NETWORK)),
                min_size=1,
                max_size=4,
            ),
            st.integers(1, 3),
        )
        def check(sources: list[PolicySource], episodes: int) -> None:
            assert play(stepper, sources, episodes=episodes) == serial(sources, episodes)

        check()


@pytest.mark.parametrize(("name", "kind"), [("batch", Together), ("torch", Networked)])
def test_one_that_hangs_does_so_alone(name: StepperName, kind: Callable[..., Any]) -> None:
    """Likewise on threads and in processes, see test_eval_failures.py."""
    expected = serial([source(kind)] * 3)
    with closing(PolicyStepper(name, jobs=1, action_timeout_ms=1000.0)) as stepper:
        hanging = source(kind, fault=policies.hang)
        (action, error), *others = play(stepper, [hanging] * 2 + [source(kind)])
    assert others == expected[1:]
    assert action == expected[0][0]
    assert str(error).endswith(f"policy {kind.__name__!r} took longer than 1000 ms over one step")


def test_agents_that_wait_share_a_call_of_step_batch_or_a_forward_pass_of_16_rows() -> None:
    Together.calls.clear()
    play(PolicyStepper("auto", jobs=8), [source(Together)] * 8, steps=20)
    assert sum(Together.calls) == 160
    assert max(Together.calls) > 1
    rows = NETWORKS[0].rows
    rows.clear()
    play(PolicyStepper("auto", jobs=8), [source(Likeliest)] * 2, episodes=4, steps=20)
    assert set(rows) == {16}
    assert len(rows) < 160


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_gets_a_signal_between_two_steps_takes_no_policy_with_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    file = tmp_path / "processes"
    (expected,) = serial([source(Wanderer)])
    with closing(PolicyStepper("process", jobs=1)) as stepper:
        policy = stepper.begin(source(Wanderer, file=file), 0, group=0, group_seed=0)
        actions = [policy(view(0, step)) for step in range(2)]
        worker = int(file.read_text().split()[-1])
        assert worker != os.getpid()
        os.kill(worker, number)
        actions += [policy(view(0, step)) for step in range(2, 4)]
    assert actions == expected
    last = int(file.read_text().split()[-1])
    assert (last == worker) == (number == signal.SIGINT)


def test_a_process_that_grows_keeps_its_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where psutil is installed, loky looks once a second how much memory a process has."""
    (tmp_path / "psutil.py").write_text(GROWING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    file = tmp_path / "processes"
    with closing(PolicyStepper("process", jobs=1)) as stepper:
        policy = stepper.begin(source(Wanderer, file=file), 0, group=0, group_seed=0)
        policy(view(0, 0))
        time.sleep(1.1)
        actions = [policy(view(0, step)) for step in range(1, 3)]
    assert None not in actions
    assert len(set(file.read_text().split())) == 1


def test_closing_a_stepper_ends_steps_under_way_in_processes(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    hanging = source(Wanderer, file=file, fault=policies.hang)
    with closing(PolicyStepper("process", jobs=1)) as stepper:
        step = stepper.begin(hanging, 0, group=0, group_seed=0)
        step(view())
        closer = threading.Timer(0.5, stepper.close)
        closer.start()
        with pytest.raises(StepperError, match="the evaluation ended"):
            step(view(0, 1))
        closer.join()
    assert not Path(f"/proc/{file.read_text().split()[0]}").exists()


ORPHANS = """
import sys
import threading
from pathlib import Path
from evaluation.stepping import PolicyStepper
from tests.evaluation import policies_for_tests as policies
hanging = policies.source(policies.Wanderer, fault=policies.hang, file=Path(sys.argv[1]))
step = PolicyStepper("process", jobs=1).begin(hanging, 0, group=0, group_seed=0)
step(policies.view())
threading.Thread(target=step, args=(policies.view(0, 1),), daemon=True).start()
print("ready", flush=True)
input()
"""


def test_a_process_prints_to_standard_error_and_ends_soon_after_the_evaluation(
    tmp_path: Path,
) -> None:
    file = tmp_path / "processes"
    evaluation = subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, "-c", ORPHANS, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        text=True,
    )
    with evaluation:
        assert evaluation.stdout
        assert evaluation.stderr
        assert evaluation.stdout.readline() == "ready\n"
        number = int(file.read_text().split()[0])
        worker = os.pidfd_open(number)
        assert evaluation.stderr.readline() == f"in process {number}\n"
        evaluation.kill()
        assert select.select([worker], [], [], 20)[0]
    os.close(worker)
