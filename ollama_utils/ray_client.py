"""`--engine ray`: each server's client lives in a Ray actor near it, on whatever machine that is.

An actor is a server: the dispatcher sees a `ModelClient` (`ollama_utils.wires`) whose methods ask the actor,
which holds the real one. So cache, log, limits, retries and the order of everything stay in one process, and
a run has the same transitions and weights as without Ray. An actor keeps nothing: where its process or its
machine dies, the calls that were under way there fail as with a server that does not answer, and are sent
again; Ray starts it anew meanwhile, on its node or, where that is gone, on another.

Ray (the extra `ray`) is imported when it is asked for.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ollama_utils.errors import CallCancelledError, OllamaError, ServerUnreachableError
from ollama_utils.hosts import is_loopback, server_url
from ollama_utils.http import brief
from ollama_utils.model_client import ModelClient
from ollama_utils.types import Call, Completion, Embeddings, Inventory
from ollama_utils.wires import open_client
from simulator.process import is_simulator

_INSTALL = "pip install 'mutagym[ray]'"
_MOST_AT_ONCE = 512
"""Calls that one actor makes at once, on a thread each; it has the threads from the start, 10 KiB each."""
_STORE_BYTES = 80 * 2**20
"""Ray's object store on this machine, near the least that it takes: replies are small and pass it by."""
_CONNECT_S = 10.0
_LEFT_S = 5.0
"""How long the end waits for calls whose actor was ended: they come back at once."""
_NODE_LOOPBACK = ".localhost"
"""The end of a server's name that is a node's: `http://gpu1.localhost:11434` listens on that node alone."""


class Failure(NamedTuple):
    """An error as an actor's value: Ray would wrap one that is raised, and lose what it holds."""

    error: OllamaError


class ServerActor:
    """What a Ray actor holds: the client of one server, opened with the first call.

    Args:
        host: the server, as the actor's machine reaches it.
        given: what else `open_client` is given.
    """

    def __init__(self, host: str, **given: Any) -> None:  # noqa: ANN401 - see `open_client`
        self._host = host
        self._given = given
        self._lock = threading.Lock()
        self._opened: ModelClient | None = None

    def pid(self) -> int:
        """The number of the actor's process, once it is there."""
        return os.getpid()

    def ask(self, method: str, *args: object, **named: object) -> object:
        """What a method of the client returns, or how it failed."""
        try:
            return getattr(self._client(), method)(*args, **named)
        except OllamaError as error:
            return Failure(error)

    def is_simulator(self) -> bool:
        """Whether the server is the simulator."""
        return is_simulator(server_url(self._host))

    def close(self) -> None:
        """Drop the idle connections; the end of an actor's process does, too."""
        if self._opened is not None:
            self._opened.close()

    def _client(self) -> ModelClient:
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = open_client(self._host, **self._given)
                except ValueError as error:  # this machine's proxy, certificates or key
                    why = f"on {socket.gethostname()}: {error}"
                    raise ServerUnreachableError(why, retryable=False) from error
            return self._opened


class RayClient(ModelClient):
    """One server's client in an actor, shared by all threads.

    Args:
        host: the server, as `--ollama-host` names it.
        nodes: the cluster's machines.
        given: what else `open_client` is given.

    Raises:
        ValueError: the host cannot be read, or names a node that there is not.
    """

    def __init__(self, host: str, *, nodes: Nodes, **given: Any) -> None:  # noqa: ANN401 - see `open_client`
        plain = open_client(host, **given)
        self.host = plain.host
        plain.close()
        self.node = nodes.near(self.host)
        """The Ray node of the server's machine; None: that is no node, and any has the actor."""
        self._there = nodes.seen_from_there(self.host)
        self._given = given
        self._actor: Any = None
        self.is_closed = False
        """Whether no more calls are made."""
        self._waiting = 0
        self._changed = threading.Condition()

    def start(self) -> Any:  # noqa: ANN401 - Ray's handle
        """The actor, which comes up in the background if it was not started yet."""
        with self._changed:
            if self._actor is None:
                self._actor = _start_actor(self._there, self._given, self.node)
            return self._actor

    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """See `ModelClient`; ServerUnreachableError where the actor died under the call."""
        reply: Completion = self._ask("ask", "generate", call, stream=stream, timeout_s=timeout_s)
        return reply

    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """See `ModelClient`; ServerUnreachableError where the actor died under the call."""
        reply: Embeddings = self._ask("ask", "embed", model, list(texts), timeout_s=timeout_s)
        return reply

    def models(self) -> dict[str, str]:
        """See `ModelClient`."""
        listed: dict[str, str] = self._ask("ask", "models")
        return listed

    def completes(self, model: str) -> bool:
        """See `ModelClient`."""
        completes: bool = self._ask("ask", "completes", model)
        return completes

    def slots(self) -> int | None:
        """See `ModelClient`."""
        slots: int | None = self._ask("ask", "slots")
        return slots

    def inventory(self) -> Inventory:
        """See `ModelClient`."""
        found: Inventory = self._ask("ask", "inventory")
        return found

    def is_simulator(self) -> bool:
        """Whether the server is the simulator, as seen from the actor's machine.

        Raises:
            ServerUnreachableError: the actor died.
        """
        found: bool = self._ask("is_simulator")
        return found

    def actor_pid(self) -> int:
        """The number of the actor's process, on its own machine.

        Raises:
            ServerUnreachableError: it died.
        """
        pid: int = self._ask("pid")
        return pid

    def abort(self) -> None:
        """The same as `close`."""
        self.close()

    def close(self) -> None:
        """End the actor; calls under way and after this raise CallCancelledError."""
        with self._changed:
            self.is_closed = True
            if self._actor is None:
                return
        import ray

        ray.kill(self._actor, no_restart=True)
        with self._changed:  # whoever waits for Ray when it is shut down may crash the process
            self._changed.wait_for(lambda: not self._waiting, _LEFT_S)

    def _ask(self, method: str, *args: object, **named: object) -> Any:  # noqa: ANN401 - any method's
        """What a method of the actor returns.

        Raises:
            OllamaError: it failed, or the actor died.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        with self._changed:
            self._waiting += 1
        closed = CallCancelledError(f"the client of {self.host!r} was closed before the reply")
        try:
            if self.is_closed:
                raise closed
            value = ray.get(getattr(self.start(), method).remote(*args, **named))
        except RayTaskError:  # ours: an error that is no OllamaError
            raise
        except RayError as error:
            if self.is_closed:
                raise closed from error
            raise ServerUnreachableError(
                f"the Ray actor for {self.host!r} died, and is started anew: {brief(str(error))}"
            ) from error
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()
        if isinstance(value, Failure):
            raise value.error
        return value


class Nodes:
    """The machines of a Ray cluster, and which of them a server is on.

    Args:
        by_id: of each node the name and the address.
        own: the node of this process.
    """

    def __init__(self, by_id: Mapping[str, tuple[str, str]], own: str) -> None:
        self._by_id = {node: (name.lower(), address) for node, (name, address) in by_id.items()}
        self._own = own

    def near(self, url: str) -> str | None:
        """The node of a server's machine; None where that is no node.

        Args:
            url: the server's base URL. A loopback address is this machine's.

        Raises:
            ValueError: `NODE.localhost` names no node.
        """
        name = urlsplit(server_url(url)).hostname or ""
        if name.endswith(_NODE_LOOPBACK):
            return self._named(name.removesuffix(_NODE_LOOPBACK))
        if is_loopback(server_url(url)):
            return self._own
        addresses = _addresses(name)
        for node, (node_name, address) in self._by_id.items():
            if name in {node_name, node_name.partition(".")[0]} or address in addresses:
                return node
        return None

    def seen_from_there(self, host: str) -> str:
        """A client's host as its own node names it: `NODE.localhost` is its loopback."""
        name = urlsplit(server_url(host)).hostname or ""
        return host.replace(name, "127.0.0.1", 1) if name.endswith(_NODE_LOOPBACK) else host

    def __len__(self) -> int:
        return len(self._by_id)

    def _named(self, wanted: str) -> str:
        for node, (name, _) in self._by_id.items():
            if wanted in {name, name.partition(".")[0]}:
                return node
        names = {name for name, _ in self._by_id.values()}
        raise ValueError(
            f"no Ray node has the name {wanted!r}, of which the server is on its loopback; "
            f"the nodes are {', '.join(sorted(names))}"
        )


class RayEngine:
    """A Ray cluster that this process has joined; it opens the clients of servers.

    Args:
        nodes: returns the cluster's machines.
    """

    def __init__(self, nodes: Callable[[], Nodes]) -> None:
        self._nodes = nodes
        self.clients: list[RayClient] = []
        """Those that were opened."""

    def open_client(self, host: str, **given: Any) -> RayClient:  # noqa: ANN401 - see `open_client`
        """The client of a host; see `RayClient` and `ollama_utils.wires.open_client`."""
        client = RayClient(host, nodes=self._nodes(), **given)
        self.clients = [*(other for other in self.clients if not other.is_closed), client]
        return client

    def start(self) -> None:
        """Start the actors side by side, where the first call would start each."""
        for client in self.clients:
            client.start()

    def placement(self) -> str:
        """Where the actors are, in one line."""
        count = len(self._nodes())
        far = [client.host for client in self.clients if client.node is None]
        nodes = f"{count} Ray node{'s' if count > 1 else ''}"
        away = f"; no node is the machine of {', '.join(far)}: any has its actor" if far else ""
        servers = f"{len(self.clients)} server{'s' if len(self.clients) > 1 else ''}"
        return f"{servers}, an actor each, on {nodes}{away}"

    def is_simulator(self, url: str) -> bool:
        """Whether the server at this URL is the simulator, as its actor finds; see `simulator.process`."""
        return any(
            client.is_simulator() for client in self.clients if server_url(client.host) == url
        )


@contextmanager
def joined_ray(address: str | None) -> Iterator[RayEngine]:
    """Join a Ray cluster, and leave it at the end; one that this process has joined before stays.

    Args:
        address: as `ray.init` takes it, such as `auto` or `ray-head:6379`; None: RAY_ADDRESS, else a cluster
            of this machine alone is started, and ended at the end.

    Raises:
        ValueError: Ray is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # what Ray would warn of otherwise
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            f"--engine ray needs Ray, which is not installed here: {_INSTALL}"
        ) from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _init(address or os.environ.get("RAY_ADDRESS"))
    try:
        yield RayEngine(_nodes)
    finally:
        if is_ours:
            ray.shutdown()


def _nodes() -> Nodes:
    """The cluster's machines as they are now."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    by_id = {
        node["NodeID"]: (node["NodeManagerHostname"], node["NodeManagerAddress"]) for node in alive
    }
    return Nodes(by_id, ray.get_runtime_context().get_node_id())


def _init(address: str | None) -> None:
    """Join a cluster; Ray's own handler of SIGTERM would end the process without saving anything."""
    import ray

    if address and address.startswith("ray://"):
        raise ValueError(
            f"expected a Ray cluster that this machine is a node of, got {address!r}: run 'ray start "
            "--address=HEAD:6379' here, and pass HEAD:6379 or 'auto'"
        )
    where = repr(address) if address else "of this machine"
    small = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address and ":" in address:  # else Ray tries for minutes
            name, _, port = address.rpartition(":")
            socket.create_connection((name, int(port)), _CONNECT_S).close()
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            **({} if address else small),
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"the Ray cluster {where} cannot be joined: {' '.join(str(error).split())}"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _start_actor(host: str, given: Mapping[str, Any], node: str | None) -> Any:  # noqa: ANN401 - Ray's handle
    """An actor for a server on its node, or on any; it comes up in the background."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return (
        ray.remote(ServerActor)
        .options(
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=_MOST_AT_ONCE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)
            if node
            else "SPREAD",
        )
        .remote(host, **given)
    )


def _addresses(name: str) -> set[str]:
    """The addresses of a machine's name; none where nobody knows it."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        return set()
