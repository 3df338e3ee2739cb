"""The connection of a command: which servers, which models, and one line where there are none."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ollama_utils.connect import ServerConfig, SimulatorConfig, connect
from ollama_utils.errors import OutageError
from ollama_utils.hosts import EMBEDDED
from ollama_utils.types import Call
from records.errors import UserError
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer


def refused(**settings: Any) -> str:
    """The error of a connection that cannot be opened."""
    with pytest.raises(UserError) as caught, connect(ServerConfig(**settings)):
        pass
    return str(caught.value)


def ollama(*, digest: str = "1", **capabilities: list[str] | None) -> ScriptedServer:
    """An Ollama server with these models, which says what each can do (None: does not)."""
    models = [{"model": f"{name}:latest", "digest": digest} for name in capabilities]

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "model" not in body:
            return 200, {"models": models}
        able = capabilities.get(body["model"].removesuffix(":latest"))
        return 200, {"model_info": {}, **({"capabilities": able} if able else {})}

    return ScriptedServer(answer)


def test_an_embedded_simulator_that_dies_is_started_again_and_no_call_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulator.process.MOST_RESTARTS", 1)
    with connect(ServerConfig(ollama_host=(EMBEDDED,))) as connection:
        embedded, dispatcher = connection.embedded, connection.dispatcher
        assert embedded is not None
        embedded.kill()
        assert dispatcher.generate(Call(model="sim-target", prompt="Why?")).error is None
        embedded.kill()
        with pytest.raises(OutageError, match=r"the embedded simulator .* has ended"):
            dispatcher.generate(Call(model="sim-target", prompt="When?"))


def test_nothing_named_is_the_simulator_loudly_and_with_the_slots_it_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    with connect(ServerConfig(simulator=SimulatorConfig(slots=3, time_scale=0))) as connection:
        assert capsys.readouterr().err.startswith("SIMULATED: no --ollama-host and no OLLAMA_HOST")
        assert connection.simulated
        assert connection.servers == connection.hosts == (EMBEDDED,)
        assert connection.resolve(ServerConfig()).ollama_host == (EMBEDDED,)
        for model in (connection.roles.target, connection.roles.mutator):
            connection.dispatcher.generate(Call(model=model, prompt="Why?"))
        capacities = connection.dispatcher.servers.capacities()
        assert [found.slots for found in capacities.values()] == [3, 3]


def test_a_server_that_is_started_stands_alone() -> None:
    for child in (EMBEDDED, "smollm2", "gguf:/x.gguf"):
        says = refused(ollama_host=("http://127.0.0.1:1", child))
        assert "cannot stand beside other hosts" in says


def test_a_mistyped_model_is_answered_with_the_near_one(simulator: EmbeddedServer) -> None:
    says = refused(ollama_host=(simulator.host,), target_model="sim-solvr")
    assert says.endswith(": run 'ollama pull sim-solvr'; did you mean 'sim-solver'?")
    for host in (EMBEDDED, f"openai:{simulator.host}"):
        says = refused(ollama_host=(host,), target_model="sim-solvr")
        assert "it has sim-" in says
        assert says.endswith("did you mean 'sim-solver'?")
        assert "ollama pull" not in says


def test_a_server_that_is_slow_to_list_its_models_is_said_to_be_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ollama_utils.connect.SLOW_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "did not answer within 0.5 s" in refused(ollama_host=(host,), call_timeout_s=0.5)
    assert f"waiting for {host} to list its models, for up to 0.5 s" in capsys.readouterr().err


def test_settings_of_the_simulator_that_count_nowhere_are_noted(
    simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    host = f"openai:{simulator.host}"
    unused = SimulatorConfig(time_scale=0.5)
    config = ServerConfig(ollama_host=(host,), target_model="sim-target", simulator=unused)
    with connect(config) as connection:
        assert connection.simulated, "it is known behind either wire"
    assert f"note: {host} ignores what is set" in capsys.readouterr().err


LISTS: list[tuple[str, int, Any, str]] = [
    # The wire, how its list is answered, and why model `m` is not taken; "" where it is.
    ("openai:", 200, {"data": [{"id": "m"}]}, ""),
    ("openai:", 200, ["m", "x"], ""),
    ("openai:", 200, {"models": [{"name": "models/m"}]}, ""),  # Google's
    ("openai:", 200, {"data": [{"id": "*"}, {"id": "x/*"}]}, ""),  # LiteLLM's
    ("openai:", 200, {"data": []}, ""),
    ("openai:", 404, "no such page", ""),
    ("openai:", 401, {"error": "no"}, "is OPENAI_API_KEY set, and right"),
    ("openai:", 200, {"data": [{"id": "x"}]}, "is not at openai:.*: it has x"),
    ("", 200, {"models": [{"name": "m:latest"}]}, ""),
    ("", 200, {"models": []}, "is not pulled at .*: run 'ollama pull m'"),
    ("", 401, {"error": "no"}, "is OLLAMA_API_KEY set, and right"),
]


@pytest.mark.parametrize(("wire", "status", "listed", "why"), LISTS)
def test_a_list_of_models_that_says_nothing_leaves_a_named_model_to_its_first_call(
    wire: str, status: int, listed: Any, why: str
) -> None:
    with ScriptedServer(lambda _: (status, listed)) as server:
        config = ServerConfig(ollama_host=(f"{wire}{server.host}",), target_model="m")
        if why:
            with pytest.raises(UserError, match=why), connect(config):
                pass
            return
        with connect(config) as connection:
            assert connection.roles.target == "m"
        if status == 404:
            says = refused(ollama_host=config.ollama_host)
            assert says.endswith("does not list its models: name one with --target-model")


@pytest.mark.parametrize("able", [["completion", "tools"], None], ids=["new", "an old server"])
def test_the_only_model_that_is_pulled_is_taken_and_named(
    able: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        ollama(tiny=able, embed=["embedding"]) as server,
        connect(ServerConfig(ollama_host=(server.host,))) as connection,
    ):
        assert (connection.roles.target, connection.roles.mutator) == ("tiny", "tiny")
        assert connection.roles_of(ServerConfig()).target == "tiny"
        assert not connection.simulated
        assert f"target model: tiny, the only one at {server.host}\n" in capsys.readouterr().err
        with connect(ServerConfig(ollama_host=(server.host,)), named_by="--judge-model"):
            assert f"judge model: tiny, the only one at {server.host}\n" in capsys.readouterr().err


def test_a_server_without_a_model_that_writes_says_how_to_get_one() -> None:
    with ollama(embed=["embedding"]) as server:
        says = refused(ollama_host=(server.host,))
    assert says.endswith("no model that writes replies: get one with 'ollama pull MODEL'")


def test_the_models_are_those_that_all_servers_have_in_one_version() -> None:
    with (
        ollama(tiny=None, extra=None, digest="a" * 64) as one,
        ollama(tiny=None, digest="b" * 64) as other,
    ):
        hosts = (one.host, one.host, other.host)
        with connect(ServerConfig(ollama_host=hosts, target_model="tiny")) as connection:
            assert list(connection.available) == ["tiny"]
            with pytest.raises(UserError, match="not the same at all hosts") as caught:
                connection.digests("hashing")
        assert f"aaaaaaaaaaaa at {one.host}, bbbbbbbbbbbb at {other.host}" in str(caught.value)
