"""Each way to step policies gives the same actions, and what goes wrong stays with its agent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.errors import StepperError, policy_traceback
from evaluation.policies import OrderedPolicy, Policy, PolicySource
from evaluation.stepping import PolicyStepper, StepperName
from tests.evaluation import network_policies as networks
from tests.evaluation import policies_for_tests as policies
from tests.evaluation.network_policies import NETWORKS, FailingNetworked, Likeliest, Networked
from tests.evaluation.policies_for_tests import (
    Failing,
    FailingTogether,
    Located,
    Outcome,
    Together,
    Wanderer,
    play,
    source,
    view,
)

DEADLINE_MS = 1000.0
"""Overrun by what hangs, and by nothing else."""
FAULTS = (
    policies.raise_value_error,
    policies.raise_odd_error,
    policies.leave,
    policies.choose_7,
)
BY_STEP: list[PolicySource] = [
    source(Wanderer),
    OrderedPolicy(name="cascade", order=(3, 1, 4), rewords_original=True),
    *(source(Failing, fault=fault) for fault in FAULTS),
]
BY_BATCH: list[PolicySource] = [
    source(Together),
    *(source(FailingTogether, fault=fault) for fault in FAULTS),
]
BY_NETWORK: list[PolicySource] = [
    source(Likeliest),
    *(source(Networked, kind=kind) for kind in range(len(NETWORKS))),
    *(source(FailingNetworked, fault=fault) for fault in FAULTS),
]
WAYS = {
    "batch": BY_BATCH + BY_NETWORK,
    "torch": BY_NETWORK,
}
"""The policies that a wrapper can serve, where it cannot serve all."""


@pytest.fixture(scope="module")
def processes() -> Iterator[PolicyStepper]:
    """Processes take long to start, so tests that only step share them."""
    with closing(PolicyStepper("process", jobs=4, action_timeout_ms=DEADLINE_MS)) as made:
        yield made


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
def test_actions_and_errors_are_the_same_however_policies_are_stepped(
    name: StepperName, processes: PolicyStepper
) -> None:
    kinds = WAYS.get(name, BY_STEP + BY_BATCH + BY_NETWORK)

    @settings(max_examples=5, deadline=None)
    @given(
        st.lists(st.sampled_from(kinds), min_size=1, max_size=4),
        st.integers(1, 3),
        st.sampled_from([None, 60_000.0]),
    )
    def check(sources: list[PolicySource], episodes: int, timeout_ms: float | None) -> None:
        own = PolicyStepper(
            "thread" if name == "process" else name, jobs=4, action_timeout_ms=timeout_ms
        )
        stepper = processes if name == "process" else own
        assert play(stepper, sources, episodes=episodes) == serial(sources, episodes)

    check()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (policies.raise_value_error, "ValueError: the fault of this policy"),
        (policies.raise_odd_error, "tests.evaluation.policies_for_tests.OddError: odd"),
        (policies.leave, "policy 'Failing' raised SystemExit(3); expected an action"),
        *(
            (
                lambda action=action: action,
                f"policy 'Failing' chose {action!r}; expected an integer from 0 to 6",
            )
            for action in (7, -1, True, "noop")
        ),
    ],
)
def test_a_policy_that_fails_ends_its_own_episode_with_its_error(
    fault: Callable[[], int], message: str
) -> None:
    expected = serial([source(Wanderer)] * 2)
    failed, sound = serial([source(Failing, fault=fault)] * 2)
    assert sound == expected[1]
    assert failed[:-1] == expected[0][:1]
    assert str(failed[-1]).removeprefix("evaluation.errors.PolicyError: ") == message


@pytest.mark.parametrize(
    ("name", "failing", "fault", "message"),
    [
        *(
            (name, failing, policies.hang, "took longer than 1000 ms over one step")
            for name, failing in (
                ("thread", Failing),
                ("batch", FailingTogether),
                ("torch", FailingNetworked),
                ("process", Failing),
            )
        ),
        ("process", Failing, policies.die, "ended its process: EXIT(9)"),
    ],
)
def test_one_that_hangs_or_dies_does_so_alone(
    name: StepperName, failing: Callable[..., Policy], fault: Callable[[], int], message: str
) -> None:
    sound = source(
        networks.Networked if name == "torch" else Together if name == "batch" else Wanderer
    )
    expected = serial([sound] * 3)
    with closing(PolicyStepper(name, jobs=1, action_timeout_ms=DEADLINE_MS)) as stepper:
        (action, error), *others = play(stepper, [source(failing, fault=fault)] * 2 + [sound])
    assert others == expected[1:]
    assert action == expected[0][0]
    assert error == f"evaluation.errors.PolicyError: policy {failing.__name__!r} {message}"


def test_the_traceback_of_a_policys_error_is_the_same_from_a_process_and_begins_with_the_policy(
    processes: PolicyStepper,
) -> None:
    traces = []
    for stepper in (PolicyStepper("serial", jobs=1), processes):
        failing = source(Failing, fault=policies.raise_odd_error)
        step = stepper.begin(failing, 0, group=0, group_seed=0)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever a policy raises
            step(view(0, 1))
        error = caught.value
        assert error.__traceback__
        error.__traceback__ = error.__traceback__.tb_next  # without the test
        traces.append(policy_traceback(error))
    assert traces[0] == traces[1]
    assert traces[0].splitlines()[1].startswith(f'  File "{policies.__file__}"')


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
        policy = stepper.begin(source(Located, file=file), 0, group=0, group_seed=0)
        actions = [policy(view(0, step)) for step in range(2)]
        worker = int(file.read_text().split()[-1])
        assert worker != os.getpid()
        os.kill(worker, number)
        actions += [policy(view(0, step)) for step in range(2, 4)]
    assert actions == expected
    last = int(file.read_text().split()[-1])
    assert (last == worker) == (number == signal.SIGINT)


def test_closing_a_stepper_ends_steps_under_way_in_processes(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    with closing(PolicyStepper("process", jobs=1)) as stepper:
        located = stepper.begin(source(Located, file=file), 0, group=0, group_seed=0)
        located(view())
        failing = source(Failing, fault=policies.hang)
        hanging = stepper.begin(failing, 0, group=0, group_seed=0)
        closer = threading.Timer(0.5, stepper.close)
        closer.start()
        with pytest.raises(StepperError, match="the evaluation ended"):
            hanging(view(0, 1))
        closer.join()
    assert not Path(f"/proc/{file.read_text().strip()}").exists()


ORPHANS = """
import sys
import threading
from pathlib import Path
from evaluation.stepping import PolicyStepper
from tests.evaluation import policies_for_tests as policies
stepper = PolicyStepper("process", jobs=1)
located = policies.source(policies.Located, file=Path(sys.argv[1]))
hanging = policies.source(policies.Failing, fault=policies.hang)
stepper.begin(located, 0, group=0, group_seed=0)(policies.view())
step = stepper.begin(hanging, 0, group=0, group_seed=0)
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
        worker = os.pidfd_open(int(file.read_text()))
        assert evaluation.stderr.readline() == f"in process {file.read_text()}"
        evaluation.kill()
        assert select.select([worker], [], [], 20)[0]
    os.close(worker)


@pytest.mark.parametrize(
    ("name", "played", "message"),
    [
        ("process", source(Failing, fault=lambda: 0), "cannot be pickled for a process: "),
        ("batch", source(Wanderer), "has no step_batch: --policy-wrapper batch cannot serve it"),
        ("torch", source(Wanderer), "has no torch network: --policy-wrapper torch cannot serve it"),
        ("serial", source(Wanderer, other=1), "cannot be made: TypeError: "),
    ],
)
def test_a_policy_that_cannot_be_made_or_stepped_is_refused_in_one_line(
    name: StepperName, played: PolicySource, message: str
) -> None:
    with pytest.raises(StepperError) as caught:
        PolicyStepper(name, jobs=1).check(played)
    assert f"policy {played.name!r} {message}" in str(caught.value)
    assert "\n" not in str(caught.value)
