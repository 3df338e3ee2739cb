"""What the first replies show of a server; its slots, and whether its models stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from ollama_utils.checkup import check_context, check_reply
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.ollama import OllamaClient
from ollama_utils.server_checks import (
    ServerUnderTest,
    check_memory,
    check_slots,
)
from ollama_utils.types import Call, Completion
from simulator.process import EmbeddedServer
from simulator.settings import Settings


def test_a_first_rewording_that_is_cut_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    cut = Completion(text="So.", truncated=True)
    check_reply("target", cut)
    assert not capsys.readouterr().err
    check_reply("mutator", cut)
    assert "--rewrite-num-predict" in capsys.readouterr().err


@pytest.mark.parametrize("wire", ["ollama", "openai"])
def test_a_prompt_that_will_not_fit_is_a_line_and_one_that_will_is_none(
    wire: str, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    host = f"openai:{simulator.host}/v1" if wire == "openai" else simulator.host
    call = Call(model="sim-target", prompt="Why?", options={"num_predict": 1000})
    with Dispatcher([host]) as dispatcher:
        reply = dispatcher.generate(call)
        for tokens, is_said in ((3000, False), (3200, True)):  # of a context of 4,096
            check_context(dispatcher, call, reply, "long" * tokens)
            says = f"the context of 'sim-target' at {host} (4,096)"
            assert (says in capsys.readouterr().err) == is_said


@contextmanager
def _tested(host: str, **more: Any) -> Iterator[ServerUnderTest]:
    with closing(OllamaClient(host)) as client:
        yield ServerUnderTest(name=host, client=client, target="sim-target", **more)


def test_slots_are_measured() -> None:
    settings = Settings(slots=4, reply_tokens="24")  # 100 ms: not hidden by a busy machine
    with EmbeddedServer(settings) as server, _tested(server.host) as tested:
        check_slots(tested)
    assert tested.slots is not None
    assert 2 <= tested.slots <= 8


@pytest.mark.parametrize(
    ("load_s", "room", "embedding", "displaced"),
    [
        (0.0, 2, "sim-embed", 1),  # the list of those in memory shows one that had to leave
        (0.2, 1, None, 2),  # loads show all but those that embed
    ],
)
def test_models_without_room_for_all_displace_each_other(
    load_s: float, room: int, embedding: str | None, displaced: int
) -> None:
    models = ("sim-target", "sim-mutator", *filter(None, [embedding]))
    settings = Settings(reply_tokens="1", load_s=load_s, max_loaded_models=room)
    with (
        EmbeddedServer(settings) as server,
        _tested(server.host, models=models, embedding=embedding) as tested,
    ):
        found = check_memory(tested)
    assert found.verdict == "does not"
    assert len(found.numbers["displaced"]) == displaced
    assert found.numbers["load_s"] >= load_s
    assert f"OLLAMA_MAX_LOADED_MODELS={len(models)}" in (found.do or "")
    assert tested.sent == 2 * len(models)
