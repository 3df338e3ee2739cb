"""What the first replies show of a server; its slots, and whether its models stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from ollama_utils.checkup import check_context, check_reply
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadReplyError, BadRequestError, ModelMissingError, OllamaError
from ollama_utils.ollama import OllamaClient
from ollama_utils.server_checks import (
    NOT_ANSWERED,
    ServerUnderTest,
    check_memory,
    check_slots,
    run_checks,
)
from ollama_utils.types import Call, Completion, Role
from records.errors import UserError
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.scripted import SAID, ScriptedServer


def _refused() -> OllamaError:
    error = BadRequestError("another key")
    error.status = 401
    return error


@pytest.mark.parametrize("error", [ModelMissingError("run 'ollama pull m'"), _refused()])
def test_without_its_model_or_key_a_run_does_not_begin(
    error: OllamaError, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = Completion(text="", error=error)
    with pytest.raises(UserError, match=str(error)):
        check_reply("target", reply)
    assert not capsys.readouterr().err
    check_reply("target", reply, required=False)
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("role", "reply", "word"),
    [
        ("target", Completion(text="", error=BadReplyError("no text")), "no text"),
        ("mutator", Completion(text="So.", truncated=True), "--rewrite-num-predict"),
        ("target", Completion(text="So.", truncated=True), None),
        ("judge", Completion(text="Yes."), None),
    ],
)
def test_what_is_wrong_with_a_first_reply_is_a_line(
    role: Role, reply: Completion, word: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    check_reply(role, reply)
    said = capsys.readouterr().err
    assert bool(said) == (word is not None)
    assert (word or "") in said


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


def test_a_server_that_is_gone_is_called_no_more() -> None:
    with _tested("http://127.0.0.1:9") as tested:
        run_checks(tested)
    assert tested.sent == 0
    assert "the call failed" in tested.findings[0].seen
    assert all(found == NOT_ANSWERED for found in tested.findings[1:])


@pytest.mark.parametrize("slots", [1, 4])
def test_slots_are_measured(slots: int) -> None:
    settings = Settings(slots=slots, reply_tokens="24")  # 100 ms: not hidden by a busy machine
    with EmbeddedServer(settings) as server, _tested(server.host) as tested:
        check_slots(tested)
    assert tested.slots is not None
    assert slots / 2 <= tested.slots <= 2 * slots


@pytest.mark.parametrize(
    ("load_s", "room", "embedding", "displaced"),
    [
        (0.0, 0, "sim-embed", 0),  # the list of those in memory shows one model that had to leave
        (0.0, 2, "sim-embed", 1),
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
    assert len(found.numbers["displaced"]) == displaced
    assert found.verdict == ("does not" if displaced else "holds")
    assert found.numbers["load_s"] >= load_s
    assert (f"OLLAMA_MAX_LOADED_MODELS={len(models)}" in (found.do or "")) == bool(displaced)
    assert tested.sent == 2 * len(models)


def test_of_a_server_that_says_nothing_of_memory_and_time_nothing_is_said() -> None:
    said = SAID | {"version": "1"}
    with (
        ScriptedServer(lambda body: (200, said if body else {"models": 7})) as server,
        _tested(server.host, models=("a", "b")) as tested,
    ):
        assert check_memory(tested).verdict == "cannot say"
