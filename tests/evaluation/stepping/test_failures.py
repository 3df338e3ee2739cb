"""What goes wrong with one policy stays with it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from evaluation.errors import (
    PolicyActionError,
    PolicyBusyError,
    PolicyError,
    PolicyExitError,
    PolicyTimeoutError,
    RemotePolicyError,
    StepperClosedError,
    WorkerDiedError,
)
from evaluation.policies.policy import PolicySource
from evaluation.stepping import MEASURED_STEPS, PolicyStepper
from tests.evaluation import policies_for_tests as policies
from tests.evaluation.network_policies import Likeliest, Networked
from tests.evaluation.policies_for_tests import DIMENSION, Failing, Source, Together, Wanderer, source
from tests.evaluation.stepping.playing import failures, play, play_episode, step, stepper_of, view

STEPPERS = ("serial", "thread", "process", "auto")
DEADLINE_MS = 400.0


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Let policies that hang go at the end."""
    policies.release.clear()
    yield
    policies.release.set()


def beside(failing: PolicySource) -> list[PolicySource]:
    return [failing, source(Wanderer), source(Wanderer)]


@pytest.mark.parametrize("name", STEPPERS)
def test_an_error_of_a_policy_reaches_its_own_agent_with_the_traceback_of_where_it_was_raised(
    stepper: PolicyStepper,
) -> None:
    outcomes = play(stepper, beside(source(Failing, fault=policies.raise_value_error)))
    found = failures(outcomes)
    assert found.keys() == {(episode, 0, 1) for episode in range(3)}
    for error in found.values():
        assert repr(error) == "ValueError('the fault of this policy')"
        assert "in raise_value_error" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("name", STEPPERS)
def test_a_policy_that_cannot_be_made_fails_in_each_step_and_no_other_does(stepper: PolicyStepper) -> None:
    found = failures([play_episode(stepper, beside(source(Wanderer, stranger=1)), steps=2)])
    assert found.keys() == {(0, 0, 0), (0, 0, 1)}
    assert all("stranger" in str(error) for error in found.values())


@pytest.mark.parametrize("name", STEPPERS)
def test_an_action_that_is_no_mutators_number_is_an_error_with_the_policys_name_and_the_value(
    stepper: PolicyStepper,
) -> None:
    actions: list[object] = [7, -1, 1.0, True, None, "noop", np.bool_(1), np.array([1, 2])]
    choosers = [source(policies.Chooser, action=action) for action in actions]
    found = play_episode(stepper, choosers, steps=1)
    for action, (error,) in zip(actions, found, strict=True):
        assert isinstance(error, PolicyActionError)
        assert str(error) == f"policy 'Chooser' chose {action!r}; expected an integer from 0 to 6"


def test_an_integer_of_numpy_or_torch_is_an_action() -> None:
    actions = (np.int64(3), np.uint8(3), np.array(3), torch.tensor(3))
    choosers = [source(policies.Chooser, action=action) for action in actions]
    with stepper_of("serial") as stepper:
        assert play_episode(stepper, choosers, steps=1) == [[3]] * 4


@pytest.mark.parametrize("name", STEPPERS)
def test_a_policy_cannot_end_the_evaluation_by_an_exit(stepper: PolicyStepper) -> None:
    found = failures([play_episode(stepper, beside(source(Failing, fault=policies.leave)))])
    assert {seat: type(error) for seat, error in found.items()} == {(0, 0, 1): PolicyExitError}


@pytest.mark.parametrize("name", STEPPERS)
def test_a_step_that_overruns_its_deadline_spoils_no_other_policys(name: str) -> None:
    with stepper_of("serial") as stepper:
        expected = play(stepper, [source(Wanderer)] * 3)
    with stepper_of(name, jobs=2, action_timeout_ms=DEADLINE_MS) as stepper:
        outcomes = play(stepper, beside(source(Failing, fault=policies.hang)))
    late = failures(outcomes)
    assert {(episode, 0, 1) for episode in range(3)} <= late.keys()
    assert {agent for _, agent, _ in late} == {0}
    assert [episode[1:] for episode in outcomes] == [episode[1:] for episode in expected]
    assert all(isinstance(late[episode, 0, 1], PolicyTimeoutError) for episode in range(3))
    assert str(late[0, 0, 1]) == "policy 'Failing' took longer than 400 ms over one step"


@pytest.mark.parametrize("name", ["serial", "thread", "auto"])
def test_a_policy_that_hangs_is_not_stepped_again_while_it_does(name: str) -> None:
    with stepper_of(name, action_timeout_ms=DEADLINE_MS) as stepper:
        hanging = source(Failing, fault=policies.hang, at=MEASURED_STEPS - 1)  # auto picks a way thereupon
        ((*sound, late, again),) = play_episode(stepper, [hanging], steps=MEASURED_STEPS + 1)
    assert all(isinstance(action, int) for action in sound)
    assert isinstance(late, PolicyTimeoutError)
    assert isinstance(again, PolicyBusyError)


@pytest.mark.parametrize("fault", [policies.raise_value_error, policies.hang])
def test_auto_measures_steps_that_fail_and_picks_a_way_for_them_too(fault: Callable[[], int]) -> None:
    failing = source(Failing, fault=fault, at=0)
    with stepper_of("auto", action_timeout_ms=DEADLINE_MS) as stepper:
        for episode in range(MEASURED_STEPS):
            assert stepper.picks.pick_of("Failing") is None
            assert failures([play_episode(stepper, [failing], episode=episode, steps=1)])
        assert stepper.picks.pick_of("Failing") is not None


def test_the_deadline_of_a_step_does_not_run_while_it_queues() -> None:
    with stepper_of("thread", jobs=1, action_timeout_ms=1000) as stepper:
        outcomes = play_episode(stepper, [source(policies.Waiting)] * 100, steps=1)
    assert not failures([outcomes])


@pytest.mark.parametrize("fault", [policies.die, policies.hang])
def test_policies_that_shared_a_process_with_one_that_died_go_on_in_another_as_if_nothing_had_been(
    fault: object,
) -> None:
    sources = [source(Wanderer), source(Failing, fault=fault, agent=1, at=2), source(Wanderer)]
    with stepper_of("serial") as stepper:
        expected = play_episode(stepper, [source(Wanderer)] * 3, steps=5)
    with stepper_of("process", jobs=1, action_timeout_ms=DEADLINE_MS) as stepper:
        found = play_episode(stepper, sources, steps=5)
    assert [found[0], found[2]] == [expected[0], expected[2]]
    error = found[1][2]
    if fault is policies.die:
        assert isinstance(error, WorkerDiedError)
        assert str(error) == "policy 'Failing' ended its process (exit code 9)"
    else:
        assert isinstance(error, PolicyTimeoutError)


def test_an_exception_that_cannot_be_pickled_comes_from_its_process_as_its_traceback(
    processes: PolicyStepper,
) -> None:
    ((_, error),) = play_episode(processes, [source(Failing, fault=policies.raise_odd_error)], steps=2)
    assert isinstance(error, RemotePolicyError)
    assert "OddError: odd" in str(error)
    assert "in raise_odd_error" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 1], "policy 'BadTogether' gave 2 actions for 3 views; expected one each"),
        ([0, 1, 9], "policy 'BadTogether' chose 9; expected an integer from 0 to 6"),
    ],
)
def test_a_batch_of_the_wrong_length_fails_whole_and_a_wrong_action_in_it_alone(
    actions: list[int], message: str
) -> None:
    with stepper_of("batch") as stepper:
        found = play_episode(stepper, [source(policies.BadTogether, actions=actions)] * 3, steps=1)
    errors = [error for (error,) in found if isinstance(error, PolicyError)]
    assert {str(error) for error in errors} == {message}
    assert len(errors) == (3 if len(actions) < 3 else 1)


def test_the_deadline_of_a_batch_is_that_of_the_whole_call() -> None:
    class Hanging(Together):
        def step_batch(self, _views: object) -> list[int]:
            return [policies.hang()]

    sources = [source(Hanging), source(Hanging), source(Together)]
    sources[1] = sources[0]
    with stepper_of("batch", action_timeout_ms=DEADLINE_MS) as stepper:
        first, second, third = play_episode(stepper, sources, steps=1)
    assert isinstance(first[0], PolicyTimeoutError)
    assert isinstance(second[0], PolicyTimeoutError)
    assert isinstance(third[0], int)


def test_a_forward_pass_that_hangs_fails_its_views_and_the_next_one_goes_on() -> None:
    class Stuck(Likeliest):
        def choose(self, _scores: object, _view: object) -> int:
            return policies.hang()

    with stepper_of("torch", action_timeout_ms=DEADLINE_MS) as stepper:
        stuck = stepper.begin([source(Likeliest), source(Stuck)], [0, 1])
        late = step(stuck, view(0), view(1))
        assert [type(each) for each in late] == [PolicyTimeoutError] * 2
        assert not failures([play_episode(stepper, [source(Likeliest)])])


def test_an_observation_that_a_network_cannot_take_spoils_no_view_beside_it() -> None:
    with stepper_of("torch") as stepper:
        beside = stepper.begin([source(Networked)] * 3, [0, 1, 2])
        views = [view(0), view(1), view(2)]
        views[1].observation[:] = 1e7
        first, bad, last = step(beside, *views)
        assert isinstance(bad, ValueError)
        assert "out of all bounds" in str(bad)
    with stepper_of("torch") as stepper:
        beside = stepper.begin([source(Networked)] * 3, [0, 1, 2])
        assert step(beside, view(0), view(2)) == [first, last]


def test_scores_that_are_not_numbers_and_those_of_a_wrong_shape_are_errors() -> None:
    class Flat(torch.nn.Module):
        def __init__(self, scores: torch.Tensor) -> None:
            super().__init__()
            self.scores = scores

        def forward(self, _observations: torch.Tensor) -> torch.Tensor:
            return self.scores

    class Odd(Wanderer):
        def __init__(self, seed: int, scores: torch.Tensor) -> None:
            super().__init__(seed)
            self.network = Flat(scores)

    for scores, message in (
        (torch.full((16, 7), torch.nan), "scores that are not numbers"),
        (torch.zeros(DIMENSION), r"shape \(24,\); expected \(16, mutators\)"),
        (torch.zeros(16, 9) + torch.arange(9), "chose 8"),
    ):
        with stepper_of("torch") as stepper:
            (error,) = step(stepper.begin([source(Odd, scores=scores)], [0]), view())
        assert isinstance(error, PolicyError)
        assert re.search(message, str(error))


def test_after_the_end_of_the_evaluation_no_policy_steps_in_a_process() -> None:
    with stepper_of("process", action_timeout_ms=60_000) as stepper:
        ended = stepper.begin([Source(name="played", make_policy=Wanderer)], [0])
    (error,) = step(ended, view())
    assert isinstance(error, StepperClosedError)
    assert "'played'" in str(error)
