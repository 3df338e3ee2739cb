"""Servers behind Ray actors: the same runs, and an actor that is killed costs nothing."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from ollama_utils.connect import ServerConfig, connect
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError, CallTimeoutError, ModelMissingError
from ollama_utils.ray_client import Failure, Nodes, RayClient, RayEngine, ServerActor, joined_ray
from ollama_utils.types import Call, Completion, short_name
from records.errors import UserError
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.threads import wait_until
from tests.runs import PASSES, WORLD, interrupted_at, read, resume, summary

installed = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="the extra ray is not installed: pip install 'mutagym[ray]'",
)
NODES = Nodes({"a": ("gpu1.lab", "10.0.0.1"), "b": ("gpu2.lab", "10.0.0.2")}, own="a")
HASHES = ("transitions_sha256", "weights_sha256")


@pytest.fixture(scope="module")
def ray() -> Iterator[RayEngine]:
    """One cluster of this machine for all tests; commands join it."""
    handler = signal.getsignal(signal.SIGTERM)
    with joined_ray(None) as engine:
        assert signal.getsignal(signal.SIGTERM) is handler  # a run that is stopped by it is saved
        yield engine


@pytest.fixture(scope="module")
def four() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        settings = Settings(slots=4, time_scale=0.02)
        yield [stack.enter_context(EmbeddedServer(settings)) for _ in range(4)]


def train(servers: list[EmbeddedServer], folder: Path, *flags: str) -> int:
    hosts = [word for server in servers for word in ("--ollama-host", server.host)]
    shape = (
        "--num-processes",
        "16",
        "--num-steps",
        "16",
        "--num-env-steps",
        "512",
        "--encoder",
        "hashing",
    )
    return execute(("train", *hosts, *WORLD, *PASSES, *shape, "--run-dir", str(folder), *flags))


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    config = ServerConfig(ollama_host=("embedded",), engine="ray")
    with pytest.raises(UserError, match=r"pip install 'mutagym\[ray\]'"), connect(config):
        pass


@installed
@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "'127.0.0.1:1' cannot be joined.*refused"),
        ("head:none", "'head:none' cannot be joined"),
        ("ray://head:10001", "expected a Ray cluster that this machine is a node of"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_one_line(address: str, why: str) -> None:
    config = ServerConfig(ollama_host=("http://127.0.0.1:1",), engine="ray", ray_address=address)
    with pytest.raises(UserError, match=why), connect(config):
        pass


@pytest.mark.parametrize(
    ("url", "node"),
    [
        ("http://127.0.0.1:11434", "a"),
        ("http://localhost:11434", "a"),
        ("http://gpu2:11434", "b"),
        ("http://gpu2.lab:11434", "b"),
        ("openai:http://10.0.0.2:8000/v1", "b"),
        ("http://gpu2.localhost:11434", "b"),
        ("http://10.0.0.9:11434", None),
    ],
)
def test_an_actor_goes_to_its_servers_machine(url: str, node: str | None) -> None:
    assert NODES.near(url) == node


def test_a_node_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no Ray node has the name 'gpu3'.*gpu1\.lab, gpu2\.lab"):
        NODES.near("http://gpu3.localhost:11434")


def test_a_nodes_loopback_is_named_after_the_node() -> None:
    assert NODES.seen_from_there("http://gpu1.localhost:11434") == "http://127.0.0.1:11434"
    assert (
        NODES.seen_from_there("openai:http://gpu1.localhost:8000") == "openai:http://127.0.0.1:8000"
    )
    assert NODES.seen_from_there("http://gpu1:11434") == "http://gpu1:11434"


def test_what_calls_wait_in_the_servers_queue_is_no_fault_of_their_replies() -> None:
    """A reply takes a quarter of the time that it may take: six in a row take longer than that."""
    with EmbeddedServer(Settings(slots=1, time_scale=2.0, reply_tokens="50")) as server:
        alone_s = timed_reply_s(server)
        actor = ServerActor(server.host, timeout_s=4 * alone_s)
        replies: list[object] = []

        def ask(number: int) -> None:
            call = Call(model="sim-target", prompt=f"question {number}", options={"seed": number})
            replies.append(actor.ask("generate", call))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for begun, thread in enumerate(threads, start=1):
            thread.start()
            wait_until(partial(has_seen, server, begun, replies))
        for thread in threads:
            thread.join()
        actor.close()
    assert [type(reply) for reply in replies] == [Completion] * 6


def has_seen(server: EmbeddedServer, calls: int, replies: list[object]) -> bool:
    """Whether so many calls have come to the server, those included that it has answered."""
    under_way: int = server.stats()["in_flight"]
    return under_way + len(replies) >= calls


def timed_reply_s(server: EmbeddedServer) -> float:
    """The seconds of a reply to one call alone, by the server's own timings, the model loaded."""
    with Dispatcher([server.host], memory_bytes=0) as dispatcher:
        call = Call(model="sim-target", prompt="question", options={"seed": 9})
        dispatcher.generate(call)
        usage = dispatcher.generate(call).usage
    assert usage is not None
    return usage.total_s


def test_an_actor_returns_its_errors_as_they_are(simulator: EmbeddedServer) -> None:
    actor = ServerActor(simulator.host, timeout_s=5.0)
    found = actor.ask("generate", Call(model="none", prompt="a question"))
    actor.close()
    assert isinstance(found, Failure)
    assert type(found.error) is ModelMissingError
    assert not found.error.retryable


@installed
@pytest.mark.slow
def test_four_actors_give_the_run_of_one_process(
    ray: RayEngine, four: list[EmbeddedServer], tmp_path: Path
) -> None:
    del ray
    for engine in ("threads", "ray"):
        assert train(four, tmp_path / engine, "--engine", engine) == 0
    told = [summary(tmp_path / engine) for engine in ("threads", "ray")]
    assert [told[0][name] for name in HASHES] == [told[1][name] for name in HASHES]
    assert told[1]["simulated"]


@installed
@pytest.mark.slow
def test_killing_actors_in_mid_run_changes_nothing(
    ray: RayEngine, four: list[EmbeddedServer], tmp_path: Path
) -> None:
    del ray
    killed: list[int] = []

    def kill_at(written: int) -> None:
        path = tmp_path / "killed" / "transitions.jsonl"
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= written)
        actors = pids_of_actors()
        for pid in actors[:3]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    killer = threading.Thread(target=kill_at, args=(100,))
    killer.start()
    assert train(four, tmp_path / "killed", "--engine", "ray") == 0
    killer.join()
    assert len(killed) == 3
    assert train(four, tmp_path / "whole") == 0
    whole, told = summary(tmp_path / "whole"), summary(tmp_path / "killed")
    assert [told[name] for name in HASHES] == [whole[name] for name in HASHES]
    assert told["unscored_steps"] == 0


@installed
@pytest.mark.slow
def test_a_run_that_was_stopped_under_ray_goes_on_without_it(
    ray: RayEngine, simulator: EmbeddedServer, tmp_path: Path
) -> None:
    del ray
    shape = (
        "--num-processes",
        "4",
        "--num-steps",
        "32",
        "--num-env-steps",
        "256",
        "--encoder",
        "hashing",
    )
    flags = (*WORLD, *PASSES, *shape)
    interrupted_at(simulator.host, tmp_path / "run", 40, *flags, "--engine", "ray")
    host = ("--ollama-host", simulator.host)
    assert resume(tmp_path / "run", *host, "--engine", "threads") == 0
    assert (
        execute(
            ("train", "--ollama-host", simulator.host, "--run-dir", str(tmp_path / "w"), *flags)
        )
        == 0
    )
    assert summary(tmp_path / "run")["weights_sha256"] == summary(tmp_path / "w")["weights_sha256"]


@installed
@pytest.mark.slow
def test_an_evaluation_is_the_same(
    ray: RayEngine, four: list[EmbeddedServer], tmp_path: Path
) -> None:
    del ray
    hosts = [word for server in four for word in ("--ollama-host", server.host)]
    for engine in ("threads", "ray"):
        flags = (
            *WORLD,
            "--encoder",
            "hashing",
            "-p",
            "random",
            "--episodes",
            "8",
            "--engine",
            engine,
        )
        assert execute(("eval", *hosts, *flags, "--run-dir", str(tmp_path / engine))) == 0
    told = [read(tmp_path / engine, "results.json") for engine in ("threads", "ray")]
    assert told[0] == told[1]


@installed
def test_a_call_under_way_at_a_killed_actor_is_sent_again(ray: RayEngine) -> None:
    clients: list[RayClient] = []

    def opener(host: str, **given: Any) -> RayClient:
        clients.append(ray.open_client(host, **given))
        return clients[-1]

    with (
        EmbeddedServer(Settings(slots=4, time_scale=0.5)) as server,
        Dispatcher([server.host], opener=opener) as dispatcher,
    ):
        before = clients[0].actor_pid()
        dispatcher.servers.models()
        replies: list[Completion] = []
        call = Call(model="sim-target", prompt="a question", options={"temperature": 0})
        asking = threading.Thread(target=lambda: replies.append(dispatcher.generate(call)))
        asking.start()
        wait_until(lambda: server.stats()["in_flight"] > 0)
        os.kill(before, signal.SIGKILL)
        asking.join()
        assert replies[0].error is None
        assert clients[0].actor_pid() != before


@installed
def test_a_server_on_a_nodes_loopback_is_reached_by_the_nodes_name(
    ray: RayEngine, simulator: EmbeddedServer
) -> None:
    port, name = simulator.host.rpartition(":")[2], socket.gethostname().partition(".")[0]
    with Dispatcher([f"http://{name}.localhost:{port}"], opener=ray.open_client) as dispatcher:
        assert "sim-target" in map(short_name, dispatcher.servers.models())
        assert dispatcher.hosts == (f"http://{name.lower()}.localhost:{port}",)


@installed
def test_closing_ends_a_call_under_way(ray: RayEngine) -> None:
    with EmbeddedServer(Settings(slots=1, time_scale=100.0)) as server:
        client = ray.open_client(server.host, timeout_s=600.0)
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                client.generate(Call(model="sim-target", prompt="a question"))
            except CallCancelledError as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: server.stats()["in_flight"] > 0)
        client.close()
        asking.join()
    assert len(failures) == 1


@installed
def test_a_late_reply_is_late_by_the_actors_clock(ray: RayEngine) -> None:
    with EmbeddedServer(Settings(slots=1, time_scale=100.0)) as server:
        client = ray.open_client(server.host, timeout_s=0.2)
        with pytest.raises(CallTimeoutError):
            client.generate(Call(model="sim-target", prompt="a question"))
        client.close()


@installed
def test_an_embedded_server_that_died_is_started_again_under_its_actor(ray: RayEngine) -> None:
    del ray
    config = ServerConfig(ollama_host=("embedded",), engine="ray")
    with connect(config) as connection:
        assert connection.child is not None
        os.kill(connection.child.pid, signal.SIGKILL)
        reply = connection.dispatcher.generate(Call(model="sim-target", prompt="a question"))
        assert reply.error is None
        assert connection.child.restarts == 1


def pids_of_actors() -> list[int]:
    """The processes of the actors that this process, or a node that it started, has started."""
    parents, actors = {}, []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                title = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            parents[int(folder.name)] = int(words[1])
            if title.startswith(b"ray::ServerActor"):
                actors.append(int(folder.name))
    return sorted(pid for pid in actors if parents.get(parents[pid]) == os.getpid())
