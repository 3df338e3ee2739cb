"""Each fault alone: one that passes gives the same text, one that stays its error."""

from __future__ import annotations

import numpy as np
import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import make_encoder
from ollama_utils.errors import EncodingError, OllamaError
from ollama_utils.types import Call, Completion
from simulator.process import EmbeddedServer
from tests.ollama_utils.fault_cases import ANY_CALL, WORDS, Fault, cases, patience_s

# Drawn at random, as far as the client can tell: such a call is sent again when its reply is empty.
CALL = Call(model="sim-target", prompt="What is tea?")
TEXTS = ("tea", "coffee")


def to(
    server: EmbeddedServer, error: type[OllamaError], *, attempts: int, late_s: float = 0.1
) -> Dispatcher:
    """A dispatcher that loses no time, with a timeout that suits the fault."""
    timeout_s = patience_s(error, late_s)
    return Dispatcher(
        [server.host], max_outage_s=None, attempts=attempts, timeout_s=timeout_s, backoff_s=0.001
    )


@pytest.fixture
def reply(quick: Dispatcher) -> Completion:
    """The reply of a server without faults."""
    return quick.generate(CALL)


@pytest.mark.parametrize(("fault", "error"), cases(WORDS))
def test_a_fault_of_the_first_attempt_leaves_the_reply_as_it_is_without_it(
    server: EmbeddedServer, reply: Completion, fault: Fault, error: type[OllamaError]
) -> None:
    server.set_faults([fault | {"rate": 1, "first": 1}])
    with to(server, error, attempts=8) as dispatcher:
        completion = dispatcher.generate(CALL)
        account = dispatcher.accounts()["sim-target"]
    assert (completion.text, completion.error) == (reply.text, None)
    assert completion.attempts == account.calls == 1 + account.failures > 1
    assert server.stats()["faults"] == {fault["kind"]: 1}


@pytest.mark.parametrize(("fault", "error"), cases(WORDS, with_enormous=True))
def test_a_fault_of_every_attempt_is_a_completion_with_its_error(
    server: EmbeddedServer, fault: Fault, error: type[OllamaError]
) -> None:
    server.set_faults([fault | {"rate": 1}])
    with to(server, error, attempts=2, late_s=0.05) as dispatcher:
        completion = dispatcher.generate(CALL)
    assert (completion.text, completion.attempts, completion.usage) == ("", 2, None)
    assert type(completion.error) is error
    assert "\n" not in str(completion.error)
    assert server.host in str(completion.error)


@pytest.mark.parametrize(("fault", "error"), cases(ANY_CALL))
def test_embeddings_come_after_a_fault_of_the_first_attempt(
    server: EmbeddedServer, quick: Dispatcher, fault: Fault, error: type[OllamaError]
) -> None:
    expected = make_encoder("ollama:sim-embed", quick).encode(TEXTS)
    with to(server, error, attempts=8) as dispatcher:
        encoder = make_encoder("ollama:sim-embed", dispatcher)
        server.set_faults([fault | {"rate": 1, "first": 1}])
        np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    assert server.stats()["faults"] == {fault["kind"]: 1}


@pytest.mark.parametrize(("fault", "error"), cases(ANY_CALL))
def test_texts_whose_every_embedding_fails_are_an_encoding_error_with_the_cause(
    server: EmbeddedServer, fault: Fault, error: type[OllamaError]
) -> None:
    with to(server, error, attempts=3, late_s=0.05) as dispatcher:
        encoder = make_encoder("ollama:sim-embed", dispatcher)
        server.set_faults([fault | {"rate": 1}])
        with pytest.raises(EncodingError) as caught:
            encoder.encode(TEXTS)
    assert {place: type(cause) for place, cause in caught.value.failures.items()} == {
        0: error,
        1: error,
    }


def test_a_reply_that_is_late_but_in_time_is_the_reply(
    server: EmbeddedServer, reply: Completion
) -> None:
    server.set_faults([{"kind": "late", "rate": 1, "seconds": 0.05}])
    with Dispatcher([server.host], max_outage_s=None, attempts=1) as dispatcher:
        completion = dispatcher.generate(CALL)
    assert (completion.text, completion.error, completion.attempts) == (reply.text, None, 1)
    assert server.stats()["failed"] == 0


def test_a_reply_of_megabytes_within_the_bound_is_the_reply(server: EmbeddedServer) -> None:
    """Its text is cut where `max_reply_chars` says, and flagged."""
    server.set_faults([{"kind": "garbage", "what": "enormous", "rate": 1, "bytes": 4_000_000}])
    with Dispatcher([server.host], max_outage_s=None, attempts=1) as dispatcher:
        completion = dispatcher.generate(CALL)
    assert (len(completion.text), completion.truncated, completion.error) == (1_000_000, True, None)
    with Dispatcher([server.host], attempts=1, max_reply_chars=2**25) as dispatcher:
        completion = dispatcher.generate(CALL)
        rows = dispatcher.embed("sim-embed", TEXTS)
    assert completion.error is None
    assert len(completion.text) >= 4_000_000
    assert rows.shape[0] == len(TEXTS)


def test_a_connection_that_ends_after_the_reply_costs_this_call_nothing(
    server: EmbeddedServer, reply: Completion
) -> None:
    server.set_faults([{"kind": "drop", "rate": 1, "at": "after"}])
    with Dispatcher([server.host], max_outage_s=None, attempts=4, backoff_s=0.001) as dispatcher:
        for _ in range(5):
            assert dispatcher.generate(CALL).text == reply.text
            assert dispatcher.embed("sim-embed", TEXTS).shape[0] == len(TEXTS)
    assert server.stats()["failed"] == 0


def test_failures_in_a_row_outlast_the_attempts_that_are_fewer_and_no_others(
    server: EmbeddedServer, reply: Completion
) -> None:
    faults = [{"kind": "status", "status": 503, "rate": 1, "first": 3}]
    for attempts, text in ((3, ""), (4, reply.text)):
        server.set_faults(faults)
        with Dispatcher(
            [server.host], max_outage_s=None, attempts=attempts, backoff_s=0.001
        ) as dispatcher:
            assert dispatcher.generate(CALL).text == text
