"""The connection of a command: an embedded server that dies is told of at once, in words of its own."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ollama_utils.connect import EMBEDDED, ServerConfig, SimulatorConfig, connect
from ollama_utils.errors import OutageError
from ollama_utils.types import Call
from records.errors import UserError
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer


def test_an_embedded_simulator_that_dies_is_started_again_and_no_call_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ollama_utils.health._FEW", 1)  # calls back off before each further absence
    with connect(ServerConfig(ollama_host=(EMBEDDED,))) as connection:
        embedded, dispatcher = connection.embedded, connection.dispatcher
        assert embedded is not None
        call = Call(model="sim-target", prompt="How?", options={"seed": 1})
        before = dispatcher.generate(call).text
        for _ in range(3):
            embedded.kill()
            assert dispatcher.generate(Call(model="sim-target", prompt="Why?")).error is None
        assert dispatcher.generate(call).text == before
        embedded.kill()
        with pytest.raises(OutageError, match=r"the embedded simulator .* has ended"):
            dispatcher.generate(Call(model="sim-target", prompt="When?"))
    assert "started again, 3 of 3" in capsys.readouterr().err


def refused(**told: object) -> str:
    """The error of a connection that cannot be opened."""
    with pytest.raises(UserError) as caught, connect(ServerConfig(**told)):  # type: ignore[arg-type]
        pass
    return str(caught.value)


def test_a_mistyped_model_is_told_the_near_one(simulator: EmbeddedServer) -> None:
    says = refused(ollama_host=(simulator.host,), target_model="sim-solvr")
    assert "did you mean 'sim-solver'? if not, run 'ollama pull sim-solvr'" in says
    says = refused(ollama_host=(EMBEDDED,), target_model="sim-solvr")
    assert says.endswith("did you mean 'sim-solver'?")


def test_a_model_that_no_other_is_near_is_to_be_pulled(simulator: EmbeddedServer) -> None:
    says = refused(ollama_host=(simulator.host,), target_model="llama3.2")
    assert says.endswith(": run 'ollama pull llama3.2'")
    assert "it has sim-" in refused(ollama_host=(EMBEDDED,), target_model="llama3.2")


def test_a_host_that_is_near_the_word_embedded_is_told_the_word() -> None:
    assert refused(ollama_host=("embeded",), target_model="x").endswith(
        "; did you mean 'embedded'?"
    )
    assert "embedded" not in refused(ollama_host=("http://127.0.0.1:1",), target_model="x")


def test_what_an_openai_server_lacks_is_told_without_a_word_of_ollama(
    simulator: EmbeddedServer,
) -> None:
    host = f"openai:{simulator.host}"
    says = refused(ollama_host=(host,), target_model="sim-solvr")
    assert "is not at openai:" in says
    assert says.endswith("did you mean 'sim-solver'?")
    for says in (
        refused(ollama_host=(host,), target_model="llama3.2"),
        refused(ollama_host=(host,)),
        refused(ollama_host=("openai:http://127.0.0.1:1/v1",)),
    ):
        assert "ollama pull" not in says
        assert "ollama serve" not in says


def test_a_list_of_models_without_end_is_told_in_part() -> None:
    many = {"data": [{"id": f"{k}{'a' * 50_000}"} for k in range(100)]}
    with ScriptedServer(lambda _: (200, many)) as server:
        assert len(refused(ollama_host=(f"openai:{server.host}",))) < 3000
        assert len(refused(ollama_host=(f"openai:{server.host}",), target_model="x")) < 3000


def test_a_server_that_never_lists_its_models_is_said_to_be_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ollama_utils.connect._SLOW_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "did not answer within 0.5 s" in refused(ollama_host=(host,), call_timeout_s=0.5)
    assert f"waiting for {host} to list its models, for up to 0.5 s" in capsys.readouterr().err


def test_a_host_in_a_note_is_harmless_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    refused(
        ollama_host=("http://127.0.0.1:1/\x9b31m\u202e",), simulator=SimulatorConfig(time_scale=0.5)
    )
    line = capsys.readouterr().err.rstrip("\n")
    assert line.startswith("note: ")
    assert line.isprintable()


def test_the_only_model_of_an_openai_server_is_the_target() -> None:
    only = {"data": [{"id": "tiny"}]}
    with (
        ScriptedServer(lambda _: (200, only)) as server,
        connect(ServerConfig(ollama_host=(f"openai:{server.host}",))) as connection,
    ):
        assert (connection.roles.target, connection.roles.mutator) == ("tiny", "tiny")
        assert not connection.simulated


def test_the_simulator_is_known_behind_either_wire(simulator: EmbeddedServer) -> None:
    for host in (simulator.host, f"openai:{simulator.host}"):
        with connect(ServerConfig(ollama_host=(host,), target_model="sim-target")) as connection:
            assert connection.simulated


def ollama(**capabilities: list[str] | None) -> ScriptedServer:
    """An Ollama server with these models, which says of each what it can do; None: an old one does not."""
    listed = {"models": [{"model": f"{name}:latest", "digest": name} for name in capabilities]}

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        name = body.get("model", "").removesuffix(":latest")
        able = capabilities.get(name)
        told = {"model_info": {}, **({"capabilities": able} if able else {})}
        return (200, told) if name else (200, listed)

    return ScriptedServer(answer)


@pytest.mark.parametrize("able", [["completion", "tools"], None], ids=["told", "an old server"])
def test_the_only_model_that_is_pulled_is_taken_and_named(
    able: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        ollama(tiny=able, embed=["embedding"]) as server,
        connect(ServerConfig(ollama_host=(server.host,))) as connection,
    ):
        assert (connection.roles.target, connection.roles.mutator) == ("tiny", "tiny")
        assert connection.roles_of(ServerConfig()).target == "tiny"
        assert f"target model: tiny, the only one at {server.host}\n" in capsys.readouterr().err
        with connect(ServerConfig(ollama_host=(server.host,)), named_by="--judge-model"):
            assert f"judge model: tiny, the only one at {server.host}\n" in capsys.readouterr().err


def test_where_there_are_several_they_are_listed_with_the_flag_that_chooses() -> None:
    with ollama(tiny=["completion"], embed=["embedding"], large=["completion", "vision"]) as server:
        says = refused(ollama_host=(server.host,))
        assert says == f"name a model, as in --target-model tiny; {server.host} has 2: tiny, large"
    with ollama(embed=["embedding"]) as server:
        says = refused(ollama_host=(server.host,))
        assert says.endswith(
            "no model that writes replies, but embed:latest, which only embeds: get one with "
            "'ollama pull MODEL'"
        )
