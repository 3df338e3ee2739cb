"""Each fault of the simulator alone, in an environment: the step did not happen, and says why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from envs.query_mutation import QueryMutationEnv
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import make_encoder
from ollama_utils.errors import OllamaError
from simulator.process import EmbeddedServer
from tests.envs.worlds import MUTATORS, make_env
from tests.ollama_utils.fault_cases import ANY_CALL, WORDS, Fault, cases, patience_s

NOOP, CONTEXT = (np.int64(MUTATORS.index(name)) for name in ("noop", "add_context"))


@pytest.fixture
def server(simulator: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's simulator, without faults in the end."""
    yield simulator
    simulator.set_faults([])


def check_unscored(env: QueryMutationEnv, action: np.int64, error: type[OllamaError]) -> None:
    """A step that a fault struck leaves the lane as it was, and is no refusal."""
    before, _ = env.reset(seed=4)
    observation, reward, terminated, truncated, info = env.step(action)
    np.testing.assert_array_equal(observation, before)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["outcome"], info["unscored"], info["success"]) == ("unscored", True, False)
    assert info["error"].startswith(f"{error.__name__}: ")


@pytest.mark.parametrize(("fault", "error"), cases(WORDS))
def test_a_step_whose_call_always_fails_is_unscored_with_the_error_s_name(
    server: EmbeddedServer, fault: Fault, error: type[OllamaError]
) -> None:
    with Dispatcher([server.host], attempts=1, timeout_s=patience_s(error), max_outage_s=None) as dispatcher:
        env = make_env(dispatcher, make_encoder("hashing"))
        server.set_faults([fault | {"rate": 1, "model": "sim-target"}])
        check_unscored(env, NOOP, error)
        server.set_faults([fault | {"rate": 1, "model": "sim-mutator"}])
        check_unscored(env, CONTEXT, error)


@pytest.mark.parametrize(("fault", "error"), cases(ANY_CALL))
def test_a_step_whose_rewording_cannot_be_embedded_is_unscored_with_the_error_s_name(
    server: EmbeddedServer, fault: Fault, error: type[OllamaError]
) -> None:
    with Dispatcher(
        [server.host], attempts=3, timeout_s=patience_s(error), backoff_s=0.001, max_outage_s=None
    ) as dispatcher:
        env = make_env(dispatcher, make_encoder("ollama:sim-embed", dispatcher))
        env.reset(seed=4)  # the encoder remembers the query
        server.set_faults([fault | {"rate": 1, "model": "sim-embed"}])
        check_unscored(env, CONTEXT, error)


# Every call of a step has a seed, so an empty reply is the model's word: it is not asked for again.
PASSING = [case for case in WORDS if case[0].get("what") != "empty"]


@pytest.mark.parametrize(("fault", "error"), cases(PASSING))
def test_a_step_whose_first_attempts_fail_is_the_step_without_faults(
    server: EmbeddedServer, fault: Fault, error: type[OllamaError]
) -> None:
    steps = []
    for faults in ([], [fault | {"rate": 1, "first": 1}]):
        server.set_faults(faults)
        with Dispatcher(
            [server.host], attempts=8, timeout_s=patience_s(error), backoff_s=0.001
        ) as dispatcher:
            env = make_env(dispatcher, make_encoder("hashing"))
            env.reset(seed=3)
            steps.append(env.step(CONTEXT))
    (observation, *sane, expected), (again, *struck, info) = steps
    np.testing.assert_array_equal(again, observation)
    assert struck == sane
    names = ("outcome", "mutated_query", "reply", "unscored")
    assert {name: info[name] for name in names} == {name: expected[name] for name in names}
