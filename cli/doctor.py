"""Test whether a server does what a run relies on, by some calls within a bounded time, read-only.

    mutagym doctor --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --num-processes 16
    mutagym doctor --target-model llama3.2 --encoder ollama:nomic-embed-text --seconds 30

There is a row for each thing that a run relies on (`ollama_utils/server_checks.py`): whether it
holds, what was seen, what follows, and what helps. Nothing is pulled, deleted or unloaded; what
will be sent is said before. How fast a run is under each schedule, `mutagym bench` measures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cyclopts import Parameter

from cli.output import print_tables, write_json
from ollama_utils.connect import Connection, ServerConfig, connect, hosts_named
from ollama_utils.errors import CallTimeoutError, OutageError
from ollama_utils.parallel import map_parallel
from ollama_utils.server_checks import (
    TOKENS,
    ServerUnderTest,
    most_calls,
    rows_of,
    run_checks,
)
from ollama_utils.threads import POLL_S, submit
from ollama_utils.types import short_name
from records.errors import RunStoppedError
from records.outputs import check_writable
from records.settings import Count, JsonPlace, Lanes, Positive
from records.terminal import counted, write_stderr
from report.table import Table

CLOSE_S = 1.0
"""For how long a connection is waited for to close, once the time is over."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """The run that is meant, and for how long its servers may be tested."""

    seconds: Positive = 120
    """The most seconds that it takes in all, connecting included."""
    num_processes: Lanes = 16
    """Lanes of the run."""
    encoder: str = "hashing"
    """Its encoder: the model of `ollama:MODEL` has to stay loaded beside the others."""
    num_ctx: Count | None = None
    """Context length of the models [the server's]."""
    json: JsonPlace = None
    """Write the rows here, as JSON; `-` is stdout, in the place of the tables."""
    server: ServerConfig = field(default_factory=ServerConfig)


def doctor(config: DoctorConfig = DoctorConfig()) -> None:
    """Test whether a server does what a run relies on.

    Exit code 1 says that a server answered no call, 3 that one was silent from the beginning.
    """
    check_writable(config.json)
    began_s = time.monotonic()
    end_s = began_s + config.seconds
    servers: list[ServerUnderTest] = []
    # On a thread of its own, which hangs where a server does.
    checks = submit(partial(_check_servers, config, end_s, servers))
    while not checks.done() and time.monotonic() < end_s:
        wait([checks], timeout=POLL_S)  # for a signal may come just before it sleeps
    for server in servers:
        server.client.close()
    wait([checks], timeout=CLOSE_S)
    error = checks.exception() if checks.done() else None
    if error and not isinstance(error.__cause__, CallTimeoutError):
        raise error
    if not servers:
        hosts = ", ".join(hosts_named(config.server)) or "the embedded simulator"
        raise OutageError(
            f"{hosts} did not list its models in time: allow more (--seconds, --call-timeout-s), "
            "or start it anew"
        )
    tested: list[dict[str, Any]]
    tested = [{"host": each.name, "rows": rows_of(each)} for each in servers]
    announced, sent = sum(map(most_calls, servers)), sum(each.sent for each in servers)
    simulated, seconds = servers[0].is_simulated, time.monotonic() - began_s
    calls = {"announced": announced, "sent": sent}
    report = {"simulated": simulated, "servers": tested, "seconds": seconds, "calls": calls}
    if not write_json(report, config.json):
        line = f"{counted(sent, 'call')} in {seconds:.0f} s"
        if servers[0].target is None:
            one = servers[0].models[0]
            line = f"the rest needs a model: name a model, as in --target-model {one}"
        print_tables(map(_table, tested), [line], simulated=simulated)
    for found in tested:
        first = found["rows"][0]
        if servers[0].target and "first_call_s" not in first["numbers"]:
            raise RunStoppedError(f"{found['host']} answered no call: {first['seen']}")


def _check_servers(config: DoctorConfig, end_s: float, servers: list[ServerUnderTest]) -> None:
    """Connect, say what will be sent, and make the checks at all servers at once."""
    patience_s = min(config.seconds, config.server.call_timeout_s)
    server = replace(config.server, call_timeout_s=patience_s)
    with connect(server, waits=False, guesses=True) as connection:
        found = _servers(config, connection, end_s)
        if most := sum(map(most_calls, found)):
            models, hosts = ", ".join(found[0].models), ", ".join(connection.servers)
            write_stderr(
                f"will send {models} at {hosts} at most {most} calls, most of {TOKENS} tokens "
                f"or less, within {config.seconds:g} s in all (--seconds); nothing is pulled, "
                "deleted or unloaded"
            )
        servers += found
        map_parallel(run_checks, servers)


def _servers(config: DoctorConfig, connection: Connection, end_s: float) -> list[ServerUnderTest]:
    """The servers, and the models and calls of the run."""
    roles, hosts = connection.roles, connection.dispatcher.servers.all
    is_embedding = config.encoder.startswith("ollama:")
    embedding = short_name(config.encoder.removeprefix("ollama:")) if is_embedding else None
    connection.check_pulled([embedding] if embedding else [])
    called = (roles.target, roles.mutator, config.server.judge_model, embedding)
    options = {"num_ctx": config.num_ctx} if config.num_ctx else {}
    return [
        ServerUnderTest(
            name=name,
            client=host.client,
            target=None if connection.is_guess else roles.target,
            models=tuple(dict.fromkeys(short_name(model) for model in called if model)),
            embedding=embedding,
            options=options,
            available=tuple(connection.available),
            lanes=math.ceil(config.num_processes / len(hosts)),
            slots_setting=replace(connection, hosts=(name,)).slots_setting,
            stated_slots=config.server.simulator.slots if connection.child else None,
            is_simulated=connection.simulated,
            end_s=end_s,
        )
        for name, host in zip(connection.servers, hosts, strict=True)
    ]


def _table(server: Mapping[str, Any]) -> Table:
    columns = ("what a run relies on", "", "what was seen", "what follows, and what helps")
    rows = [
        (row["claim"], row["verdict"], row["seen"], f"{row['follows']}; {row['do']}".strip("; "))
        for row in server["rows"]
    ]
    return Table(caption=server["host"], columns=columns, rows=rows, names=len(columns))
